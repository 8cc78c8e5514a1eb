"""The clients against a real HTTP server: both kinds give the same results, errors and requests."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec
import numpy as np
import pytest

from sie_sdk import (
    Classification,
    EncodeResult,
    Entity,
    ExtractResult,
    InvalidInputError,
    Item,
    ModelNotFoundError,
    Progress,
    ProvisioningError,
    QueueFullError,
    ScoreResult,
    SIEClient,
    UnexpectedReplyError,
    __version__,
    calls,
    keywords,
    methods,
    settle,
    wire,
)
from sie_sdk.replies import Extracted
from sie_sdk.types import EncodeRequest, JobStatus
from tests.sdk.scripted_server import (
    Answer,
    ScriptedServer,
    accepted,
    extracted,
    json_answer,
    refused,
    scores,
    vectors,
)

Caller = Callable[..., Any]


def sent(server: ScriptedServer) -> EncodeRequest:
    return msgspec.msgpack.decode(server.asked[-1].body, type=EncodeRequest)


def test_one_text_gives_one_result(server: ScriptedServer, call: Caller) -> None:
    server.script = [vectors()]
    result = call("encode", "m", "hello")
    assert isinstance(result, EncodeResult)
    np.testing.assert_array_equal(result.dense, np.array([0.0, 0.5], "float32"))
    assert result.timing is not None and result.timing.total_ms == 3.0


def test_a_text_of_a_class_of_its_own_is_a_text(server: ScriptedServer, call: Caller) -> None:
    class Marked(str):
        """As markupsafe's, and Beautiful Soup's, whose methods say something else."""

        __slots__ = ("parent",)

        def __str__(self) -> str:
            return self

        def __getitem__(self, at: Any) -> str:
            return Marked("other")

    server.script = [vectors(2)]
    call("encode", "m", [Marked("hello"), Item(text=Marked("world"), id=Marked("w"), metadata={"by": Marked("me")})])
    assert sent(server).items == [Item(text="hello"), Item(text="world", id="w", metadata={"by": "me"})]


def test_a_list_gives_a_list_in_its_order(server: ScriptedServer, call: Caller) -> None:
    server.script = [vectors(2)]
    results = call("encode", "m", ["hello", Item(text="world", id="w")])
    assert [result.dense[0] for result in results] == [0.0, 1.0]
    assert sent(server).items == [Item(text="hello"), Item(text="world", id="w")]


def test_the_keywords_travel_as_parameters(server: ScriptedServer, call: Caller) -> None:
    server.script = [vectors()]
    call("encode", "m", "a", output_types=["dense"], instruction="i", output_dtype="float16", is_query=True)
    params = sent(server).params
    assert (params.output_types, params.instruction, params.output_dtype) == (["dense"], "i", "float16")
    assert params.options == {"is_query": True}


def test_is_query_wins_over_options(server: ScriptedServer, call: Caller) -> None:
    server.script = [vectors()]
    call("encode", "m", "a", options={"is_query": True, "profile": "p"}, is_query=False)
    assert sent(server).params.options == {"is_query": False, "profile": "p"}


def test_the_request_says_who_sends_it_and_never_poses_as_a_published_client(
    server: ScriptedServer, call: Caller
) -> None:
    server.script = [vectors()]
    call("encode", "m", "a")
    headers = server.asked[0].headers
    assert headers["content-type"] == headers["accept"] == "application/msgpack"
    assert headers["user-agent"] == f"sie-knative/{__version__}"
    assert len(headers["idempotency-key"]) == len(headers["x-request-id"]) == 32
    assert "x-sie-sdk-version" not in headers
    assert "authorization" not in headers


def test_items_are_scored_against_a_query(server: ScriptedServer, call: Caller) -> None:
    server.script = [scores(0.25, 0.75), scores(1.0)]
    result = call("score", "m", "capital?", ["Rome", Item(text="Paris", id="p")], instruction="i", options={"a": 1})
    assert isinstance(result, ScoreResult)
    assert [(entry.index, entry.score, entry.rank) for entry in result.scores] == [(1, 0.75, 0), (0, 0.25, 1)]
    assert server.asked[0].path == "/v1/score/m"
    request = wire.parse_score(server.asked[0].body, None)
    assert (request.query, request.instruction, request.options) == (Item(text="capital?"), "i", {"a": 1})
    assert request.items == [Item(text="Rome"), Item(text="Paris", id="p")]
    assert len(call("score", "m", Item(text="capital?"), "Rome").scores) == 1


def test_vectors_that_the_caller_has_are_scored_without_a_text(server: ScriptedServer, call: Caller) -> None:
    server.script = [scores(1.0)]
    ones = np.ones((2, 4), np.float32)
    call("score", "m", Item(multivector=ones), [Item(multivector=ones[:1])])
    request = wire.parse_score(server.asked[0].body, None)
    assert (request.query, request.items) == (Item(multivector=ones), [Item(multivector=ones[:1])])


def test_entities_are_extracted_from_one_text_or_many(server: ScriptedServer, call: Caller) -> None:
    ada = Extracted([Entity("Ada", "person", 0.9, 0, 3)], [Classification("short", 0.5)])
    server.script = [extracted(ada), extracted(ada, Extracted())]
    one = call("extract", "m", "Ada", labels=["person"], output_schema={"a": "b"}, options={"threshold": 0.5})
    assert isinstance(one, ExtractResult)
    assert (one.entities, one.classifications) == (ada.entities, ada.classifications)
    assert server.asked[0].path == "/v1/extract/m"
    params = wire.parse_extract(server.asked[0].body, None).params
    assert (params.labels, params.output_schema, params.options) == (["person"], {"a": "b"}, {"threshold": 0.5})
    assert [len(result.entities) for result in call("extract", "m", ["Ada", "b"])] == [1, 0]


def test_anything_that_can_be_gone_through_is_a_list(server: ScriptedServer, call: Caller) -> None:
    server.script = [vectors(2), vectors(2), scores(0.5)]
    assert len(call("encode", "m", (text for text in ["a", "b"]))) == 2
    assert len(call("encode", "m", {"a": 1, "b": 2}.keys())) == 2
    assert len(call("score", "m", "q", iter(["a"])).scores) == 1


@pytest.mark.parametrize("items", [{"text": "a"}, b"a", None, 3])
@pytest.mark.parametrize("method", ["encode", "extract"])
def test_what_is_neither_an_item_nor_a_list_is_refused_by_name(call: Caller, method: str, items: Any) -> None:
    with pytest.raises(InvalidInputError, match=f"items is a {type(items).__name__}") as caught:
        call(method, "m", items)
    assert caught.value.field == "items"


def test_a_query_that_cannot_be_sent_is_named(call: Caller) -> None:
    with pytest.raises(InvalidInputError) as caught:
        call("score", "m", ["query"], ["a"])
    assert caught.value.field == "query"


def test_a_score_that_lacks_an_item_is_no_answer(server: ScriptedServer, call: Caller) -> None:
    server.script = [scores(1.0)]
    with pytest.raises(UnexpectedReplyError, match="1 results came back for 2 items"):
        call("score", "m", "q", ["a", "b"])


@pytest.mark.parametrize(
    ("model", "path"),
    [("default:/org/m:prof", "default:/org/m:prof"), ("a b?c#d%e", "a%20b%3Fc%23d%25e"), ("é", "%C3%A9")],
)
def test_a_models_name_is_the_rest_of_the_path(server: ScriptedServer, call: Caller, model: str, path: str) -> None:
    server.script = [vectors()]
    call("encode", model, "a")
    assert server.asked[0].path == f"/v1/encode/{path}"


def test_a_cold_server_is_waited_for(server: ScriptedServer, call: Caller) -> None:
    job = JobStatus("j1", "provisioning", message="starting a worker")
    held = accepted(job, Retry_After="0.01", Preference_Applied="wait=20")
    server.script = [accepted(job, Retry_After="0.01"), held, vectors()]
    told: list[Progress] = []
    assert call("encode", "m", "a", progress=told.append).dense.size == 2
    assert [request.path for request in server.asked] == ["/v1/encode/m", "/v1/jobs/j1", "/v1/jobs/j1"]
    assert server.asked[1].headers["prefer"] == "wait=20"
    assert [(progress.state, progress.job) for progress in told] == [
        ("provisioning", "j1"),
        ("provisioning", "j1"),
        ("done", "j1"),
    ]


def test_a_connection_cut_before_the_reply_is_tried_again_with_the_same_key(
    server: ScriptedServer, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "RETRY_AFTER_S", 0.001)
    server.script = [Answer(hang_up=True), refused(QueueFullError("full", retry_after=0.001)), vectors()]
    call("encode", "m", "a")
    assert len({request.headers["idempotency-key"] for request in server.asked}) == 1
    assert len(server.asked) == 3


def test_what_a_gateway_says_of_a_server_that_was_killed_is_tried_again_with_the_same_key(
    server: ScriptedServer, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "RETRY_AFTER_S", 0.001)
    server.script = [Answer(502, b"EOF"), Answer(504, b"activator request timeout"), vectors()]
    call("encode", "m", "a")
    assert len({request.headers["idempotency-key"] for request in server.asked}) == 1
    assert len(server.asked) == 3


def test_a_key_of_the_callers_own_is_sent(server: ScriptedServer, call: Caller) -> None:
    server.script = [vectors()]
    call("encode", "m", "a", idempotency_key="mine")
    assert server.asked[0].headers["idempotency-key"] == "mine"


def test_an_impatient_caller_learns_of_the_job(server: ScriptedServer, call: Caller) -> None:
    server.script = [accepted(JobStatus("j1"), Retry_After="7")]
    with pytest.raises(ProvisioningError) as caught:
        call("encode", "m", "a", wait_for_capacity=False)
    assert (caught.value.details["job"], caught.value.retry_after, caught.value.request_id) == ("j1", 7.0, "r-202")


def test_a_servers_error_arrives_as_its_own_class(server: ScriptedServer, call: Caller) -> None:
    server.script = [refused(ModelNotFoundError("No model m.", nearest=["n"]))]
    with pytest.raises(ModelNotFoundError, match="No model m") as caught:
        call("encode", "m", "a")
    assert (caught.value.details["nearest"], caught.value.request_id) == (["n"], "r-error")


@pytest.mark.parametrize(
    ("answer", "status", "shown"),
    [
        (Answer(200, b"<html>login", {"X-Request-ID": "r7"}), 200, "<html>login"),
        (Answer(500, b"<html>oh no", {"X-Request-ID": "r7"}), 500, "<html>oh no"),
        (Answer(302, b"", {"Location": "/login", "X-Request-ID": "r7"}), 302, "empty"),
        (Answer(200, vectors().body[:30], {"X-Request-ID": "r7"}), 200, "truncated"),
        (Answer(200, vectors(2).body, {"X-Request-ID": "r7"}), None, "2 results came back for 1 items"),
    ],
)
def test_what_is_not_the_protocol_is_shown(
    server: ScriptedServer, call: Caller, answer: Answer, status: int | None, shown: str
) -> None:
    server.script = [answer]
    with pytest.raises(UnexpectedReplyError, match=shown) as caught:
        call("encode", "m", "a")
    assert caught.value.request_id == "r7"
    assert caught.value.details.get("http_status") == status


def test_a_body_that_does_not_decompress_is_unexpected(server: ScriptedServer, call: Caller) -> None:
    server.script = [Answer(200, b"plain", {"Content-Encoding": "gzip"})]
    with pytest.raises(UnexpectedReplyError):
        call("encode", "m", "a")


def test_models_are_listed_and_described(server: ScriptedServer, call: Caller) -> None:
    row = {"name": "org/m", "outputs": ["dense"], "dims": {"dense": 384}, "profiles": {}}
    server.script = [json_answer({"models": [row], "object": "list"}), json_answer(row)]
    (listed,) = call("list_models")
    assert listed == call("get_model", "org/m")
    assert (listed.name, listed.dims) == ("org/m", {"dense": 384})
    assert [request.path for request in server.asked] == ["/v1/models", "/v1/models/org/m"]


@pytest.mark.parametrize(
    ("model", "items", "field"),
    [
        ("", "a", "model"),
        (None, "a", "model"),
        ("../../healthz", "a", "model"),
        ("org/./m", "a", "model"),
        ("\ud800", "a", "model"),
        ("m", ["a", 3], "items[1]"),
        ("m", [None], "items[0]"),
        ("m", ["a", Item(text=5)], "items[1].text"),  # type: ignore[arg-type]  # what is not typed may do
        ("m", [Item(text="a", id=7)], "items[0].id"),  # type: ignore[arg-type]
        ("m", [*["a"] * 600, Item(text=5)], "items[600].text"),  # type: ignore[arg-type]
        ("m", ["a", "\ud800"], "items[1]"),
        ("m", ["a"] * 600 + ["\ud800"], "items[600]"),
        ("m", ["a", Item(text="b", metadata={"n": 1 << 64})], "items[1]"),
        ("m", ["a", Item(text="b", metadata={"n": object()})], "items[1]"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_sending(call: Caller, model: str, items: Any, field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        call("encode", model, items)
    assert caught.value.field == field


def test_what_has_no_form_on_the_wire_is_named(call: Caller) -> None:
    with pytest.raises(InvalidInputError) as caught:
        call("score", "m", "\ud800", ["a"])
    assert caught.value.field == "query"
    with pytest.raises(InvalidInputError) as caught:
        call("encode", "m", "a", options={"a": object()})
    assert caught.value.field == "body"


def test_a_header_that_cannot_travel_is_the_callers_error(call: Caller) -> None:
    with pytest.raises(InvalidInputError, match="cannot be sent") as caught:
        call("encode", "m", "a", idempotency_key="line\nbreak")
    assert caught.value.field == "Idempotency-Key"


@pytest.mark.parametrize(
    ("method", "typed"),
    [
        (SIEClient.encode, keywords.EncodeKeywords),
        (SIEClient.score, keywords.CallKeywords),
        (SIEClient.extract, keywords.ExtractKeywords),
    ],
)
def test_the_typed_keywords_are_those_of_the_method(method: Callable[..., Any], typed: type) -> None:
    hints = get_type_hints(method, vars(methods))
    own = {
        name: hints[name]
        for name, parameter in inspect.signature(method).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert own == get_type_hints(typed, vars(keywords))


def test_keys_are_fresh_and_laid_out_as_uuid7() -> None:
    keys = [calls.fresh_key() for _ in range(100)]
    assert len(set(keys)) == 100
    assert {(len(key), key[12], key[16] in "89ab") for key in keys} == {(32, "7", True)}
