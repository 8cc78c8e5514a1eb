"""The parts of LlamaIndex: an embedding, a sparse embedding, a node postprocessor that reranks, an extraction tool.

    pip install '.[llamaindex]'  # in a clone

Owns LlamaIndex's shapes and what its callbacks are told. Not here: fields (``fields``), calls (``connection``), arrays
(``embeddings``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sie_sdk.integrations import absent

try:
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.base.embeddings.base_sparse import BaseSparseEmbedding, SparseEmbedding
    from llama_index.core.callbacks import CBEventType, EventPayload
    from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
    from llama_index.core.tools import FunctionTool
    from llama_index_instrumentation import get_dispatcher
    from pydantic import ConfigDict, Field
except ImportError as error:
    raise absent("LlamaIndex", "llamaindex", error) from error

from sie_sdk.client import SIEAsyncClient, SIEClient
from sie_sdk.errors import InvalidInputError
from sie_sdk.integrations import embeddings
from sie_sdk.integrations.connection import Connection, found
from sie_sdk.integrations.fields import Connected, Embedding
from sie_sdk.keywords import CallKeywords, EncodeKeywords, ExtractKeywords

__all__ = ["SIEEmbedding", "SIENodePostprocessor", "SIESparseEmbeddingFunction", "create_sie_extractor_tool"]

STRICT = ConfigDict(extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())

MOST_TEXTS = 2048
"""LlamaIndex's largest batch; the client itself sends it in parts that suit the server."""

dispatcher = get_dispatcher(__name__)


class SIEEmbedding(BaseEmbedding, Embedding):
    """Dense embeddings of nodes, with the metadata they show to embedding models, and of queries.

    >>> Settings.embed_model = SIEEmbedding(model_name="sentence-transformers/all-MiniLM-L6-v2")
    """

    model_config = STRICT

    model_name: str = Field(description="A dense model of the server.")
    embed_batch_size: int = Field(default=MOST_TEXTS, gt=0, le=MOST_TEXTS, description="Texts given to a call at most.")

    @classmethod
    def class_name(cls) -> str:
        """What LlamaIndex calls it in dumps."""
        return "SIEEmbedding"

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return embeddings.dense(self.connection.encode(self.model_name, texts, **self.asked(is_query=False)))

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return embeddings.dense(await self.connection.aencode(self.model_name, texts, **self.asked(is_query=False)))

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aget_text_embeddings([text]))[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return embeddings.dense(self.connection.encode(self.model_name, [query], **self.asked(is_query=True)))[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        asked = self.asked(is_query=True)
        return embeddings.dense(await self.connection.aencode(self.model_name, [query], **asked))[0]


class SIESparseEmbeddingFunction(BaseSparseEmbedding, Connected):
    """Sparse embeddings: maps of place to value, and the two functions that LlamaIndex's vector stores take.

    >>> sparse = SIESparseEmbeddingFunction(model_name="BAAI/bge-m3")
    >>> QdrantVectorStore(..., sparse_doc_fn=sparse.encode_documents, sparse_query_fn=sparse.encode_queries)
    """

    model_config = STRICT

    model_name: str = Field(description="A sparse model of the server.")
    embed_batch_size: int = Field(default=MOST_TEXTS, gt=0, le=MOST_TEXTS, description="Texts given to a call at most.")

    @classmethod
    def class_name(cls) -> str:
        """What LlamaIndex calls it in dumps."""
        return "SIESparseEmbeddingFunction"

    def encode_documents(self, texts: list[str]) -> tuple[list[list[int]], list[list[float]]]:
        """The places of each text's vector, and the values of each."""
        vectors = self._vectors(texts, is_query=False)
        return [indices for indices, _ in vectors], [values for _, values in vectors]

    def encode_queries(self, texts: list[str]) -> tuple[list[list[int]], list[list[float]]]:
        """The same for search queries."""
        vectors = self._vectors(texts, is_query=True)
        return [indices for indices, _ in vectors], [values for _, values in vectors]

    def _get_text_embeddings(self, texts: list[str]) -> list[SparseEmbedding]:
        return [_weights(vector) for vector in self._vectors(texts, is_query=False)]

    async def _aget_text_embeddings(self, texts: list[str]) -> list[SparseEmbedding]:
        return [_weights(vector) for vector in await self._avectors(texts, is_query=False)]

    def _get_text_embedding(self, text: str) -> SparseEmbedding:
        return self._get_text_embeddings([text])[0]

    async def _aget_text_embedding(self, text: str) -> SparseEmbedding:
        return (await self._aget_text_embeddings([text]))[0]

    def _get_query_embedding(self, query: str) -> SparseEmbedding:
        return _weights(self._vectors([query], is_query=True)[0])

    async def _aget_query_embedding(self, query: str) -> SparseEmbedding:
        return _weights((await self._avectors([query], is_query=True))[0])

    def _vectors(self, texts: Sequence[str], *, is_query: bool) -> list[tuple[list[int], list[float]]]:
        return embeddings.sparse(self.connection.encode(self.model_name, texts, **self._asked(is_query)))

    async def _avectors(self, texts: Sequence[str], *, is_query: bool) -> list[tuple[list[int], list[float]]]:
        return embeddings.sparse(await self.connection.aencode(self.model_name, texts, **self._asked(is_query)))

    def _asked(self, is_query: bool) -> EncodeKeywords:
        return embeddings.asked("sparse", self.terms, is_query=is_query)


class SIENodePostprocessor(BaseNodePostprocessor, Connected):
    """Reranks the nodes of a retriever by how well they answer the query.

    >>> index.as_query_engine(node_postprocessors=[SIENodePostprocessor(model=..., top_n=3)])
    """

    model_config = STRICT

    model: str = Field(description="A reranker of the server.")
    top_n: int | None = Field(default=None, ge=0, description="How many nodes are kept; default: all of them.")
    instruction: str | None = Field(default=None, description="What counts as relevant, for models trained with one.")
    metadata_mode: MetadataMode = Field(
        default=MetadataMode.EMBED, description="Which of a node's metadata is scored with its text."
    )

    @classmethod
    def class_name(cls) -> str:
        """What LlamaIndex calls it in dumps."""
        return "SIENodePostprocessor"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        with self._told(nodes, query_bundle) as (query, texts, kept):
            scores = self.connection.score(self.model, query, texts, **self._asked())
            kept.extend(NodeWithScore(node=nodes[index].node, score=score) for index, score in scores[: self.top_n])
        return kept

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        with self._told(nodes, query_bundle) as (query, texts, kept):
            scores = await self.connection.ascore(self.model, query, texts, **self._asked())
            kept.extend(NodeWithScore(node=nodes[index].node, score=score) for index, score in scores[: self.top_n])
        return kept

    def _asked(self) -> CallKeywords:
        return {**self.terms, "instruction": self.instruction}

    @contextmanager
    def _told(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None
    ) -> Iterator[tuple[str, list[str], list[NodeWithScore]]]:
        """The query, the nodes' texts and a list for those that are kept; LlamaIndex hears of beginning and end."""
        if query_bundle is None:
            raise InvalidInputError(
                "There is no query to rank the nodes by.", field="query_bundle", hint="Pass query_str or query_bundle."
            )
        top_n = len(nodes) if self.top_n is None else self.top_n
        dispatcher.event(ReRankStartEvent(query=query_bundle, nodes=nodes, top_n=top_n, model_name=self.model))
        payload: dict[str, Any] = {
            EventPayload.NODES: nodes,
            EventPayload.MODEL_NAME: self.model,
            EventPayload.QUERY_STR: query_bundle.query_str,
            EventPayload.TOP_K: top_n,
        }
        kept: list[NodeWithScore] = []
        with self.callback_manager.event(CBEventType.RERANKING, payload=payload) as event:
            yield query_bundle.query_str, [node.get_content(metadata_mode=self.metadata_mode) for node in nodes], kept
            event.on_end(payload={EventPayload.NODES: kept})
        dispatcher.event(ReRankEndEvent(nodes=kept))


def create_sie_extractor_tool(
    model: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    labels: Sequence[str] | None = None,
    instruction: str | None = None,
    options: dict[str, Any] | None = None,
    pool: str | None = None,
    timeout_s: float = 150.0,
    deadline_s: float = 300.0,
    client: SIEClient | None = None,
    async_client: SIEAsyncClient | None = None,
    name: str = "sie_extract",
    description: str | None = None,
) -> FunctionTool:
    """A tool that finds entities in a text, or classifies it; an agent may call it, blocking or awaited.

    Args:
        model: an extraction model of the server.
        labels: what a zero-shot model is to look for; of a model with labels of its own, which of them to keep.
        name: what the language model calls it.
        description: what the language model is told of it.

    The other parameters are those of the other parts.
    """
    connection = Connection(base_url, api_key, timeout_s, client, async_client)
    asked: ExtractKeywords = {"options": options, "deadline_s": deadline_s, "pool": pool}
    asked |= {"labels": labels, "instruction": instruction}

    def extract(text: str) -> dict[str, Any]:
        """Find labelled entities (people, places, organisations and so on) in a text, or the labels of the whole."""
        return found(connection.extract(model, text, **asked))

    async def aextract(text: str) -> dict[str, Any]:
        return found(await connection.aextract(model, text, **asked))

    return FunctionTool.from_defaults(fn=extract, async_fn=aextract, name=name, description=description)


def _weights(vector: tuple[list[int], list[float]]) -> SparseEmbedding:
    return dict(zip(*vector, strict=True))
