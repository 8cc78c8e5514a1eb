"""A newer version wrote, and this one runs again: what it cannot read is left alone, the rest goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from cloudevents.core.v1.event import CloudEvent

from sie_broker.contract import Broker
from sie_config.api import edits
from sie_config.epochs import store
from sie_config.epochs.mirror import Mirror
from sie_config.epochs.store import Event
from sie_config.epochs.writer import Writer
from sie_config.registry import Registry
from sie_sdk.errors import ContentConflictError, NotFoundError
from tests.config.served import served
from tests.config.test_relay import data, relaying
from tests.config.test_writer import CHANGED, OTHER, put
from tests.config.writing import writing
from tests.conftest import eventually
from tests.ingress.conftest import SPEC

LATER = msgspec.structs.replace(SPEC, id="org/later")


async def rewrite(broker: Broker, key: str, change: Callable[[Any], None]) -> None:
    """What stands under a key as a newer version would have written it."""
    record = msgspec.json.decode(await broker.config.get(key) or b"")
    change(record)
    await broker.config.put(key, msgspec.json.encode(record))


def newer_entry(record: Any) -> None:
    record["spec"]["of_a_newer_version"] = 1


def newer_changes(record: Any) -> None:
    for change in record["changes"]:
        change["after"]["spec"]["of_a_newer_version"] = 1


def newer_kind(record: Any) -> None:
    record["kind"] = "import"


def no_event(record: Any) -> None:
    record["changes"] = "elsewhere"


async def test_a_start_leaves_an_entry_that_it_cannot_read_as_it_is(broker: Broker) -> None:
    async with writing(broker, SPEC) as writer:
        await put(writer, CHANGED)
    await rewrite(broker, key := store.model_key(SPEC.id), newer_entry)
    before = await broker.config.get(key)
    async with writing(broker, SPEC, OTHER) as writer:
        assert writer.state.specs() == [OTHER]
        for edit in (edits.delete(SPEC.id), edits.patch(SPEC.id, {}), lambda _: {SPEC.id: SPEC}):
            with pytest.raises(ContentConflictError, match="newer version"):
                await writer.write(edit, actor="", kind="put")
        await put(writer, LATER)
    assert await broker.config.get(key) == before


async def test_a_change_that_cannot_be_read_is_not_written_over_by_whoever_followed_it(broker: Broker) -> None:
    async with writing(broker, SPEC) as writer:
        await put(writer, CHANGED)
        await rewrite(broker, store.event_key(2), newer_changes)
        await rewrite(broker, store.model_key(SPEC.id), newer_entry)
        follower = Mirror(broker.config, Registry(), baseline={SPEC.id: SPEC})
        event = await writer.event(1)
        assert event is not None
        follower.apply(event)
        await follower.look()
        assert follower.state.epoch == 2 and follower.state.seed() == {}
        with pytest.raises(ContentConflictError):
            follower.state.changes({SPEC.id: SPEC})


async def test_a_rollback_over_changes_that_cannot_be_read_is_refused(broker: Broker) -> None:
    async with writing(broker, SPEC) as writer:
        for spec in (OTHER, LATER, CHANGED):
            await put(writer, spec)
        await rewrite(broker, store.event_key(3), newer_changes)
        with pytest.raises(NotFoundError, match="Epoch 3 holds changes of a newer version"):
            await writer.at(1)
        assert (await writer.at(3))["org/later"].spec == LATER


@pytest.mark.parametrize(("change", "told"), [(newer_kind, [1, 2, 3]), (no_event, [1, 3])], ids=["kind", "event"])
async def test_a_write_of_another_kind_and_one_that_cannot_be_read_hold_up_nothing(
    broker: Broker, change: Callable[[Any], None], told: list[int]
) -> None:
    heard: list[CloudEvent] = []

    async def send(event: Event, told: CloudEvent, attempt: int) -> float | None:
        heard.append(told)
        return None

    async with served(SPEC, broker=broker) as service:
        for spec in (OTHER, LATER):
            await put(service.writer, spec)
        await rewrite(broker, store.event_key(2), change)
        async with relaying(broker, service.writer, "x", send):
            await eventually(lambda: len(heard) == len(told))
        assert [data(each)["epoch"] for each in heard] == told
        page = (await service.send("GET", "/history")).json()
        assert [each["epoch"] for each in page["events"]] == told[::-1]
        one = await service.send("GET", "/history/2")
        assert one.status_code == (200 if 2 in told else 404)


async def test_the_event_of_changes_that_cannot_be_read_says_that_it_is_not_complete(broker: Broker) -> None:
    heard: list[CloudEvent] = []

    async def send(event: Event, told: CloudEvent, attempt: int) -> float | None:
        heard.append(told)
        return None

    async with writing(broker, SPEC) as writer:
        await put(writer, OTHER)
        await rewrite(broker, store.event_key(2), newer_changes)
        async with relaying(broker, writer, "x", send):
            await eventually(lambda: len(heard) == 2)
    assert [data(each)["complete"] for each in heard] == [True, False]


async def test_an_event_that_is_missing_ends_no_history(broker: Broker) -> None:
    async with served(SPEC, broker=broker) as service:
        for length in range(1, 9):
            await put(service.writer, msgspec.structs.replace(OTHER, max_sequence_length=length))
        await broker.config.delete(store.event_key(5))
        found, before = [], "100"
        while before != "None":
            page = (await service.send("GET", f"/history?limit=1&before={before}")).json()
            found += [each["epoch"] for each in page["events"]]
            before = str(page["next_before"])
        assert found == [9, 8, 7, 6, 4, 3, 2, 1]


async def test_a_deleted_model_stays_so_although_an_image_between_did_not_have_it(broker: Broker) -> None:
    async with writing(broker, SPEC, OTHER) as writer:
        await put(writer, gone=(SPEC.id,))
    async with writing(broker, OTHER) as writer:
        assert await put(writer, gone=(SPEC.id,)) is None
    async with writing(broker, SPEC, OTHER) as writer:
        assert writer.state.specs() == [OTHER]


async def test_who_was_started_before_takes_no_model_of_a_later_image_away(broker: Broker) -> None:
    async with writing(broker, SPEC) as old:
        newer = Mirror(broker.config, Registry(), baseline={SPEC.id: SPEC, LATER.id: LATER})
        await newer.snapshot()
        next_one = Writer(broker.config, newer, nothing)
        tasks = [asyncio.create_task(next_one.run()), asyncio.create_task(newer.follow())]
        await put(next_one, OTHER)  # takes the lead over
        await eventually(lambda: not old.leading)
        assert next_one.state.specs() == [SPEC, LATER, OTHER]
        await put(old, CHANGED)
        assert old.state.specs() == [CHANGED, LATER, OTHER]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_an_image_that_is_put_back_brings_its_own_models_back(broker: Broker) -> None:
    for baseline in ([SPEC], [SPEC, LATER], [SPEC]):
        async with writing(broker, *baseline) as writer:
            assert writer.state.specs() == sorted(baseline, key=lambda spec: spec.id)


async def nothing(specs: object) -> None:
    """No queues are needed here."""
