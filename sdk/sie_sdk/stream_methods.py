"""The public methods for items without end, each written and documented once, for the blocking and the awaiting client.

Owns signatures and their documentation, as ``methods`` does for the others. How many chunks are under way is
``drivers``'.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack, overload

from sie_sdk import calls
from sie_sdk.carrier import Carrier, Http
from sie_sdk.chunks import Chunk
from sie_sdk.effects import Call
from sie_sdk.errors import InvalidInputError
from sie_sdk.keywords import EncodeKeywords, ExtractKeywords, One
from sie_sdk.methods import CONCURRENCY
from sie_sdk.types import EncodeResult, ExtractResult, Item, Operation, Progress

if TYPE_CHECKING:
    import httpx

Blocking: TypeAlias = "StreamMethods[httpx.Client]"
Awaited: TypeAlias = "StreamMethods[httpx.AsyncClient]"


class StreamMethods(Carrier[Http]):
    """What both clients can do with any number of items, in memory that does not grow with it."""

    @overload
    def encode_stream(
        self: Blocking, model: str, items: Iterable[One], **keywords: Unpack[EncodeKeywords]
    ) -> Generator[EncodeResult, None, None]: ...
    @overload
    def encode_stream(
        self: Awaited, model: str, items: Iterable[One] | AsyncIterable[One], **keywords: Unpack[EncodeKeywords]
    ) -> AsyncGenerator[EncodeResult, None]: ...

    def encode_stream(self, model: str, items: Any, **keywords: Unpack[EncodeKeywords]) -> Any:
        """The results of any number of items, in their order: ``for result in client.encode_stream(model, lines)``.

        Items are read as they are needed and sent in chunks, ``concurrency`` at a time; results are held until they
        are taken, but no more than of twice as many chunks. Leaving the loop, or closing the iterator, ends what is
        under way. Work is ``bulk`` unless ``priority`` says otherwise.

        Args:
            model: a name of ``list_models()``.
            items: texts and :class:`Item` objects, from any iterable; of the async client's also from an awaited one.

        The keywords are those of ``encode``. ``deadline_s`` is each chunk's own, and of an ``idempotency_key`` each
        chunk has its own too, made of it and the chunk's place.

        Returns:
            A generator of :class:`EncodeResult`, one per item; the async client's for ``async for``.

        Raises:
            SIEError: as ``encode``, when the results before it were taken; ``error.details["items"]`` are the first and
                the last place, ``[start, stop]``, of the chunk that failed.
            Exception: what ``items`` raises, as it is, when the results of all items before it were taken.
        """
        return self._results("encode", model, items, **keywords)

    @overload
    def extract_stream(
        self: Blocking, model: str, items: Iterable[One], **keywords: Unpack[ExtractKeywords]
    ) -> Generator[ExtractResult, None, None]: ...
    @overload
    def extract_stream(
        self: Awaited, model: str, items: Iterable[One] | AsyncIterable[One], **keywords: Unpack[ExtractKeywords]
    ) -> AsyncGenerator[ExtractResult, None]: ...

    def extract_stream(self, model: str, items: Any, **keywords: Unpack[ExtractKeywords]) -> Any:
        """What ``extract`` finds in any number of items, in their order; otherwise as :meth:`encode_stream`."""
        return self._results("extract", model, items, **keywords)

    def _results(
        self,
        operation: Operation,
        model: str,
        items: Any,
        *,
        concurrency: int = CONCURRENCY,
        progress: Callable[[Progress], object] | None = None,
        **keywords: Any,
    ) -> Any:
        if isinstance(items, (str, Item)):
            raise InvalidInputError(
                "items is one item.", field="items", hint=f"Pass many, or use {operation}() for one."
            )
        calls.check_width(concurrency)
        order = calls.order(operation, model, self._timeout_s, self._pool, **keywords)
        return self._stream(self._each(partial(calls.part, order), items), concurrency, progress)

    @abstractmethod
    def _each(self, ask: Callable[[Chunk], Call[Any]], items: Any) -> Any:
        """The calls for items, a chunk each, as they are needed."""
