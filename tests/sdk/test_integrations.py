"""What the parts of all frameworks stand on, without any framework. The parts themselves: ``tests/compat``."""

from __future__ import annotations

import asyncio
import copy
import importlib
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import numpy as np
import pytest

from sie_sdk import (
    ConfigurationError,
    EncodeResult,
    InvalidInputError,
    Quantization,
    SIEAsyncClient,
    SIEClient,
    SparseVector,
    UnexpectedReplyError,
)
from sie_sdk.integrations import absent, embeddings
from sie_sdk.integrations.connection import Connection, found
from sie_sdk.keywords import CallKeywords
from sie_sdk.types import Entity, ExtractResult
from tests.sdk.scripted_server import ScriptedServer, computed

TERMS: CallKeywords = {"options": {"overflow_policy": "error"}, "deadline_s": 9.0, "pool": None}
NOWHERE = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("module", "needed", "framework"),
    [
        ("langchain", "langchain_core", "LangChain"),
        ("llamaindex", "llama_index", "LlamaIndex"),
        ("haystack", "haystack", "Haystack"),
    ],
)
def test_a_framework_that_is_not_there_is_named_with_its_extra(
    module: str, needed: str, framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == needed]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, needed, None)
    monkeypatch.delitem(sys.modules, f"sie_sdk.integrations.{module}", raising=False)
    with pytest.raises(ImportError, match=rf"{framework} is not installed.*pip install '\.\[{module}\]' in a clone"):
        importlib.import_module(f"sie_sdk.integrations.{module}")


def test_a_framework_that_lacks_what_is_needed_is_of_another_version() -> None:
    error = absent("Haystack", "haystack", ImportError("cannot import name 'x' from 'haystack'", name="haystack"))
    assert "is of a version that does not fit (cannot import name 'x' from 'haystack')" in str(error)
    assert error.name == "haystack"


def test_importing_the_sdk_imports_no_framework() -> None:
    code = "import sie_sdk, sie_sdk.integrations, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    tops = {name.split(".")[0] for name in loaded}
    assert tops.isdisjoint({"langchain_core", "llama_index", "haystack", "pydantic", "tqdm"})


def test_what_is_asked_for_says_query_or_document_and_keeps_the_options() -> None:
    query = embeddings.asked(
        "dense", TERMS, is_query=True, instruction="a", query_instruction="b", dimensions=8, output_dtype="int8"
    )
    assert query == {
        "options": {"overflow_policy": "error", "dimensions": 8},
        "deadline_s": 9.0,
        "pool": None,
        "output_types": ["dense"],
        "output_dtype": "int8",
        "is_query": True,
        "instruction": "b",
    }
    document = embeddings.asked("sparse", TERMS, is_query=False, instruction="a", query_instruction="b")
    assert (document["is_query"], document["instruction"]) == (False, "a")
    assert TERMS["options"] == {"overflow_policy": "error"}
    assert embeddings.asked("dense", TERMS, is_query=True, instruction="a")["instruction"] == "a"
    assert embeddings.asked("dense", TERMS, is_query=True, query_instruction="")["instruction"] == ""


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (EncodeResult(dense=np.array([0.5, -1], np.float32)), [0.5, -1.0]),
        (EncodeResult(dense=np.array([0.5, -1], np.float16)), [0.5, -1.0]),
        (EncodeResult(dense=np.array([2, -4], np.int8), dense_quantization=Quantization(0.25)), [0.5, -1.0]),
        (EncodeResult(dense=np.array([6, 0], np.uint8), dense_quantization=Quantization(0.25, -1.0)), [0.5, -1.0]),
        (EncodeResult(dense=np.array([0b10100000], np.uint8)), [1, -1, 1, -1, -1, -1, -1, -1]),
    ],
    ids=["float32", "float16", "int8", "uint8", "bits"],
)
def test_every_number_format_becomes_floats(result: EncodeResult, expected: list[float]) -> None:
    (vector,) = embeddings.dense([result])
    assert vector == expected
    assert all(type(number) is float for number in vector)


def test_a_reply_without_what_was_asked_for_is_an_error() -> None:
    for read in (embeddings.dense, embeddings.sparse):
        with pytest.raises(UnexpectedReplyError):
            read([EncodeResult()])


def test_sparse_vectors_become_plain_lists() -> None:
    vector = SparseVector(np.array([3, 7], np.int32), np.array([0.5, 2], np.float16))
    assert embeddings.sparse([EncodeResult(sparse=vector)]) == [([3, 7], [0.5, 2.0])]


def test_what_was_found_is_told_in_maps() -> None:
    told: Any = found(ExtractResult(id="x", entities=[Entity("Ada", "PER", 0.5, 0, 3)]))
    assert told["entities"] == [{"text": "Ada", "label": "PER", "score": 0.5, "start": 0, "end": 3}]
    assert set(told) == {"entities", "classifications", "relations", "objects", "data"}


def test_nothing_to_do_makes_no_request() -> None:
    connection = Connection(NOWHERE)
    assert connection.encode("m", []) == [] and connection.score("m", "q", []) == []
    assert asyncio.run(connection.aencode("m", [])) == [] and asyncio.run(connection.ascore("m", "q", [])) == []


def test_one_text_where_a_list_is_due_is_refused() -> None:
    connection, text = Connection(NOWHERE), cast("Any", "person")
    with pytest.raises(InvalidInputError, match=r"Pass labels=\['person'\]"):
        connection.extract("m", "a", labels=text)
    with pytest.raises(InvalidInputError, match=r"Pass labels=\['person'\]"):
        asyncio.run(connection.aextract("m", "a", labels=text))
    with pytest.raises(InvalidInputError, match=r"Pass texts=\['person'\]"):
        connection.encode("m", text)
    with pytest.raises(InvalidInputError, match=r"Pass texts=\['person'\]"):
        asyncio.run(connection.aencode("m", text))


@pytest.mark.parametrize(("count", "method"), [(1, "encode"), (256, "encode"), (257, "encode_stream")])
async def test_many_texts_are_streamed_so_that_each_part_has_a_deadline_of_its_own(count: int, method: str) -> None:
    asked: list[tuple[str, int, dict[str, Any]]] = []

    class Blocking:
        def encode(self, model: str, texts: list[str], **keywords: Any) -> list[str]:
            asked.append(("encode", len(texts), keywords))
            return texts

        def encode_stream(self, model: str, texts: list[str], **keywords: Any) -> Iterator[str]:
            asked.append(("encode_stream", len(texts), keywords))
            yield from texts

    class Awaited:
        async def encode(self, model: str, texts: list[str], **keywords: Any) -> list[str]:
            return Blocking().encode(model, texts, **keywords)

        async def encode_stream(self, model: str, texts: list[str], **keywords: Any) -> AsyncIterator[str]:
            for text in Blocking().encode_stream(model, texts, **keywords):
                yield text

    texts: Any = [str(number) for number in range(count)]
    connection = Connection(client=cast("Any", Blocking()), async_client=cast("Any", Awaited()))
    assert connection.encode("m", texts, deadline_s=9.0) == texts
    assert await connection.aencode("m", texts, deadline_s=9.0) == texts
    assert asked == [(method, count, {"deadline_s": 9.0})] * 2


def test_a_copy_shares_no_connection_and_goes_to_the_same_place() -> None:
    connection = Connection(NOWHERE, "key", 7.0)
    client = connection._client()
    for other in (copy.copy(connection), copy.deepcopy(connection), pickle.loads(pickle.dumps(connection))):
        own = other._client()
        assert own is not client
        assert (own.base_url, own._server, own._timeout_s) == (client.base_url, client._server, client._timeout_s)


@pytest.mark.parametrize("given", ["client", "async_client"])
async def test_a_client_that_was_given_is_shared_by_copies_and_does_not_pickle(
    server: ScriptedServer, given: str
) -> None:
    server.computes = computed
    own: Any = SIEClient(server.url) if given == "client" else SIEAsyncClient(server.url)
    connection = Connection(**{given: own})
    await connection.aencode("m", ["1"])  # one that was used holds sockets and locks
    for other in (copy.copy(connection), copy.deepcopy(connection)):
        assert (other._given or other._given_async) is own
    with pytest.raises(ConfigurationError, match="does not pickle") as caught:
        pickle.dumps(connection)
    assert caught.value.field == "client"
    if (closing := own.close()) is not None:
        await closing


def test_a_shallow_copy_of_a_part_shares_its_connection_and_a_deep_one_does_not() -> None:
    fields = pytest.importorskip("sie_sdk.integrations.fields", exc_type=ImportError)
    part = fields.Connected(base_url=NOWHERE)
    shared = part.connection
    assert copy.copy(part).connection is shared and part.model_copy().connection is shared
    assert copy.deepcopy(part).connection is not shared and part.model_copy(deep=True).connection is not shared


def test_a_part_with_a_client_of_its_owner_does_not_pickle_without_it() -> None:
    fields = pytest.importorskip("sie_sdk.integrations.fields", exc_type=ImportError)

    class Leaving(fields.Connected):  # type: ignore[misc, name-defined]
        """As LlamaIndex's parts: what does not pickle is left out."""

        def __getstate__(self) -> dict[Any, Any]:
            state: dict[Any, Any] = super().__getstate__()
            state["__dict__"].pop("client")
            return state

    with SIEClient(NOWHERE) as own:
        part = Leaving(client=own)
        assert copy.deepcopy(part).client is own
        with pytest.raises(ConfigurationError, match="does not pickle"):
            part.__getstate__()


async def test_an_event_loop_has_one_client_and_another_loop_another() -> None:
    connection = Connection(NOWHERE)
    client = connection._async_client()
    assert connection._async_client() is client

    async def other() -> SIEAsyncClient | None:
        return connection._async_client()

    assert await asyncio.to_thread(lambda: asyncio.run(other())) is not client
    await connection.aclose()
    assert connection._async_client() is not client


LOOPS = """
import asyncio, gc, os, sys
from sie_sdk.integrations.connection import Connection
connection, opened = Connection(sys.argv[1]), []
for _ in range(20):
    assert len(asyncio.run(connection.aencode("m", ["1"]))) == 1
    gc.collect()
    opened.append(len(os.listdir("/dev/fd")))
assert len(connection._by_loop) == 1, connection._by_loop
assert max(opened) == opened[1], opened
"""


def test_an_event_loop_that_has_ended_keeps_neither_client_nor_socket(server: ScriptedServer) -> None:
    server.computes = computed
    subprocess.run([sys.executable, "-c", LOOPS, server.url], check=True, timeout=60)


async def test_closing_closes_the_clients_that_were_made_and_no_others() -> None:
    connection = Connection(NOWHERE)
    made, awaited = connection._client(), connection._async_client()
    await connection.aclose()
    for client in (made, awaited):
        assert client is not None and client._closed
    async with SIEAsyncClient(NOWHERE) as own:
        with SIEClient(NOWHERE) as blocking:
            given = Connection(client=blocking, async_client=own)
            await given.aclose()
            assert not blocking._closed and not own._closed


async def test_a_blocking_call_needs_a_blocking_client() -> None:
    async with SIEAsyncClient(NOWHERE) as client:
        with pytest.raises(ConfigurationError, match="async_client"):
            Connection(async_client=client).encode("m", ["text"])
