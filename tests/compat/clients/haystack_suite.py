"""Our components in Haystack, by its conventions, and what they compute beside our own client. Run by its environment's
pytest, with the server in SIE_URL and its models in SIE_DENSE, SIE_RANDOM, SIE_RERANKER and SIE_TAGGER.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from haystack import Document, Pipeline
from haystack.components.retrievers import InMemoryEmbeddingRetriever
from haystack.components.writers import DocumentWriter
from haystack.core.errors import DeserializationError
from haystack.dataclasses import SparseEmbedding
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.utils import Secret

from sie_sdk import InvalidInputError, ModelNotFoundError, SIEAsyncClient, SIEClient
from sie_sdk.integrations.haystack import (
    SIEDocumentEmbedder,
    SIEExtractor,
    SIERanker,
    SIESparseDocumentEmbedder,
    SIESparseTextEmbedder,
    SIETextEmbedder,
    component,
)

URL, DENSE, RANDOM, RERANKER, TAGGER = (
    os.environ[f"SIE_{name}"] for name in ("URL", "DENSE", "RANDOM", "RERANKER", "TAGGER")
)
COMPONENTS = [
    SIETextEmbedder,
    SIEDocumentEmbedder,
    SIESparseTextEmbedder,
    SIESparseDocumentEmbedder,
    SIERanker,
    SIEExtractor,
]
TEXTS = ["hello world", "the ship sails past the lighthouse", "", "coffee"]
QUERY, PASSAGES = "how many people live in Berlin?", ["Rome is old.", "Berlin has 3.5 million inhabitants.", "Paris."]
SENTENCE = "Ada Lovelace lived in London."


@pytest.fixture
def client():
    with SIEClient(URL) as client:
        yield client


@pytest.fixture(params=[False, True], ids=["blocking", "awaited"])
def run(request):
    """Runs a component either way, and closes it."""

    async def awaited(component, inputs):
        try:
            return await component.run_async(**inputs)
        finally:
            await component.close_async()

    def run(component, **inputs):
        if request.param:
            return asyncio.run(awaited(component, inputs))
        try:
            return component.run(**inputs)
        finally:
            component.close()

    return run


@pytest.mark.parametrize("model", [DENSE, RANDOM])
def test_texts_and_documents_have_the_vectors_of_our_own_client(client, model, run):
    text = run(SIETextEmbedder(model, URL), text=TEXTS[0])["embedding"]
    documents = run(SIEDocumentEmbedder(model, URL), documents=[Document(content=text) for text in TEXTS])["documents"]
    expected = [result.dense for result in client.encode(model, TEXTS, is_query=False, output_types=["dense"])]
    np.testing.assert_allclose([document.embedding for document in documents], expected, atol=1e-5)
    assert [document.content for document in documents] == TEXTS
    expected = client.encode(model, TEXTS[0], is_query=True, output_types=["dense"]).dense
    np.testing.assert_allclose(text, expected, atol=1e-5)
    # The random model has a prompt for queries.
    assert np.allclose(text, documents[0].embedding, atol=1e-3) == (model == DENSE)


def test_documents_that_come_in_are_left_as_they_are(run):
    given = Document(content="hello", meta={"a": 1})
    (embedded,) = run(SIEDocumentEmbedder(DENSE, URL), documents=[given])["documents"]
    assert given.embedding is None and embedded.embedding is not None
    assert (embedded.id, embedded.meta) == (given.id, given.meta)


def test_metadata_prefix_and_suffix_are_embedded_with_the_text(client, run):
    component = SIEDocumentEmbedder(
        DENSE,
        URL,
        prefix="<",
        suffix=">",
        meta_fields_to_embed=["title", "year", "absent", "empty"],
        embedding_separator=" | ",
    )
    document = Document(content="A cat sits.", meta={"title": "Cats", "year": 1999, "empty": None, "other": "x"})
    (embedded,) = run(component, documents=[document])["documents"]
    expected = client.encode(DENSE, ["<Cats | 1999 | A cat sits.>", "<hello>"])
    np.testing.assert_allclose(embedded.embedding, expected[0].dense, atol=1e-5)
    text = run(SIETextEmbedder(DENSE, URL, prefix="<", suffix=">"), text="hello")
    np.testing.assert_allclose(text["embedding"], expected[1].dense, atol=1e-5)


def test_dimensions_instruction_and_number_format_reach_the_server(client, run):
    assert len(run(SIETextEmbedder(RANDOM, URL, dimensions=8), text="hello")["embedding"]) == 8
    told = run(SIETextEmbedder(RANDOM, URL, instruction="ship "), text="hello")["embedding"]
    np.testing.assert_allclose(told, client.encode(RANDOM, "ship hello", output_types=["dense"]).dense, atol=1e-5)
    small = run(SIETextEmbedder(DENSE, URL, output_dtype="int8"), text="hello")["embedding"]
    assert np.dot(small, client.encode(DENSE, "hello").dense) > 0.999


def test_many_documents_are_embedded_in_order_while_a_bar_shows_how_many(capfd, run, monkeypatch):
    monkeypatch.setattr(component, "tqdm", functools.partial(component.tqdm, mininterval=0))
    documents = [Document(content=TEXTS[number % 4], id=str(number)) for number in range(1000)]
    found = run(SIEDocumentEmbedder(RANDOM, URL), documents=documents)["documents"]
    assert [document.id for document in found] == [document.id for document in documents]
    vectors = np.array([document.embedding for document in found])
    np.testing.assert_allclose(vectors, np.tile(vectors[:4], (250, 1)), atol=1e-5)
    shown = re.findall(r"(\d+)/1000", capfd.readouterr().err)
    assert {"0", "1000"} < set(shown)
    run(SIEDocumentEmbedder(RANDOM, URL, progress_bar=False), documents=documents)
    assert "1000" not in capfd.readouterr().err
    assert run(SIEDocumentEmbedder(DENSE, "http://127.0.0.1:1", progress_bar=False), documents=[]) == {"documents": []}


def test_sparse_embeddings_are_those_of_the_client(client, run):
    found = run(SIESparseDocumentEmbedder(RANDOM, URL), documents=[Document(content=text) for text in TEXTS])
    for document, result in zip(found["documents"], client.encode(RANDOM, TEXTS, output_types=["sparse"]), strict=True):
        assert isinstance(document.sparse_embedding, SparseEmbedding)
        assert document.sparse_embedding.indices == result.sparse.indices.tolist()
        assert document.sparse_embedding.values == pytest.approx(result.sparse.values.tolist(), abs=1e-5)
    text = run(SIESparseTextEmbedder(RANDOM, URL), text="ship")["sparse_embedding"]
    own = client.encode(RANDOM, "ship", output_types=["sparse"], is_query=True).sparse
    assert text.indices == own.indices.tolist()


def test_the_ranker_orders_documents_by_the_client_s_scores(client, run):
    documents = [Document(content=text, id=str(number)) for number, text in enumerate(PASSAGES)]
    scores = client.score(RERANKER, QUERY, PASSAGES).scores
    ranked = run(SIERanker(RERANKER, URL), query=QUERY, documents=[*documents, documents[0]])["documents"]
    assert [document.id for document in ranked] == [str(entry.index) for entry in scores]
    assert [document.score for document in ranked] == pytest.approx([entry.score for entry in scores], abs=1e-3)
    assert all(document.score is None for document in documents)


def test_the_ranker_keeps_as_many_as_are_asked_for(run):
    documents = [Document(content=text) for text in PASSAGES]
    component = SIERanker(RERANKER, URL, top_k=2)
    assert len(run(component, query=QUERY, documents=documents)["documents"]) == 2
    assert len(run(component, query=QUERY, documents=documents, top_k=1)["documents"]) == 1
    (best,) = run(SIERanker(RERANKER, URL, score_threshold=0.0), query=QUERY, documents=documents)["documents"]
    assert best.content == PASSAGES[1]
    assert run(component, query=QUERY, documents=[]) == {"documents": []}
    with pytest.raises(InvalidInputError, match="top_k"):
        run(component, query=QUERY, documents=documents, top_k=0)


def test_the_ranker_scores_the_metadata_that_is_named(client, run):
    component = SIERanker(RERANKER, URL, meta_fields_to_embed=["title"], embedding_separator=": ")
    (ranked,) = run(component, query=QUERY, documents=[Document(content="Many.", meta={"title": "Berlin"})])[
        "documents"
    ]
    own = client.score(RERANKER, QUERY, ["Berlin: Many."]).scores[0].score
    assert ranked.score == pytest.approx(own, abs=1e-3)


def test_the_extractor_finds_what_the_client_finds(client, run):
    found = run(SIEExtractor(TAGGER, URL), text=SENTENCE)
    expected = client.extract(TAGGER, SENTENCE).entities
    assert [(each.text, each.label, each.start, each.end) for each in found["entities"]] == [
        (each.text, each.label, each.start, each.end) for each in expected
    ]
    assert [each.label for each in found["entities"]] == ["PER", "LOC"]
    assert found["classifications"] == found["relations"] == found["objects"] == []


@pytest.mark.parametrize("made", COMPONENTS)
def test_a_component_that_was_saved_is_the_same_one_again(made):
    component = made(DENSE, URL, pool="team-a", timeout_s=7.0, deadline_s=9.0, options={"overflow_policy": "error"})
    saved = component.to_dict()
    assert saved["init_parameters"]["api_key"] == {"type": "env_var", "env_vars": ["SIE_API_KEY"], "strict": False}
    assert saved["init_parameters"]["options"] == {"overflow_policy": "error"}
    assert made.from_dict(saved).to_dict() == saved
    pipeline = pipeline_of(component).to_dict()
    assert Pipeline.from_dict(pipeline).to_dict() == pipeline


@pytest.mark.parametrize("made", COMPONENTS)
def test_every_parameter_of_a_component_is_saved(made):
    parameters = set(inspect.signature(made.__init__).parameters) - {"self", "client", "async_client"}
    assert parameters == set(made(DENSE).to_dict()["init_parameters"])


@pytest.mark.parametrize("made", COMPONENTS)
def test_a_key_is_in_no_print_and_no_saved_component(made, monkeypatch):
    token = made(DENSE, api_key=Secret.from_token("s3cret"))
    assert "s3cret" not in repr(token)
    with pytest.raises(ValueError, match="token"):
        token.to_dict()
    monkeypatch.setenv("SIE_API_KEY", "s3cret")
    assert "s3cret" not in str(made(DENSE).to_dict())


def pipeline_of(component):
    pipeline = Pipeline()
    pipeline.add_component("only", component)
    return pipeline


def search():
    store = InMemoryDocumentStore()
    indexing = Pipeline()
    indexing.add_component("embedder", SIEDocumentEmbedder(DENSE, URL, progress_bar=False))
    indexing.add_component("writer", DocumentWriter(store))
    indexing.connect("embedder", "writer")
    indexing.run({"embedder": {"documents": [Document(content=text) for text in PASSAGES]}})
    querying = Pipeline()
    querying.add_component("embedder", SIETextEmbedder(DENSE, URL))
    querying.add_component("retriever", InMemoryEmbeddingRetriever(store))
    querying.add_component("ranker", SIERanker(RERANKER, URL, top_k=1))
    querying.connect("embedder.embedding", "retriever.query_embedding")
    querying.connect("retriever", "ranker")
    return querying


def test_a_pipeline_indexes_retrieves_and_ranks():
    pipeline, inputs = search(), {"embedder": {"text": QUERY}, "ranker": {"query": QUERY}}
    try:
        assert pipeline.run(inputs)["ranker"]["documents"][0].content == PASSAGES[1]
    finally:
        pipeline.close()

    async def awaited():
        try:
            return await pipeline.run_async(inputs)
        finally:
            await pipeline.close_async()

    assert asyncio.run(awaited())["ranker"]["documents"][0].content == PASSAGES[1]


def test_a_saved_pipeline_loads_and_runs():
    saved = pipeline_of(SIETextEmbedder(DENSE, URL)).dumps()
    assert len(Pipeline.loads(saved).run({"only": {"text": "hello"}})["only"]["embedding"]) == 384


def test_a_saved_pipeline_loads_where_the_module_was_imported_and_only_there():
    saved = pipeline_of(SIETextEmbedder(DENSE, URL)).dumps()
    strange = "import sys; from haystack import Pipeline; Pipeline.loads(sys.stdin.read())"
    done = subprocess.run([sys.executable, "-c", strange], input=saved, capture_output=True, text=True, check=False)
    assert DeserializationError.__name__ in done.stderr
    known = f"import sie_sdk.integrations.haystack; {strange}"
    subprocess.run([sys.executable, "-c", known], input=saved, capture_output=True, text=True, check=True)


def test_a_client_that_is_given_is_used_and_stays_open(client, run):
    component = SIETextEmbedder(DENSE, client=client)
    assert component.to_dict()["init_parameters"]["base_url"] == URL
    assert len(run(component, text="hello")["embedding"]) == 384
    assert client.encode(DENSE, "hello").dense is not None


async def test_an_async_client_that_is_given_serves_run_async():
    async with SIEAsyncClient(URL) as own:
        component = SIETextEmbedder(DENSE, async_client=own)
        assert len((await component.run_async(text="hello"))["embedding"]) == 384
        await component.close_async()
        assert (await own.encode(DENSE, "hello")).dense is not None


def test_errors_are_those_of_our_own_client(run):
    with pytest.raises(ModelNotFoundError):
        run(SIETextEmbedder("all-minilm-l6-v9", URL), text="hello")
    with pytest.raises(InvalidInputError, match="documents"):
        run(SIEDocumentEmbedder(DENSE, URL), documents="hello")
