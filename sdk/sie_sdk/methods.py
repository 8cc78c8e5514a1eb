"""The public methods of the clients, each written and documented once, for the blocking and the awaiting client.

Owns signatures and their documentation. Not here: what a call does (``calls``), how it is carried (``transport``), the
clients themselves and the life of their connections (``client``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Unpack, overload

from sie_sdk import calls
from sie_sdk.carrier import Carrier, Http
from sie_sdk.effects import Cancel, Patience, Terms
from sie_sdk.keywords import Async, CallKeywords, EncodeKeywords, ExtractKeywords, Many, One
from sie_sdk.types import (
    EncodeResult,
    ExtractResult,
    Item,
    ModelInfo,
    OutputDtype,
    OutputType,
    Priority,
    Progress,
    ScoreResult,
)

if TYPE_CHECKING:
    # httpx takes longer to import than the rest of the SDK together; the first client made imports it.
    import httpx

T = TypeVar("T")
Blocking: TypeAlias = "Methods[httpx.Client]"
Awaited: TypeAlias = "Methods[httpx.AsyncClient]"


CONCURRENCY = 8
"""Requests that a call for many items has under way at a time, unless told otherwise."""


class Methods(Carrier[Http]):
    """What both clients can do. A method has a reading for each: blocking, or awaited.

    ``encode`` and ``extract`` have two more: one item, or many. A str is a sequence of str as well, hence the ignores:
    the first reading that fits is the one meant, for the type checker as at run time.
    """

    @overload
    def encode(  # type: ignore[overload-overlap]
        self: Blocking, model: str, items: One, **keywords: Unpack[EncodeKeywords]
    ) -> EncodeResult: ...
    @overload
    def encode(self: Blocking, model: str, items: Many, **keywords: Unpack[EncodeKeywords]) -> list[EncodeResult]: ...
    @overload
    def encode(  # type: ignore[overload-overlap]
        self: Awaited, model: str, items: One, **keywords: Unpack[EncodeKeywords]
    ) -> Async[EncodeResult]: ...
    @overload
    def encode(
        self: Awaited, model: str, items: Many, **keywords: Unpack[EncodeKeywords]
    ) -> Async[list[EncodeResult]]: ...

    def encode(
        self,
        model: str,
        items: One | Many,
        *,
        output_types: Sequence[OutputType] | None = None,
        instruction: str | None = None,
        output_dtype: OutputDtype | None = None,
        is_query: bool | None = None,
        options: Mapping[str, Any] | None = None,
        wait_for_capacity: bool = True,
        deadline_s: float = 300.0,
        progress: Callable[[Progress], object] | None = None,
        cancel: Cancel | None = None,
        idempotency_key: str | None = None,
        priority: Priority | None = None,
        expire_s: float | None = None,
        pool: str | None = None,
        concurrency: int = CONCURRENCY,
    ) -> Any:
        """Turn texts into vectors: ``client.encode("all-MiniLM-L6-v2", "hello").dense`` has shape ``[dims]``.

        A server that has scaled to zero wakes up meanwhile; ``progress`` tells how far it is.

        Args:
            model: a name of ``list_models()``.
            items: one text or :class:`Item`, or a list of them. A long list (over 256 items or a million characters) is
                sent in several requests. ``encode_stream`` takes any number without holding them all.
            output_types: what to compute, of ``dense``, ``sparse`` and ``multivector``; default ``dense`` where the
                model has it, else all it has.
            instruction: put before each text, for models that were trained with one.
            output_dtype: the arrays' dtype; default ``float32``. int8 and uint8 come with what to scale them by.
            is_query: True for a search query, False for a document; only some models tell them apart.
            options: per-model choices, see the model's own page.
            wait_for_capacity: False raises at once instead of waiting for a worker.
            deadline_s: seconds until the call gives up, waiting included. The work stays queued.
            progress: called with a :class:`Progress` whenever the call begins to wait, and as items are done; what it
                raises ends the call.
            cancel: a ``threading.Event``; setting it ends a wait at once, and a request being held within a second.
            idempotency_key: names this piece of work; the server computes it once however often it is sent.
            priority: ``interactive`` work goes before ``bulk``; default: bulk for a long list, else interactive.
            expire_s: seconds after which the server need not begin with the work any more; default: an hour.
            pool: the pool whose workers are to compute it; default: the client's, else everybody's.
            concurrency: requests of a long list under way at a time.

        Returns:
            One :class:`EncodeResult` for one item, a list in the items' order for a list; the async client's to await.

        Raises:
            InvalidInputError: the request can never succeed; ``error.field`` names what to change.
            ModelNotFoundError: ``error.details["nearest"]`` has names that are close.
            UnavailableError: not now, and ``wait_for_capacity`` is False; ``error.retry_after`` says when.
            DeadlineExceededError: ``deadline_s`` passed; ``error.details["job"]`` names the queued work.
            SIEError: anything else; the whole tree is in ``sie_sdk.errors``. Of a long list the first error ends all
                requests, and ``error.details["items"]`` is the ``[start, stop]`` of the one that failed.
        """
        order = calls.encode(
            model,
            Patience(wait_for_capacity, deadline_s, self._timeout_s, cancel),
            Terms(idempotency_key, priority, expire_s, pool or self._pool),
            output_types=output_types,
            instruction=instruction,
            output_dtype=output_dtype,
            is_query=is_query,
            options=options,
        )
        call = calls.ask(order, calls.many(items), concurrency)
        return self._run(calls.first(call) if isinstance(items, (str, Item)) else call, progress)

    @overload
    def score(
        self: Blocking, model: str, query: One, items: One | Many, **keywords: Unpack[CallKeywords]
    ) -> ScoreResult: ...
    @overload
    def score(
        self: Awaited, model: str, query: One, items: One | Many, **keywords: Unpack[CallKeywords]
    ) -> Async[ScoreResult]: ...

    def score(
        self,
        model: str,
        query: One,
        items: One | Many,
        *,
        instruction: str | None = None,
        options: Mapping[str, Any] | None = None,
        wait_for_capacity: bool = True,
        deadline_s: float = 300.0,
        progress: Callable[[Progress], object] | None = None,
        cancel: Cancel | None = None,
        idempotency_key: str | None = None,
        priority: Priority | None = None,
        expire_s: float | None = None,
        pool: str | None = None,
        concurrency: int = CONCURRENCY,
    ) -> Any:
        """Score items against a query, best first: ``client.score("ms-marco-MiniLM-L-6-v2", "capital?", texts)``.

        Args:
            model: a reranker of ``list_models()``, or a multivector model, which scores by MaxSim.
            query: a text or :class:`Item`.
            items: what to score. ``Item(multivector=...)`` spares computing vectors you already have.
            instruction: what counts as relevant, for models that were trained with one.

        The other keywords, and what is raised, are those of :meth:`encode`.

        Returns:
            A :class:`ScoreResult`. Each of its ``scores`` names its item by ``index`` and by ``item_id``, the item's
            own id or ``item-{index}``.
        """
        order = calls.score(
            model,
            Patience(wait_for_capacity, deadline_s, self._timeout_s, cancel),
            Terms(idempotency_key, priority, expire_s, pool or self._pool),
            query=query,
            instruction=instruction,
            options=options,
        )
        return self._run(calls.ask(order, calls.many(items), concurrency), progress)

    @overload
    def extract(  # type: ignore[overload-overlap]
        self: Blocking, model: str, items: One, **keywords: Unpack[ExtractKeywords]
    ) -> ExtractResult: ...
    @overload
    def extract(
        self: Blocking, model: str, items: Many, **keywords: Unpack[ExtractKeywords]
    ) -> list[ExtractResult]: ...
    @overload
    def extract(  # type: ignore[overload-overlap]
        self: Awaited, model: str, items: One, **keywords: Unpack[ExtractKeywords]
    ) -> Async[ExtractResult]: ...
    @overload
    def extract(
        self: Awaited, model: str, items: Many, **keywords: Unpack[ExtractKeywords]
    ) -> Async[list[ExtractResult]]: ...

    def extract(
        self,
        model: str,
        items: One | Many,
        *,
        labels: Sequence[str] | None = None,
        output_schema: Mapping[str, Any] | None = None,
        instruction: str | None = None,
        options: Mapping[str, Any] | None = None,
        wait_for_capacity: bool = True,
        deadline_s: float = 300.0,
        progress: Callable[[Progress], object] | None = None,
        cancel: Cancel | None = None,
        idempotency_key: str | None = None,
        priority: Priority | None = None,
        expire_s: float | None = None,
        pool: str | None = None,
        concurrency: int = CONCURRENCY,
    ) -> Any:
        """Find entities in texts, or classify them: ``client.extract("distilbert-NER", "Ada is in London").entities``.

        Args:
            model: an extraction or classification model of ``list_models()``.
            items: one text or :class:`Item`, or a list of them.
            labels: what a zero-shot model is to look for; of a model with labels of its own, which of them to keep.
            output_schema: a schema to fill, for models that do.
            instruction: for models that were trained with one.

        The other keywords, and what is raised, are those of :meth:`encode`.

        Returns:
            One :class:`ExtractResult` for one item, a list in the items' order for a list. An entity's ``start`` and
            ``end`` count characters of its item's text.
        """
        order = calls.extract(
            model,
            Patience(wait_for_capacity, deadline_s, self._timeout_s, cancel),
            Terms(idempotency_key, priority, expire_s, pool or self._pool),
            labels=labels,
            output_schema=output_schema,
            instruction=instruction,
            options=options,
        )
        call = calls.ask(order, calls.many(items), concurrency)
        return self._run(calls.first(call) if isinstance(items, (str, Item)) else call, progress)

    @overload
    def list_models(self: Blocking) -> list[ModelInfo]: ...
    @overload
    def list_models(self: Awaited) -> Async[list[ModelInfo]]: ...

    def list_models(self) -> Any:
        """Every model the server knows, loaded or not; never waits for a worker."""
        return self._run(calls.list_models(self._impatience()))

    @overload
    def get_model(self: Blocking, name: str) -> ModelInfo: ...
    @overload
    def get_model(self: Awaited, name: str) -> Async[ModelInfo]: ...

    def get_model(self, name: str) -> Any:
        """One model by name.

        Raises:
            ModelNotFoundError: ``error.details["nearest"]`` has names that are close.
        """
        return self._run(calls.get_model(name, self._impatience()))
