"""Sparse embedders: one for the text of a query, one for documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from haystack import Document, component
from haystack.dataclasses import SparseEmbedding
from haystack.utils import Secret

from sie_sdk.client import SIEAsyncClient, SIEClient
from sie_sdk.integrations import embeddings
from sie_sdk.integrations.haystack.component import KEY, ServedComponent, bar, checked, text_of
from sie_sdk.types import EncodeResult


@component
class SIESparseTextEmbedder(ServedComponent):
    """Embeds the text of a search query as a sparse vector, for hybrid retrievers."""

    own: ClassVar[tuple[str, ...]] = ("prefix", "suffix")

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        api_key: Secret | None = KEY,
        *,
        prefix: str = "",
        suffix: str = "",
        pool: str | None = None,
        timeout_s: float = 150.0,
        deadline_s: float = 300.0,
        options: dict[str, Any] | None = None,
        client: SIEClient | None = None,
        async_client: SIEAsyncClient | None = None,
    ) -> None:
        """Make the component; nothing is sent yet. The parameters are those of the dense embedder."""
        self._connect(model, base_url, api_key, pool, timeout_s, deadline_s, options, client, async_client)
        self.prefix, self.suffix = prefix, suffix

    @component.output_types(sparse_embedding=SparseEmbedding)
    def run(self, text: str) -> dict[str, Any]:
        """``sparse_embedding``: the vector of the text."""
        asked = embeddings.asked("sparse", self.terms, is_query=True)
        results = self.connection.encode(self.model, [self.prefix + text + self.suffix], **asked)
        return {"sparse_embedding": _vectors(results)[0]}

    @component.output_types(sparse_embedding=SparseEmbedding)
    async def run_async(self, text: str) -> dict[str, Any]:
        """:meth:`run`, awaited."""
        asked = embeddings.asked("sparse", self.terms, is_query=True)
        results = await self.connection.aencode(self.model, [self.prefix + text + self.suffix], **asked)
        return {"sparse_embedding": _vectors(results)[0]}


@component
class SIESparseDocumentEmbedder(ServedComponent):
    """Embeds documents as sparse vectors: each comes back as a copy with its ``sparse_embedding``."""

    own: ClassVar[tuple[str, ...]] = (
        *("prefix", "suffix", "meta_fields_to_embed", "embedding_separator", "progress_bar"),
    )

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        api_key: Secret | None = KEY,
        *,
        prefix: str = "",
        suffix: str = "",
        meta_fields_to_embed: list[str] | None = None,
        embedding_separator: str = "\n",
        progress_bar: bool = True,
        pool: str | None = None,
        timeout_s: float = 150.0,
        deadline_s: float = 300.0,
        options: dict[str, Any] | None = None,
        client: SIEClient | None = None,
        async_client: SIEAsyncClient | None = None,
    ) -> None:
        """Make the component; nothing is sent yet. The parameters are those of the dense embedder."""
        self._connect(model, base_url, api_key, pool, timeout_s, deadline_s, options, client, async_client)
        self.prefix, self.suffix = prefix, suffix
        self.meta_fields_to_embed, self.embedding_separator = meta_fields_to_embed or [], embedding_separator
        self.progress_bar = progress_bar

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """``documents``: copies with their sparse embeddings, in order."""
        texts, asked = self._texts(documents), embeddings.asked("sparse", self.terms, is_query=False)
        with bar(texts, self.progress_bar) as asked["progress"]:
            found = self.connection.encode(self.model, texts, **asked)
        return {"documents": _embedded(documents, _vectors(found))}

    @component.output_types(documents=list[Document])
    async def run_async(self, documents: list[Document]) -> dict[str, Any]:
        """:meth:`run`, awaited."""
        texts, asked = self._texts(documents), embeddings.asked("sparse", self.terms, is_query=False)
        with bar(texts, self.progress_bar) as asked["progress"]:
            found = await self.connection.aencode(self.model, texts, **asked)
        return {"documents": _embedded(documents, _vectors(found))}

    def _texts(self, documents: list[Document]) -> list[str]:
        fields, separator = self.meta_fields_to_embed, self.embedding_separator
        return [self.prefix + text_of(each, fields, separator) + self.suffix for each in checked(documents)]


def _vectors(results: Sequence[EncodeResult]) -> list[SparseEmbedding]:
    return [SparseEmbedding(indices=indices, values=values) for indices, values in embeddings.sparse(results)]


def _embedded(documents: Sequence[Document], found: Sequence[SparseEmbedding]) -> list[Document]:
    return [replace(document, sparse_embedding=vector) for document, vector in zip(documents, found, strict=True)]
