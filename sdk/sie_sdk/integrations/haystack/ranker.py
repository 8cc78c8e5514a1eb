"""The ranker: documents by how well they answer a query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from haystack import Document, component
from haystack.utils import Secret

from sie_sdk.client import SIEAsyncClient, SIEClient
from sie_sdk.errors import InvalidInputError
from sie_sdk.integrations.haystack.component import KEY, ServedComponent, checked, text_of
from sie_sdk.keywords import CallKeywords


@component
class SIERanker(ServedComponent):
    """Ranks documents by how well they answer a query: each comes back as a copy with its ``score``, best first.

    >>> SIERanker(model="cross-encoder/ms-marco-MiniLM-L-12-v2", top_k=3).run("capital of Germany?", documents)
    """

    own: ClassVar[tuple[str, ...]] = (
        *("top_k", "meta_fields_to_embed", "embedding_separator", "score_threshold", "instruction"),
    )

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        api_key: Secret | None = KEY,
        *,
        top_k: int | None = None,
        meta_fields_to_embed: list[str] | None = None,
        embedding_separator: str = "\n",
        score_threshold: float | None = None,
        instruction: str | None = None,
        pool: str | None = None,
        timeout_s: float = 150.0,
        deadline_s: float = 300.0,
        options: dict[str, Any] | None = None,
        client: SIEClient | None = None,
        async_client: SIEAsyncClient | None = None,
    ) -> None:
        """Make the component; nothing is sent yet.

        Args:
            top_k: how many documents are kept; default: all of them.
            meta_fields_to_embed: metadata that is scored before the document's text.
            embedding_separator: put between those and the text.
            score_threshold: documents that score lower are left out.
            instruction: what counts as relevant, for models that were trained with one.

        The other parameters are those of :class:`ServedComponent`.

        Raises:
            InvalidInputError: ``top_k`` is not above zero.
        """
        self._connect(model, base_url, api_key, pool, timeout_s, deadline_s, options, client, async_client)
        self.top_k, self.score_threshold, self.instruction = _count(top_k), score_threshold, instruction
        self.meta_fields_to_embed, self.embedding_separator = meta_fields_to_embed or [], embedding_separator

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document], top_k: int | None = None) -> dict[str, Any]:
        """``documents``: the ranked ones, each of them once. ``top_k`` goes before the component's own."""
        most, once = _count(top_k) or self.top_k, _once(documents)
        scores = self.connection.score(self.model, query, self._texts(once), **self._asked())
        return {"documents": self._best(once, scores, most)}

    @component.output_types(documents=list[Document])
    async def run_async(self, query: str, documents: list[Document], top_k: int | None = None) -> dict[str, Any]:
        """:meth:`run`, awaited."""
        most, once = _count(top_k) or self.top_k, _once(documents)
        scores = await self.connection.ascore(self.model, query, self._texts(once), **self._asked())
        return {"documents": self._best(once, scores, most)}

    def _texts(self, documents: Sequence[Document]) -> list[str]:
        return [text_of(each, self.meta_fields_to_embed, self.embedding_separator) for each in documents]

    def _asked(self) -> CallKeywords:
        return {**self.terms, "instruction": self.instruction}

    def _best(
        self, documents: Sequence[Document], scores: Sequence[tuple[int, float]], most: int | None
    ) -> list[Document]:
        ranked = [replace(documents[index], score=score) for index, score in scores[:most]]
        least = self.score_threshold
        return [document for document in ranked if least is None or (document.score or 0.0) >= least]


def _once(documents: Any) -> list[Document]:
    """Retrievers that are joined may find a document twice."""
    return list({document.id: document for document in checked(documents)}.values())


def _count(top_k: int | None) -> int | None:
    if top_k is not None and top_k <= 0:
        raise InvalidInputError(f"top_k is {top_k}.", field="top_k", limit=1, hint="Give at least 1, or None for all.")
    return top_k
