"""The parts of LangChain: embeddings, sparse embeddings, a reranker and an extraction tool.

    pip install '.[langchain]'  # in a clone

Owns LangChain's shapes. Not here: fields (``fields``), calls (``connection``), arrays (``embeddings``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sie_sdk.integrations import absent

try:
    from langchain_core.callbacks import AsyncCallbackManagerForToolRun, CallbackManagerForToolRun, Callbacks
    from langchain_core.documents import BaseDocumentCompressor, Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.tools import BaseTool
    from pydantic import AliasChoices, BaseModel, ConfigDict, Field
except ImportError as error:
    raise absent("LangChain", "langchain", error) from error

from sie_sdk.integrations import embeddings
from sie_sdk.integrations.connection import found
from sie_sdk.integrations.fields import Connected, Embedding
from sie_sdk.keywords import CallKeywords, EncodeKeywords, ExtractKeywords

__all__ = ["SIEEmbeddings", "SIEExtractor", "SIEReranker", "SIESparseEmbeddings", "SIESparseEncoder", "SparseVector"]

STRICT = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


class SIEEmbeddings(Embedding, Embeddings):
    """Dense embeddings.

    >>> embeddings = SIEEmbeddings(model="sentence-transformers/all-MiniLM-L6-v2", base_url="http://127.0.0.1:8080")
    >>> vectors = embeddings.embed_documents(["A cat sits.", "Rates rose."])
    """

    model: str = Field(description="A dense model of the server.")

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One vector for each text; as many texts as you like, the client sends them in parts."""
        return embeddings.dense(self.connection.encode(self.model, texts, **self.asked(is_query=False)))

    def embed_query(self, text: str) -> list[float]:
        """The vector of a search query."""
        return embeddings.dense(self.connection.encode(self.model, [text], **self.asked(is_query=True)))[0]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """:meth:`embed_documents`, awaited."""
        return embeddings.dense(await self.connection.aencode(self.model, texts, **self.asked(is_query=False)))

    async def aembed_query(self, text: str) -> list[float]:
        """:meth:`embed_query`, awaited."""
        return embeddings.dense(await self.connection.aencode(self.model, [text], **self.asked(is_query=True)))[0]


class SparseVector(NamedTuple):
    """A vector by its non-zero places."""

    indices: list[int]
    values: list[float]


class _Sparse(Connected):
    model: str = Field(description="A sparse model of the server.")

    def _encode(self, texts: Sequence[str], *, is_query: bool) -> list[SparseVector]:
        results = self.connection.encode(self.model, texts, **self._asked(is_query))
        return [SparseVector(*vector) for vector in embeddings.sparse(results)]

    async def _aencode(self, texts: Sequence[str], *, is_query: bool) -> list[SparseVector]:
        results = await self.connection.aencode(self.model, texts, **self._asked(is_query))
        return [SparseVector(*vector) for vector in embeddings.sparse(results)]

    def _asked(self, is_query: bool) -> EncodeKeywords:
        return embeddings.asked("sparse", self.terms, is_query=is_query)


class SIESparseEmbeddings(_Sparse):
    """Sparse embeddings with the methods of ``langchain_qdrant.SparseEmbeddings``.

    >>> QdrantVectorStore(..., sparse_embedding=SIESparseEmbeddings(model="BAAI/bge-m3"))
    """

    def embed_documents(self, texts: list[str]) -> list[SparseVector]:
        """One vector for each text."""
        return self._encode(texts, is_query=False)

    def embed_query(self, text: str) -> SparseVector:
        """The vector of a search query."""
        return self._encode([text], is_query=True)[0]

    async def aembed_documents(self, texts: list[str]) -> list[SparseVector]:
        """:meth:`embed_documents`, awaited."""
        return await self._aencode(texts, is_query=False)

    async def aembed_query(self, text: str) -> SparseVector:
        """:meth:`embed_query`, awaited."""
        return (await self._aencode([text], is_query=True))[0]


class SIESparseEncoder(_Sparse):
    """Sparse embeddings with the methods that LangChain's Pinecone hybrid retriever calls."""

    def encode_documents(self, texts: str | list[str]) -> Any:
        """``{"indices": [...], "values": [...]}`` for a text, a list of them for a list."""
        return self._maps(texts, is_query=False)

    def encode_queries(self, texts: str | list[str]) -> Any:
        """The same for search queries."""
        return self._maps(texts, is_query=True)

    def _maps(self, texts: str | list[str], *, is_query: bool) -> Any:
        vectors = self._encode([texts] if isinstance(texts, str) else texts, is_query=is_query)
        maps = [vector._asdict() for vector in vectors]
        return maps[0] if isinstance(texts, str) else maps


class SIEReranker(BaseDocumentCompressor, Connected):
    """Orders retrieved documents by how well they answer the query; ``metadata["relevance_score"]`` has the score.

    >>> ContextualCompressionRetriever(base_compressor=SIEReranker(model=..., top_n=3), base_retriever=retriever)
    """

    model_config = STRICT

    model: str = Field(description="A reranker of the server.")
    top_n: int | None = Field(
        default=None,
        ge=0,
        validation_alias=AliasChoices("top_n", "top_k"),
        description="How many documents are kept; default: all of them.",
    )
    instruction: str | None = Field(default=None, description="What counts as relevant, for models trained with one.")

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """The documents, best first. They are copies."""
        texts = [document.page_content for document in documents]
        scores = self.connection.score(self.model, query, texts, **self._asked())
        return self._best(documents, scores)

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """:meth:`compress_documents`, awaited."""
        texts = [document.page_content for document in documents]
        scores = await self.connection.ascore(self.model, query, texts, **self._asked())
        return self._best(documents, scores)

    def _asked(self) -> CallKeywords:
        return {**self.terms, "instruction": self.instruction}

    def _best(self, documents: Sequence[Document], scores: Sequence[tuple[int, float]]) -> list[Document]:
        return [
            documents[index].model_copy(update={"metadata": documents[index].metadata | {"relevance_score": score}})
            for index, score in scores[: self.top_n]
        ]


class ExtractInput(BaseModel):
    """What a language model fills in to call the tool."""

    text: str = Field(description="The text to look into.")


class SIEExtractor(BaseTool, Connected):
    """A tool that finds entities in a text, or classifies it.

    >>> SIEExtractor(model="dslim/distilbert-NER").invoke("Ada Lovelace lived in London.")["entities"]
    """

    model_config = STRICT

    name: str = "sie_extract"
    description: str = (
        "Finds labelled entities (people, places, organisations and so on) in a text, or the labels of the whole text. "
        "Returns lists of entities, classifications, relations and objects."
    )
    args_schema: type[BaseModel] = ExtractInput
    model: str = Field(description="An extraction model of the server.")
    labels: list[str] | None = Field(
        default=None,
        description="What a zero-shot model is to look for; of a model with labels of its own, which of them to keep.",
    )
    instruction: str | None = Field(default=None, description="For models that were trained with one.")

    def _run(self, text: str, run_manager: CallbackManagerForToolRun | None = None) -> dict[str, Any]:
        return found(self.connection.extract(self.model, text, **self._asked()))

    async def _arun(self, text: str, run_manager: AsyncCallbackManagerForToolRun | None = None) -> dict[str, Any]:
        return found(await self.connection.aextract(self.model, text, **self._asked()))

    def _asked(self) -> ExtractKeywords:
        return {**self.terms, "labels": self.labels, "output_schema": None, "instruction": self.instruction}
