"""Dense embedders: one for the text of a query, one for documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from haystack import Document, component
from haystack.utils import Secret

from sie_sdk.client import SIEAsyncClient, SIEClient
from sie_sdk.integrations import embeddings
from sie_sdk.integrations.haystack.component import KEY, ServedComponent, bar, checked, text_of
from sie_sdk.keywords import EncodeKeywords
from sie_sdk.types import OutputDtype


@component
class SIETextEmbedder(ServedComponent):
    """Embeds the text of a search query.

    >>> SIETextEmbedder(model="sentence-transformers/all-MiniLM-L6-v2").run("Where do cats sit?")["embedding"]
    """

    own: ClassVar[tuple[str, ...]] = ("prefix", "suffix", "instruction", "dimensions", "output_dtype")

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        api_key: Secret | None = KEY,
        *,
        prefix: str = "",
        suffix: str = "",
        instruction: str | None = None,
        dimensions: int | None = None,
        output_dtype: OutputDtype | None = None,
        pool: str | None = None,
        timeout_s: float = 150.0,
        deadline_s: float = 300.0,
        options: dict[str, Any] | None = None,
        client: SIEClient | None = None,
        async_client: SIEAsyncClient | None = None,
    ) -> None:
        """Make the component; nothing is sent yet.

        Args:
            prefix: put before the text, after the model's own prompt for queries.
            suffix: put after the text.
            instruction: put before the text, in place of the model's own prompt.
            dimensions: the first so many dimensions, of a model that was trained for it (Matryoshka).
            output_dtype: the number format on the way; what comes out are floats. Default: float32.

        The other parameters are those of :class:`ServedComponent`.
        """
        self._connect(model, base_url, api_key, pool, timeout_s, deadline_s, options, client, async_client)
        self.prefix, self.suffix, self.instruction = prefix, suffix, instruction
        self.dimensions, self.output_dtype = dimensions, output_dtype

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, Any]:
        """``embedding``: the vector of the text."""
        results = self.connection.encode(self.model, [self.prefix + text + self.suffix], **self._asked())
        return {"embedding": embeddings.dense(results)[0]}

    @component.output_types(embedding=list[float])
    async def run_async(self, text: str) -> dict[str, Any]:
        """:meth:`run`, awaited."""
        results = await self.connection.aencode(self.model, [self.prefix + text + self.suffix], **self._asked())
        return {"embedding": embeddings.dense(results)[0]}

    def _asked(self) -> EncodeKeywords:
        return embeddings.asked(
            "dense",
            self.terms,
            is_query=True,
            instruction=self.instruction,
            dimensions=self.dimensions,
            output_dtype=self.output_dtype,
        )


@component
class SIEDocumentEmbedder(ServedComponent):
    """Embeds documents: each comes back as a copy with its ``embedding``.

    >>> SIEDocumentEmbedder(model="sentence-transformers/all-MiniLM-L6-v2").run([Document(content="A cat sits.")])
    """

    own: ClassVar[tuple[str, ...]] = (
        *("prefix", "suffix", "meta_fields_to_embed", "embedding_separator", "progress_bar"),
        *("instruction", "dimensions", "output_dtype"),
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
        instruction: str | None = None,
        dimensions: int | None = None,
        output_dtype: OutputDtype | None = None,
        pool: str | None = None,
        timeout_s: float = 150.0,
        deadline_s: float = 300.0,
        options: dict[str, Any] | None = None,
        client: SIEClient | None = None,
        async_client: SIEAsyncClient | None = None,
    ) -> None:
        """Make the component; nothing is sent yet.

        Args:
            meta_fields_to_embed: metadata that is embedded before the document's text.
            embedding_separator: put between those and the text.
            progress_bar: whether a bar shows how many documents are done.

        The other parameters are those of :class:`SIETextEmbedder` and :class:`ServedComponent`.
        """
        self._connect(model, base_url, api_key, pool, timeout_s, deadline_s, options, client, async_client)
        self.prefix, self.suffix, self.instruction = prefix, suffix, instruction
        self.dimensions, self.output_dtype = dimensions, output_dtype
        self.meta_fields_to_embed, self.embedding_separator = meta_fields_to_embed or [], embedding_separator
        self.progress_bar = progress_bar

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """``documents``: copies with their embeddings, in order."""
        texts, asked = self._texts(documents), self._asked()
        with bar(texts, self.progress_bar) as asked["progress"]:
            found = self.connection.encode(self.model, texts, **asked)
        return {"documents": _embedded(documents, embeddings.dense(found))}

    @component.output_types(documents=list[Document])
    async def run_async(self, documents: list[Document]) -> dict[str, Any]:
        """:meth:`run`, awaited."""
        texts, asked = self._texts(documents), self._asked()
        with bar(texts, self.progress_bar) as asked["progress"]:
            found = await self.connection.aencode(self.model, texts, **asked)
        return {"documents": _embedded(documents, embeddings.dense(found))}

    def _texts(self, documents: list[Document]) -> list[str]:
        fields, separator = self.meta_fields_to_embed, self.embedding_separator
        return [self.prefix + text_of(each, fields, separator) + self.suffix for each in checked(documents)]

    def _asked(self) -> EncodeKeywords:
        return embeddings.asked(
            "dense",
            self.terms,
            is_query=False,
            instruction=self.instruction,
            dimensions=self.dimensions,
            output_dtype=self.output_dtype,
        )


def _embedded(documents: Sequence[Document], found: Sequence[list[float]]) -> list[Document]:
    return [replace(document, embedding=vector) for document, vector in zip(documents, found, strict=True)]
