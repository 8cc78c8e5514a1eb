"""What carries the calls of an integration: clients that are made on first use, and given back by ``close``.

Owns the life of the clients: one that blocks, one for each event loop, none in a copy. Not here: what is asked for and
what a framework makes of the answer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, Unpack

import msgspec

from sie_sdk import arguments
from sie_sdk.chunks import ITEMS
from sie_sdk.client import SIEAsyncClient, SIEClient
from sie_sdk.errors import ConfigurationError
from sie_sdk.keywords import CallKeywords, EncodeKeywords, ExtractKeywords
from sie_sdk.refusals import from_wire
from sie_sdk.types import EncodeResult, ExtractResult, Item, ScoreResult


class Connection:
    """The calls that integrations make, blocking and awaited. Threads and event loops may share it.

    A client that was given is used as it is, and stays its owner's to close. Where only the blocking one was given,
    awaited calls run it in a thread.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout_s: float = 150.0,
        client: SIEClient | None = None,
        async_client: SIEAsyncClient | None = None,
    ) -> None:
        self._where = (base_url, api_key, timeout_s)
        self._given, self._given_async = client, async_client
        self._made: SIEClient | None = None
        self._making = threading.Lock()
        # A connection belongs to the loop that opened it; frameworks run one loop after the other.
        self._by_loop: dict[asyncio.AbstractEventLoop, SIEAsyncClient] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # Frameworks copy their parts, and send them to other processes. Sockets stay here; a client that was given is
        # shared by copies, and does not pickle.
        return Connection, (*self._where, self._given, self._given_async)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def encode(self, model: str, texts: Sequence[str], **keywords: Unpack[EncodeKeywords]) -> list[EncodeResult]:
        """See :meth:`SIEClient.encode`; no texts make no request, and many several, each with ``deadline_s`` for it."""
        if not texts:
            return []
        texts = arguments.listed("texts", texts)
        if len(texts) > ITEMS:
            return [*self._client().encode_stream(model, texts, **keywords)]
        return self._client().encode(model, texts, **keywords)

    async def aencode(self, model: str, texts: Sequence[str], **keywords: Unpack[EncodeKeywords]) -> list[EncodeResult]:
        """:meth:`encode`, awaited."""
        if not texts:
            return []
        if (client := self._async_client()) is None:
            return await asyncio.to_thread(self.encode, model, texts, **keywords)
        texts = arguments.listed("texts", texts)
        if len(texts) > ITEMS:
            return [result async for result in client.encode_stream(model, texts, **keywords)]
        return await client.encode(model, texts, **keywords)

    def score(
        self, model: str, query: str, texts: Sequence[str], **keywords: Unpack[CallKeywords]
    ) -> list[tuple[int, float]]:
        """Each text's place in ``texts`` and its score, best first."""
        return _ranked(self._client().score(model, query, _numbered(texts), **keywords)) if texts else []

    async def ascore(
        self, model: str, query: str, texts: Sequence[str], **keywords: Unpack[CallKeywords]
    ) -> list[tuple[int, float]]:
        """:meth:`score`, awaited."""
        if not texts:
            return []
        if (client := self._async_client()) is None:
            return await asyncio.to_thread(self.score, model, query, texts, **keywords)
        return _ranked(await client.score(model, query, _numbered(texts), **keywords))

    def extract(self, model: str, text: str, **keywords: Unpack[ExtractKeywords]) -> ExtractResult:
        """See :meth:`SIEClient.extract`.

        Raises:
            SIEError: the text's own error too, where a server answers with one.
        """
        return _checked(self._client().extract(model, text, **keywords))

    async def aextract(self, model: str, text: str, **keywords: Unpack[ExtractKeywords]) -> ExtractResult:
        """:meth:`extract`, awaited."""
        if (client := self._async_client()) is None:
            return await asyncio.to_thread(self.extract, model, text, **keywords)
        return _checked(await client.extract(model, text, **keywords))

    # -- clients -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the blocking client, if it was made here. The next call makes another."""
        made, self._made = self._made, None
        if made is not None:
            made.close()

    async def aclose(self) -> None:
        """Close the running loop's client, if it was made here, and the blocking one."""
        self.close()
        if (made := self._by_loop.pop(asyncio.get_running_loop(), None)) is not None:
            await made.close()

    def _client(self) -> SIEClient:
        if self._given is not None:
            return self._given
        if self._given_async is not None:
            raise ConfigurationError(
                "This call blocks, and only async_client was given.",
                field="client",
                hint="Pass client=SIEClient(...) as well, or await the asynchronous method.",
            )
        with self._making:
            if self._made is None:
                base_url, api_key, timeout_s = self._where
                self._made = SIEClient(base_url, api_key=api_key, timeout_s=timeout_s)
            return self._made

    def _async_client(self) -> SIEAsyncClient | None:
        if self._given_async is not None:
            return self._given_async
        if self._given is not None:
            return None
        loop = asyncio.get_running_loop()
        if (made := self._by_loop.get(loop)) is None:
            for ended in [each for each in [*self._by_loop] if each.is_closed()]:
                self._by_loop.pop(ended, None)
            base_url, api_key, timeout_s = self._where
            self._by_loop[loop] = made = SIEAsyncClient(base_url, api_key=api_key, timeout_s=timeout_s)
        return made


def found(result: ExtractResult) -> dict[str, Any]:
    """``entities``, ``classifications``, ``relations``, ``objects`` and ``data`` as lists and maps, for tools."""
    kept = ("entities", "classifications", "relations", "objects", "data")
    return {name: msgspec.to_builtins(getattr(result, name)) for name in kept}


def _numbered(texts: Sequence[str]) -> list[Item]:
    # Every server echoes the ids, not every one the place.
    return [Item(text=text, id=str(index)) for index, text in enumerate(texts)]


def _ranked(result: ScoreResult) -> list[tuple[int, float]]:
    return [(int(entry.item_id), entry.score) for entry in result.scores]


def _checked(result: ExtractResult) -> ExtractResult:
    if result.error is not None:
        raise from_wire({"code": result.error.code, "message": result.error.message})
    return result
