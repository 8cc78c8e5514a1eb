"""Published sie-sdk: every error as the exception class of its own, with what it carries; keys and wrong addresses."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from sie_local.ports import free_port
from tests.compat.every_task import DENSE, RERANKER, TAGGER
from tests.compat.published.conftest import ABSENT, DRIVEN, TINY
from tests.compat.published.remote import Client, Outcome, Remote, call, repeated

pytestmark = DRIVEN

HELLO = {"text": "hello"}


def told(outcome: Outcome) -> tuple[Any, ...]:
    error = outcome.error
    return error["class"], error.get("status_code"), error.get("code"), error.get("param")


@pytest.mark.parametrize(
    ("method", "args", "keywords", "expected"),
    [
        ("encode", ["no/such-model", HELLO], {}, ("RequestError", 404, "MODEL_NOT_FOUND", "model")),
        ("encode", [DENSE, []], {}, ("RequestError", 400, "INVALID_INPUT", "items")),
        ("encode", [DENSE, [HELLO, {}]], {}, ("RequestError", 400, "INVALID_INPUT", "items[1]")),
        ("encode", [DENSE, [HELLO, {"text": 7}]], {}, ("RequestError", 400, "INVALID_INPUT", "items[1].text")),
        ("encode", [DENSE, {"text": "a", "id": 7}], {}, ("RequestError", 400, "INVALID_INPUT", "items[0].id")),
        (
            *("encode", [DENSE, HELLO], {"output_types": ["sparse"]}),
            ("RequestError", 400, "INVALID_INPUT", "params.output_types"),
        ),
        (
            *("encode", [DENSE, HELLO], {"output_dtype": "float64"}),
            ("RequestError", 400, "INVALID_INPUT", "params.output_dtype"),
        ),
        ("encode", [RERANKER, HELLO], {}, ("RequestError", 400, "INVALID_INPUT", "route")),
        ("score", [DENSE, HELLO, [HELLO]], {}, ("RequestError", 400, "INVALID_INPUT", "route")),
        ("score", [RERANKER, HELLO, []], {}, ("RequestError", 400, "INVALID_INPUT", "items")),
        ("score", [RERANKER, HELLO, [HELLO] * 1001], {}, ("RequestError", 400, "INVALID_INPUT", "items")),
        (
            *("extract", [TAGGER, HELLO], {"labels": ["no such label"]}),
            ("RequestError", 400, "INVALID_INPUT", "params.labels[0]"),
        ),
        (
            *("encode", [TINY, [HELLO, {"text": "poison"}]], {}),
            ("ServerError", 500, "INFERENCE_ERROR", "items[1]"),
        ),
        ("get_model", ["no/such-model"], {}, ("RequestError", 404, "MODEL_NOT_FOUND", "model")),
    ],
)
def test_a_wrong_request_raises_the_class_of_its_kind_with_code_and_field(
    client: Client, method: str, args: list[Any], keywords: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    outcome = client(method, *args, **keywords)
    assert told(outcome) == expected
    assert outcome.retries == 0
    request: dict[str, Any] = outcome.error["request"]
    assert len(request["id"]) == 32
    assert len(outcome.error["message"]) > 10 and "HTTP" not in outcome.error["message"]


def test_a_text_over_the_byte_limit_is_too_long_in_every_call(client: Client) -> None:
    long = {"text": repeated("x", 2 * 1024 * 1024 + 1)}
    for outcome in client.run(
        call("encode", DENSE, long), call("score", RERANKER, HELLO, [long]), call("extract", TAGGER, long)
    ).outcomes:
        assert outcome.error["class"] == "InputTooLongError"
        assert outcome.error["code"] == "INPUT_TOO_LONG"


def test_a_body_over_the_limit_is_refused_while_it_is_still_being_sent(client: Client) -> None:
    outcome = client("encode", TINY, [{"text": repeated("x", 1_900_000)} for _ in range(40)])
    assert told(outcome)[:3] == ("RequestError", 413, "PAYLOAD_TOO_LARGE")
    assert outcome.retries == 0


def test_a_model_that_cannot_be_loaded_fails_at_once_with_its_kind(client: Client) -> None:
    outcome = client("encode", ABSENT, HELLO)
    error = outcome.error
    assert (error["class"], error["code"], error["status_code"]) == ("ModelLoadFailedError", "MODEL_LOAD_FAILED", 502)
    assert (error["error_class"], error["permanent"], error["attempts"]) == ("NOT_FOUND", True, 1)
    assert error["model"] == ABSENT and outcome.retries == 0


@pytest.mark.parametrize(("method", "args"), [("estimate", ["/v1/encode/m", {"items": []}]), ("recommend", ["ocr"])])
def test_what_is_not_here_is_a_typed_404(client: Client, method: str, args: list[Any]) -> None:
    assert told(client(method, *args))[:3] == ("RequestError", 404, "NOT_FOUND")


def test_an_api_key_is_sent_and_does_no_harm_where_none_is_wanted(client: Client) -> None:
    told = client.run(call("encode", TINY, HELLO), call("list_models"), api_key="secret", remote="forbid")
    assert all(outcome.raised is None for outcome in told.outcomes)


@pytest.mark.parametrize(
    "model",
    ["sentence-transformers/ALL-minilm-L6-V2", "sentence-transformers/all-MiniLM-L6-v2:default"],
)
def test_the_models_name_stands_in_the_path_as_it_is_written(client: Client, model: str) -> None:
    assert client("encode", model, HELLO).raised is None


def test_an_escaped_slash_is_the_slash_it_stands_for(client: Client) -> None:
    outcome = client("encode", "sentence-transformers%2Fall-MiniLM-L6-v2", HELLO)
    assert outcome.raised is None


def test_a_question_mark_in_a_name_breaks_the_clients_path_and_is_a_typed_error(client: Client) -> None:
    outcome = client("encode", "no/such?model", HELLO)
    assert told(outcome)[:3] == ("RequestError", 404, "MODEL_NOT_FOUND")


def test_a_path_before_the_address_is_told_that_there_is_nothing(remote: Remote, url: str) -> None:
    sync = remote.run("sync", f"{url}/prefix/", call("encode", TINY, HELLO))
    assert told(sync.outcomes[0])[:3] == ("RequestError", 404, "NOT_FOUND")
    (outcome,) = remote.run("async", f"{url}/prefix", call("encode", TINY, HELLO)).outcomes
    assert outcome.error["class"] == "ValueError"


def test_an_address_without_a_scheme_is_refused_by_the_client_and_a_final_slash_does_no_harm(client: Client) -> None:
    refused = client.remote.run(client.flavour, client.url.removeprefix("http://"), call("list_models"))
    assert refused.refused is not None and refused.refused["class"] == "ValueError"
    (outcome,) = client.remote.run(client.flavour, client.url + "/", call("encode", TINY, HELLO)).outcomes
    assert outcome.raised is None


def test_an_address_where_nobody_listens_is_a_connection_error(client: Client) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    (outcome,) = client.remote.run(
        client.flavour, nowhere, call("encode", TINY, HELLO, wait_for_capacity=False)
    ).outcomes
    assert outcome.error["class"] == "SIEConnectionError"


def test_https_to_a_plain_port_is_a_connection_error_at_once(client: Client) -> None:
    (outcome,) = client.remote.run(
        client.flavour, client.url.replace("http://", "https://"), call("encode", TINY, HELLO, provision_timeout_s=1.0)
    ).outcomes
    assert outcome.error["class"] == "SIEConnectionError"


@pytest.mark.parametrize("accept", ["application/msgpack", "application/json", None])
def test_errors_are_json_with_their_code_in_a_header_whatever_is_accepted(url: str, accept: str | None) -> None:
    headers = {"Content-Type": "application/msgpack"} | ({} if accept is None else {"Accept": accept})
    answer = httpx.post(f"{url}/v1/encode/{DENSE}", content=b"\xc1", headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json")
    assert answer.json()["error"]["code"] == answer.headers["x-sie-error-code"] == "INVALID_INPUT"
