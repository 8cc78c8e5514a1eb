"""The dead letters of the in-memory broker, in a dictionary; what one is stands in ``deadletters``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import msgspec

from sie_broker import deadletters, subjects
from sie_broker.contract import Broker
from sie_broker.records import DeadLetter, Work

KEPT = 1000


class MemoryDeadLetters:
    """The `DeadLetters` of the in-memory broker, in a dictionary."""

    def __init__(
        self,
        broker: Broker,
        submit_again: Callable[[Work], Awaitable[object]],
        announce: Callable[[str, Mapping[str, str], bytes], object],
    ) -> None:
        self._broker = broker
        self._submit_again = submit_again
        self._announce = announce
        self._letters: dict[str, DeadLetter] = {}

    async def bury(self, letter: DeadLetter, sequence: int) -> None:
        """The oldest go first."""
        self._letters[letter.id] = await deadletters.with_payload(self._broker.payloads, letter)
        while len(self._letters) > KEPT:
            del self._letters[next(iter(self._letters))]

    async def entries(self) -> list[DeadLetter]:
        return [msgspec.structs.replace(letter, data=b"") for letter in self._letters.values()]

    async def count(self) -> int:
        return len(self._letters)

    async def get(self, letter_id: str) -> DeadLetter:
        return await deadletters.opened(self._broker.payloads, self._kept(letter_id))

    def _kept(self, letter_id: str) -> DeadLetter:
        if letter_id not in self._letters:
            raise deadletters.unknown(letter_id)
        return self._letters[letter_id]

    async def replay(self, letter_id: str) -> None:
        letter = self._kept(letter_id)
        if subjects.is_sink(letter.subject):
            self._announce(letter.subject, letter.headers, letter.data)
        elif (work := deadletters.work_of(letter)) is not None:
            queued = await deadletters.reopen(self._broker.jobs, work)
            await self._submit_again(work)
            self._broker.wake(work.lane)
            await queued()
        del self._letters[letter_id]

    async def drop(self, letter_id: str) -> None:
        if (payload := deadletters.kept_payload(self._kept(letter_id))) is not None:
            await self._broker.payloads.drop(payload)
        del self._letters[letter_id]
