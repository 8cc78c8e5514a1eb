"""LangChain's own standard tests on our parts, and what they compute beside our own client. Run by its environment's
pytest, with the server in SIE_URL and its models in SIE_DENSE, SIE_RANDOM, SIE_RERANKER and SIE_TAGGER.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import pickle

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_qdrant import QdrantVectorStore, RetrievalMode
from langchain_tests.integration_tests import EmbeddingsIntegrationTests, ToolsIntegrationTests
from langchain_tests.unit_tests import EmbeddingsUnitTests, ToolsUnitTests
from pydantic import ValidationError
from qdrant_client import QdrantClient, models

from sie_sdk import ConfigurationError, Item, ModelNotFoundError, SIEAsyncClient, SIEClient
from sie_sdk.integrations.langchain import (
    SIEEmbeddings,
    SIEExtractor,
    SIEReranker,
    SIESparseEmbeddings,
    SIESparseEncoder,
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


class TestStandardEmbeddingsUnit(EmbeddingsUnitTests):
    embeddings_class = SIEEmbeddings
    embedding_model_params = {"model": DENSE}  # noqa: RUF012
    init_from_env_params = (
        {"SIE_API_KEY": "k-1", "SIE_BASE_URL": URL},
        {"model": DENSE},
        {"api_key": "k-1", "base_url": URL},
    )


class TestStandardEmbeddings(EmbeddingsIntegrationTests):
    embeddings_class = SIEEmbeddings
    embedding_model_params = {"model": DENSE, "base_url": URL}  # noqa: RUF012


class TestStandardToolUnit(ToolsUnitTests):
    tool_constructor = SIEExtractor
    tool_constructor_params = {"model": TAGGER}  # noqa: RUF012
    tool_invoke_params_example = {"text": SENTENCE}  # noqa: RUF012
    init_from_env_params = ({"SIE_API_KEY": "k-1"}, {"model": TAGGER}, {"api_key": "k-1"})


class TestStandardTool(ToolsIntegrationTests):
    tool_constructor = SIEExtractor
    tool_constructor_params = {"model": TAGGER, "base_url": URL}  # noqa: RUF012
    tool_invoke_params_example = {"text": SENTENCE}  # noqa: RUF012


@pytest.mark.parametrize("model", [DENSE, RANDOM])
def test_documents_and_queries_have_the_vectors_of_our_own_client(client, model):
    embeddings = SIEEmbeddings(model=model, base_url=URL)
    documents = [result.dense for result in client.encode(model, TEXTS, output_types=["dense"], is_query=False)]
    query = client.encode(model, TEXTS[0], output_types=["dense"], is_query=True).dense
    np.testing.assert_allclose(embeddings.embed_documents(TEXTS), documents, atol=1e-5)
    np.testing.assert_allclose(embeddings.embed_query(TEXTS[0]), query, atol=1e-5)
    # The random model has a prompt for queries.
    assert np.allclose(query, documents[0], atol=1e-3) == (model == DENSE)


def test_awaited_calls_give_the_same_in_one_event_loop_after_the_other():
    embeddings = SIEEmbeddings(model=RANDOM, base_url=URL)

    async def both():
        found = await asyncio.gather(embeddings.aembed_documents(TEXTS), embeddings.aembed_query(TEXTS[0]))
        await embeddings.aclose()
        return found

    for _ in range(2):
        documents, query = asyncio.run(both())
        np.testing.assert_allclose(documents, embeddings.embed_documents(TEXTS), atol=1e-5)
        np.testing.assert_allclose(query, embeddings.embed_query(TEXTS[0]), atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "least"), [("float16", 0.9999), ("int8", 0.999), ("uint8", 0.999), ("binary", 0.7), ("ubinary", 0.7)]
)
def test_vectors_are_floats_whatever_number_format_they_travel_in(dtype, least):
    exact = np.array(SIEEmbeddings(model=DENSE, base_url=URL).embed_query("hello"))
    vector = SIEEmbeddings(model=DENSE, base_url=URL, output_dtype=dtype).embed_query("hello")
    assert len(vector) == 384 and all(isinstance(number, float) for number in vector)
    assert exact @ vector / np.linalg.norm(exact) / np.linalg.norm(vector) > least


def test_dimensions_instructions_and_options_reach_the_server(client):
    shorter = SIEEmbeddings(model=RANDOM, base_url=URL, dimensions=8).embed_query("hello")
    assert len(shorter) == 8 and np.linalg.norm(shorter) == pytest.approx(1, abs=1e-4)
    told = SIEEmbeddings(model=RANDOM, base_url=URL, instruction="ship ", query_instruction="coffee ")
    plain = client.encode(RANDOM, ["ship hello", "coffee hello"], output_types=["dense"])
    np.testing.assert_allclose(told.embed_documents(["hello"])[0], plain[0].dense, atol=1e-5)
    np.testing.assert_allclose(told.embed_query("hello"), plain[1].dense, atol=1e-5)
    with pytest.raises(Exception, match="overflow_policy"):
        SIEEmbeddings(model=RANDOM, base_url=URL, options={"overflow_policy": "shrug"}).embed_query("hello")


def test_no_texts_make_no_request():
    assert SIEEmbeddings(model=DENSE, base_url=NOWHERE).embed_documents([]) == []
    assert SIEReranker(model=RERANKER, base_url=NOWHERE).compress_documents([], "anything") == []


def test_a_thousand_texts_come_back_in_order():
    embeddings = SIEEmbeddings(model=RANDOM, base_url=URL)
    vectors = embeddings.embed_documents([TEXTS[number % 4] for number in range(1000)])
    np.testing.assert_allclose(vectors, np.tile(vectors[:4], (250, 1)), atol=1e-5)


def test_a_client_that_is_given_is_used_and_stays_open(client):
    embeddings = SIEEmbeddings(model=DENSE, base_url=NOWHERE, client=client)
    assert embeddings.base_url == URL
    query = embeddings.embed_query("hello")
    np.testing.assert_allclose(asyncio.run(embeddings.aembed_query("hello")), query, atol=1e-5)
    embeddings.close()
    assert client.encode(DENSE, "hello").dense is not None


async def test_an_async_client_alone_serves_awaited_calls_only():
    async with SIEAsyncClient(URL) as own:
        embeddings = SIEEmbeddings(model=DENSE, async_client=own)
        assert len(await embeddings.aembed_query("hello")) == 384
        with pytest.raises(ConfigurationError, match="client"):
            embeddings.embed_query("hello")


def test_after_close_the_next_call_connects_again():
    embeddings = SIEEmbeddings(model=DENSE, base_url=URL)
    first = embeddings.embed_query("hello")
    embeddings.close()
    assert embeddings.embed_query("hello") == pytest.approx(first, abs=1e-5)


@pytest.mark.parametrize("made", [SIEEmbeddings, SIESparseEmbeddings, SIEReranker, SIEExtractor])
def test_the_key_is_in_no_print_and_no_dump_and_goes_along_into_a_copy(made):
    part = made(model=DENSE, base_url=URL, api_key="s3cret")
    assert part.connection is part.connection
    assert "s3cret" not in repr(part) + str(part) + str(part.model_dump())
    for other in (copy.deepcopy(part), pickle.loads(pickle.dumps(part))):
        assert other.api_key.get_secret_value() == "s3cret"
        assert other.connection is not part.connection


def test_a_copy_of_one_that_was_used_works():
    embeddings = SIEEmbeddings(model=DENSE, base_url=URL)
    vector = embeddings.embed_query("hello")
    for other in (copy.deepcopy(embeddings), pickle.loads(pickle.dumps(embeddings))):
        assert other.embed_query("hello") == pytest.approx(vector, abs=1e-5)


def test_errors_are_those_of_our_own_client():
    with pytest.raises(ModelNotFoundError) as told:
        SIEEmbeddings(model="all-minilm-l6-v9", base_url=URL).embed_query("hello")
    assert DENSE in told.value.details["nearest"]


def test_a_parameter_that_does_not_exist_is_refused():
    with pytest.raises(ValidationError, match="gpu"):
        SIEEmbeddings(model=DENSE, gpu="l4")
    with pytest.raises(ValidationError, match="gpu"):
        SIEExtractor(model=DENSE, gpu="l4")
    with pytest.raises(ValidationError, match="gpu"):
        SIEReranker(model=DENSE, gpu="l4")


def test_a_vector_store_finds_the_nearest_text():
    store = InMemoryVectorStore.from_texts(["Rates rose.", "A cat sits."], SIEEmbeddings(model=DENSE, base_url=URL))
    (found,) = store.similarity_search("A kitten rests.", k=1)
    assert found.page_content == "A cat sits."


@pytest.mark.parametrize("awaited", [False, True])
def test_the_reranker_orders_documents_by_the_client_s_scores(client, awaited):
    documents = [Document(text, id=f"d{number}", metadata={"at": number}) for number, text in enumerate(PASSAGES)]
    scores = client.score(RERANKER, QUERY, [Item(text=text) for text in PASSAGES]).scores
    reranker = SIEReranker(model=RERANKER, base_url=URL)
    best = (
        asyncio.run(reranker.acompress_documents(documents, QUERY))
        if awaited
        else reranker.compress_documents(documents, QUERY)
    )
    assert [document.metadata["at"] for document in best] == [entry.index for entry in scores]
    assert [document.id for document in best] == [f"d{entry.index}" for entry in scores]
    assert [document.metadata["relevance_score"] for document in best] == pytest.approx(
        [entry.score for entry in scores], abs=1e-3
    )
    assert all("relevance_score" not in document.metadata for document in documents)


@pytest.mark.parametrize("name", ["top_n", "top_k"])
def test_the_reranker_keeps_as_many_as_are_asked_for(name):
    reranker = SIEReranker(model=RERANKER, base_url=URL, **{name: 1})
    (best,) = reranker.compress_documents([Document(text) for text in PASSAGES], QUERY)
    assert best.page_content == PASSAGES[1]


@pytest.mark.parametrize("awaited", [False, True])
def test_the_tool_finds_what_the_client_finds(client, awaited):
    tool = SIEExtractor(model=TAGGER, base_url=URL)
    found = asyncio.run(tool.ainvoke(SENTENCE)) if awaited else tool.invoke({"text": SENTENCE})
    expected = client.extract(TAGGER, SENTENCE).entities
    assert [(each["text"], each["label"], each["start"], each["end"]) for each in found["entities"]] == [
        (each.text, each.label, each.start, each.end) for each in expected
    ]
    assert {each["text"] for each in found["entities"]} == {"Ada Lovelace", "London"}
    assert found["relations"] == []


def test_a_language_model_s_tool_call_is_answered_with_a_message():
    call = {"type": "tool_call", "id": "1", "name": "sie_extract", "args": {"text": SENTENCE}}
    message = SIEExtractor(model=TAGGER, base_url=URL).invoke(call)
    assert {each["label"] for each in json.loads(message.content)["entities"]} == {"PER", "LOC"}


@pytest.mark.parametrize("awaited", [False, True])
def test_sparse_embeddings_are_those_of_the_client(client, awaited):
    sparse = SIESparseEmbeddings(model=RANDOM, base_url=URL)
    expected = [result.sparse for result in client.encode(RANDOM, TEXTS, output_types=["sparse"])]
    found = asyncio.run(sparse.aembed_documents(TEXTS)) if awaited else sparse.embed_documents(TEXTS)
    for vector, own in zip(found, expected, strict=True):
        assert vector.indices == own.indices.tolist()
        assert vector.values == pytest.approx(own.values.tolist(), abs=1e-5)
    query = asyncio.run(sparse.aembed_query(TEXTS[1])) if awaited else sparse.embed_query(TEXTS[1])
    assert (
        query.indices == client.encode(RANDOM, TEXTS[1], output_types=["sparse"], is_query=True).sparse.indices.tolist()
    )


def test_a_sparse_qdrant_store_ranks_by_the_dot_product(client):
    qdrant = QdrantClient(":memory:")
    qdrant.create_collection("texts", sparse_vectors_config={"langchain-sparse": models.SparseVectorParams()})
    store = QdrantVectorStore(
        qdrant,
        "texts",
        retrieval_mode=RetrievalMode.SPARSE,
        sparse_embedding=SIESparseEmbeddings(model=RANDOM, base_url=URL),
    )
    texts = ["hello world", "the ship sails past the lighthouse", "a lighthouse"]
    store.add_texts(texts)

    def weights(text, is_query=False):
        made = client.encode(RANDOM, text, output_types=["sparse"], is_query=is_query).sparse
        return np.bincount(made.indices, made.values, minlength=made.dims)

    found = store.similarity_search_with_score("ship lighthouse", k=1)[0]
    products = [weights(text) @ weights("ship lighthouse", is_query=True) for text in texts]
    assert found[0].page_content == texts[int(np.argmax(products))]
    assert found[1] == pytest.approx(max(products), abs=1e-3)


def test_the_sparse_encoder_answers_in_maps_one_for_a_text_and_a_list_for_a_list():
    encoder = SIESparseEncoder(model=RANDOM, base_url=URL)
    (only,) = encoder.encode_documents(["hello world"])
    assert only == encoder.encode_documents("hello world")
    assert set(only) == {"indices", "values"} and len(only["indices"]) == len(only["values"]) > 0
    assert encoder.encode_queries("hello world") == encoder.encode_queries(["hello world"])[0]
