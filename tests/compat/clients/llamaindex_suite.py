"""Our parts in LlamaIndex, by its conventions, and what they compute beside our own client. Run by its environment's
pytest, with the server in SIE_URL and its models in SIE_DENSE, SIE_RANDOM, SIE_RERANKER and SIE_TAGGER.
"""

from __future__ import annotations

import asyncio
import copy
import os
import pickle

import numpy as np
import pytest
from llama_index.core import MockEmbedding, Settings, StorageContext, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import Document, MetadataMode, NodeWithScore, TextNode
from llama_index.core.storage.kvstore import SimpleKVStore
from llama_index.core.vector_stores.types import VectorStoreQueryMode
from llama_index.vector_stores.qdrant import QdrantVectorStore
from pydantic import ValidationError
from qdrant_client import QdrantClient

from sie_sdk import InvalidInputError, Item, ModelNotFoundError, SIEClient
from sie_sdk.integrations.llamaindex import (
    SIEEmbedding,
    SIENodePostprocessor,
    SIESparseEmbeddingFunction,
    create_sie_extractor_tool,
)

URL, DENSE, RANDOM, RERANKER, TAGGER = (
    os.environ[f"SIE_{name}"] for name in ("URL", "DENSE", "RANDOM", "RERANKER", "TAGGER")
)
TEXTS = ["hello world", "the ship sails past the lighthouse", "", "coffee"]
QUERY, PASSAGES = "how many people live in Berlin?", ["Rome is old.", "Berlin has 3.5 million inhabitants.", "Paris."]
SENTENCE = "Ada Lovelace lived in London."
NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def client():
    with SIEClient(URL) as client:
        yield client


def nodes():
    return [
        NodeWithScore(node=TextNode(text=text, metadata={"at": number}), score=0.5)
        for number, text in enumerate(PASSAGES)
    ]


@pytest.mark.parametrize("model", [DENSE, RANDOM])
@pytest.mark.parametrize("awaited", [False, True])
def test_texts_and_queries_have_the_vectors_of_our_own_client(client, model, awaited):
    embedding = SIEEmbedding(model_name=model, base_url=URL)
    if awaited:
        texts = asyncio.run(embedding.aget_text_embedding_batch(TEXTS))
        text, query = (
            asyncio.run(embedding.aget_text_embedding("ship")),
            asyncio.run(embedding.aget_query_embedding("ship")),
        )
    else:
        texts = embedding.get_text_embedding_batch(TEXTS)
        text, query = embedding.get_text_embedding("ship"), embedding.get_query_embedding("ship")
    expected = [
        result.dense for result in client.encode(model, [*TEXTS, "ship"], is_query=False, output_types=["dense"])
    ]
    np.testing.assert_allclose([*texts, text], expected, atol=1e-5)
    expected = client.encode(model, "ship", is_query=True, output_types=["dense"]).dense
    np.testing.assert_allclose(query, expected, atol=1e-5)
    # The random model has a prompt for queries.
    assert np.allclose(query, text, atol=1e-3) == (model == DENSE)


@pytest.mark.parametrize("dtype", ["float16", "int8", "uint8", "binary"])
def test_vectors_are_floats_whatever_number_format_they_travel_in(dtype):
    embedding = SIEEmbedding(model_name=DENSE, base_url=URL, output_dtype=dtype)
    exact = SIEEmbedding(model_name=DENSE, base_url=URL).get_text_embedding("hello")
    assert embedding.similarity(exact, embedding.get_text_embedding("hello")) > (0.7 if dtype == "binary" else 0.999)


def test_dimensions_and_instructions_reach_the_server(client):
    assert len(SIEEmbedding(model_name=RANDOM, base_url=URL, dimensions=8).get_text_embedding("hello")) == 8
    told = SIEEmbedding(model_name=RANDOM, base_url=URL, instruction="ship ", query_instruction="coffee ")
    plain = client.encode(RANDOM, ["ship hello", "coffee hello"], output_types=["dense"])
    np.testing.assert_allclose(told.get_text_embedding("hello"), plain[0].dense, atol=1e-5)
    np.testing.assert_allclose(told.get_query_embedding("hello"), plain[1].dense, atol=1e-5)


def test_nodes_are_embedded_with_the_metadata_they_show_to_embedding_models(client):
    node = TextNode(
        text="A cat sits.", metadata={"title": "Cats", "secret": "x"}, excluded_embed_metadata_keys=["secret"]
    )
    (embedded,) = SIEEmbedding(model_name=DENSE, base_url=URL)([node])
    shown = node.get_content(metadata_mode=MetadataMode.EMBED)
    assert "Cats" in shown and "secret" not in shown
    np.testing.assert_allclose(embedded.embedding, client.encode(DENSE, shown).dense, atol=1e-5)


def test_an_index_with_embedding_and_reranker_answers_through_a_query_engine():
    documents = [Document(text=text) for text in PASSAGES]
    index = VectorStoreIndex.from_documents(documents, embed_model=SIEEmbedding(model_name=DENSE, base_url=URL))
    reranker = SIENodePostprocessor(model=RERANKER, base_url=URL, top_n=1)
    engine = index.as_query_engine(llm=MockLLM(), similarity_top_k=3, node_postprocessors=[reranker])
    for response in (engine.query(QUERY), asyncio.run(engine.aquery(QUERY))):
        (source,) = response.source_nodes
        assert source.text == PASSAGES[1]
        assert PASSAGES[1] in str(response)


def test_an_ingestion_pipeline_keeps_what_it_computed():
    embedding = SIEEmbedding(model_name=DENSE, base_url=URL)
    pipeline = IngestionPipeline(transformations=[SentenceSplitter(), embedding])
    first = pipeline.run(documents=[Document(text="A cat sits.", id_="1")])
    embedding.base_url = NOWHERE
    embedding.close()
    assert len(first[0].embedding) == 384
    unchanged = IngestionPipeline(
        transformations=[SentenceSplitter(), SIEEmbedding(model_name=DENSE, base_url=URL)], cache=pipeline.cache
    )
    assert unchanged.run(documents=[Document(text="A cat sits.", id_="1")])[0].embedding == first[0].embedding


def test_the_framework_s_cache_of_embeddings_is_asked_first():
    kept = SimpleKVStore()
    vector = SIEEmbedding(model_name=DENSE, base_url=URL, embeddings_cache=kept).get_text_embedding("hello")
    assert SIEEmbedding(model_name=DENSE, base_url=NOWHERE, embeddings_cache=kept).get_text_embedding("hello") == vector


def test_it_can_be_the_embedding_of_the_settings():
    Settings.embed_model = SIEEmbedding(model_name=DENSE, base_url=URL)
    try:
        assert Settings.embed_model.model_name == DENSE
    finally:
        Settings.embed_model = MockEmbedding(embed_dim=3)


@pytest.mark.parametrize(
    "part",
    [
        SIEEmbedding(model_name=DENSE, base_url=URL, api_key="s3cret", dimensions=384),
        SIESparseEmbeddingFunction(model_name=RANDOM, base_url=URL, api_key="s3cret"),
        SIENodePostprocessor(model=RERANKER, base_url=URL, api_key="s3cret", top_n=2),
    ],
    ids=lambda part: part.class_name(),
)
def test_a_dump_makes_an_equal_part_and_holds_no_key(part):
    dump = part.model_dump()
    dump.pop("class_name")
    again = type(part)(**dump)
    assert "s3cret" not in repr(part) + str(part) + str(dump) + part.model_dump_json()
    assert again.model_dump() == part.model_dump()
    assert again.api_key is None
    if hasattr(part, "to_dict"):
        assert type(part).from_dict(part.to_dict()).model_dump() == part.model_dump()
        assert type(part).from_json(part.to_json()).model_dump() == part.model_dump()
    if hasattr(part, "to_payload"):
        assert "s3cret" not in str(part.to_payload())
    for other in (copy.deepcopy(part), pickle.loads(pickle.dumps(part))):
        assert other.model_dump() == part.model_dump()
        assert other.api_key.get_secret_value() == "s3cret"


def test_a_pickle_of_one_that_was_used_works():
    embedding = SIEEmbedding(model_name=DENSE, base_url=URL)
    vector = embedding.get_text_embedding("hello")
    other = pickle.loads(pickle.dumps(embedding))
    assert other.get_text_embedding("hello") == pytest.approx(vector, abs=1e-5)


def test_errors_are_those_of_our_own_client():
    with pytest.raises(ModelNotFoundError):
        SIEEmbedding(model_name="all-minilm-l6-v9", base_url=URL).get_text_embedding("hello")
    with pytest.raises(InvalidInputError, match="query"):
        SIENodePostprocessor(model=RERANKER, base_url=URL).postprocess_nodes(nodes())


@pytest.mark.parametrize("made", [SIEEmbedding, SIESparseEmbeddingFunction, SIENodePostprocessor])
def test_a_parameter_that_does_not_exist_is_refused(made):
    with pytest.raises(ValidationError, match="gpu"):
        made(model=DENSE, model_name=DENSE, gpu="l4")


def test_a_client_that_is_given_is_used_and_stays_open(client):
    embedding = SIEEmbedding(model_name=DENSE, client=client)
    assert embedding.base_url == URL
    vector = embedding.get_query_embedding("hello")
    np.testing.assert_allclose(asyncio.run(embedding.aget_query_embedding("hello")), vector, atol=1e-5)
    embedding.close()
    assert client.encode(DENSE, "hello").dense is not None


@pytest.mark.parametrize("awaited", [False, True])
def test_the_postprocessor_orders_nodes_by_the_client_s_scores(client, awaited):
    given = nodes()
    shown = [node.get_content(metadata_mode=MetadataMode.EMBED) for node in given]
    scores = client.score(RERANKER, QUERY, [Item(text=text) for text in shown]).scores
    reranker = SIENodePostprocessor(model=RERANKER, base_url=URL)
    ranked = (
        asyncio.run(reranker.apostprocess_nodes(given, query_str=QUERY))
        if awaited
        else reranker.postprocess_nodes(given, query_str=QUERY)
    )
    assert [node.metadata["at"] for node in ranked] == [entry.index for entry in scores]
    assert [node.score for node in ranked] == pytest.approx([entry.score for entry in scores], abs=1e-3)
    assert {node.score for node in given} == {0.5}
    assert (
        len(SIENodePostprocessor(model=RERANKER, base_url=URL, top_n=2).postprocess_nodes(given, query_str=QUERY)) == 2
    )
    assert reranker.postprocess_nodes([], query_str=QUERY) == []


def test_the_postprocessor_can_leave_metadata_out(client):
    reranker = SIENodePostprocessor(model=RERANKER, base_url=URL, metadata_mode=MetadataMode.NONE)
    best = reranker.postprocess_nodes(nodes(), query_str=QUERY)[0]
    assert best.score == pytest.approx(client.score(RERANKER, QUERY, PASSAGES).scores[0].score, abs=1e-3)


def test_callbacks_hear_of_a_reranking():
    heard = LlamaDebugHandler(print_trace_on_end=False)
    reranker = SIENodePostprocessor(model=RERANKER, base_url=URL, callback_manager=CallbackManager([heard]))
    reranker.postprocess_nodes(nodes(), query_str=QUERY)
    (pair,) = heard.get_event_pairs(CBEventType.RERANKING)
    assert pair[0].payload["query_str"] == QUERY
    assert pair[1].payload["nodes"][0].text == PASSAGES[1]


@pytest.mark.parametrize("awaited", [False, True])
def test_sparse_embeddings_are_those_of_the_client(client, awaited):
    sparse = SIESparseEmbeddingFunction(model_name=RANDOM, base_url=URL)
    expected = [result.sparse for result in client.encode(RANDOM, TEXTS, output_types=["sparse"])]
    found = asyncio.run(sparse.aget_text_embedding_batch(TEXTS)) if awaited else sparse.get_text_embedding_batch(TEXTS)
    for vector, own in zip(found, expected, strict=True):
        assert vector == pytest.approx(dict(zip(own.indices.tolist(), own.values.tolist(), strict=True)), abs=1e-5)
    query = asyncio.run(sparse.aget_query_embedding("ship")) if awaited else sparse.get_query_embedding("ship")
    own = client.encode(RANDOM, "ship", output_types=["sparse"], is_query=True).sparse
    assert query == pytest.approx(dict(zip(own.indices.tolist(), own.values.tolist(), strict=True)), abs=1e-5)
    indices, values = sparse.encode_documents(TEXTS)
    assert [
        dict(zip(*pair, strict=True)) for pair in zip(indices, values, strict=True)
    ] == sparse.get_text_embedding_batch(TEXTS)


def test_a_hybrid_qdrant_index_finds_the_text_that_shares_words():
    sparse = SIESparseEmbeddingFunction(model_name=RANDOM, base_url=URL)
    store = QdrantVectorStore(
        "texts",
        client=QdrantClient(":memory:"),
        enable_hybrid=True,
        sparse_doc_fn=sparse.encode_documents,
        sparse_query_fn=sparse.encode_queries,
    )
    index = VectorStoreIndex(
        [TextNode(text=text) for text in TEXTS if text],
        storage_context=StorageContext.from_defaults(vector_store=store),
        embed_model=SIEEmbedding(model_name=DENSE, base_url=URL),
    )
    retriever = index.as_retriever(
        vector_store_query_mode=VectorStoreQueryMode.SPARSE, sparse_top_k=1, similarity_top_k=1
    )
    query = sparse.get_query_embedding(TEXTS[1])
    products = [sparse.similarity(vector, query) for vector in sparse.get_text_embedding_batch(TEXTS)]
    assert np.argmax(products) == 1
    assert retriever.retrieve(TEXTS[1])[0].text == TEXTS[1]


@pytest.mark.parametrize("awaited", [False, True])
def test_the_tool_finds_what_the_client_finds(client, awaited):
    tool = create_sie_extractor_tool(TAGGER, base_url=URL)
    found = (asyncio.run(tool.acall(text=SENTENCE)) if awaited else tool.call(text=SENTENCE)).raw_output
    expected = client.extract(TAGGER, SENTENCE).entities
    assert [(each["text"], each["label"], each["start"], each["end"]) for each in found["entities"]] == [
        (each.text, each.label, each.start, each.end) for each in expected
    ]
    assert tool.metadata.name == "sie_extract"
    assert set(tool.metadata.get_parameters_dict()["properties"]) == {"text"}
