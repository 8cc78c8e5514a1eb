"""What every dialect has in common when it is served: its model, the hold, tries, errors; nothing breaks it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_broker.contract import Broker
from sie_broker.memory import MemoryBroker
from sie_ingress.dialects.speaking import named_models
from sie_sdk.errors import ConfigurationError
from sie_sdk.refusals import BY_CODE
from tests.conftest import eventually
from tests.ingress.conftest import EVERYTHING, MODEL, RERANKER, TAGGER, Desk, opened

EMBEDDINGS = {"model": MODEL, "input": "hello"}
ROUTES = {
    "/v1/embeddings": "input",
    "/v1/rerank": "documents",
    "/v2/rerank": "documents",
    "/v1/embed": "texts",
    "/v2/embed": "texts",
    "/embed": "inputs",
    "/embed_sparse": "inputs",
    "/rerank": "texts",
    "/predict": "inputs",
    "/similarity": "inputs",
    "/": "inputs",
}


@pytest.fixture
async def here() -> AsyncIterator[Desk]:
    """A desk on the in-memory broker, for what does not depend on the broker."""
    async with opened(MemoryBroker()) as desk:
        yield desk


async def test_a_warm_request_is_answered_with_the_headers_of_every_result(desk: Desk) -> None:
    async with desk.worker():
        answer = await desk.post("/v1/embeddings", EMBEDDINGS)
    assert answer.status_code == 200
    assert answer.json()["data"][0]["embedding"] == [5.0, 1.0]
    assert answer.headers["x-sie-worker"] and answer.headers["x-sie-model-revision"] == "0"
    assert answer.headers["x-sie-units-input-tokens"] == "1"


async def test_a_cold_request_is_held_until_its_answer_and_never_gets_a_202(desk: Desk) -> None:
    waiting = asyncio.create_task(desk.post("/v1/embeddings", EMBEDDINGS))
    await eventually(lambda: desk.lanes._cold_starts._woken != {})
    async with desk.worker():
        answer = await waiting
    assert (answer.status_code, answer.json()["data"][0]["embedding"]) == (200, [5.0, 1.0])


@pytest.mark.parametrize(
    ("route", "body", "code_at"),
    [
        ("/v1/embeddings", EMBEDDINGS, ("error", "code")),
        ("/v2/rerank", {"model": RERANKER.id, "query": "q", "documents": ["a"]}, ("code",)),
        (f"/tei/{MODEL}/embed", {"inputs": "a"}, ("code",)),
    ],
)
async def test_a_cold_request_that_was_held_in_vain_is_refused_with_503_and_when_to_come_again(
    here: Desk, route: str, body: Any, code_at: tuple[str, ...]
) -> None:
    answer = await here.post(route, body, Prefer="wait=0.05")
    said = answer.json()
    for step in code_at:
        said = said[step]
    assert (answer.status_code, said, answer.headers["x-sie-error-code"]) == (503, "PROVISIONING", "PROVISIONING")
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert answer.headers["x-should-retry"] == "true"


async def test_a_retry_after_is_never_longer_than_official_clients_wait(broker: Broker) -> None:
    async with opened(broker, cold_start_s=500) as desk:
        answer = await desk.post("/v1/embeddings", EMBEDDINGS, Prefer="wait=0.05")
    assert answer.headers["retry-after"] == "60"


async def test_tries_with_one_idempotency_key_are_computed_once_however_the_first_ones_ended(desk: Desk) -> None:
    for _ in range(2):
        cold = await desk.post("/v1/embeddings", EMBEDDINGS, Prefer="wait=0.05", Idempotency_Key="k")
        assert cold.status_code == 503
    async with desk.worker():
        answers = [await desk.post("/v1/embeddings", EMBEDDINGS, Idempotency_Key="k") for _ in range(2)]
    assert [answer.json()["data"][0]["embedding"] for answer in answers] == [[5.0, 1.0]] * 2
    assert len(desk.computed) == 1


async def test_tries_without_a_key_are_computed_once_too_as_official_clients_send_none(desk: Desk) -> None:
    for _ in range(2):
        cold = await desk.post("/v1/embeddings", EMBEDDINGS, Prefer="wait=0.05")
        assert cold.status_code == 503
    async with desk.worker():
        answer = await desk.post("/v1/embeddings", EMBEDDINGS)
        assert (answer.status_code, len(desk.computed)) == (200, 1)
        desk.hold.clear()
        slow = await desk.post("/v1/embeddings", {"model": MODEL, "input": "slow"}, Prefer="wait=0.05")
        assert slow.status_code == 503
        desk.hold.set()
        again = await desk.post("/v1/embeddings", {"model": MODEL, "input": "slow"})
        assert (again.status_code, len(desk.computed)) == (200, 2)


async def test_a_warm_request_that_takes_too_long_is_refused_with_503(here: Desk) -> None:
    async with here.worker():
        here.hold.clear()
        answer = await here.post("/v1/embeddings", EMBEDDINGS, Prefer="wait=0.05")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "UNAVAILABLE")


async def test_an_expiry_of_the_callers_own_stays_a_504(here: Desk) -> None:
    answer = await here.post("/v1/embeddings", EMBEDDINGS, X_SIE_Expires_In="0.05")
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "DEADLINE_EXCEEDED")


async def test_what_can_never_succeed_is_not_tried_again_by_official_clients(here: Desk) -> None:
    async with here.worker():
        refused = await here.post("/v1/embeddings", {**EMBEDDINGS, "input": ["fine", "refuse"]})
        crashed = await here.post("/v1/embeddings", {**EMBEDDINGS, "input": "crash"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input[0]")
    assert (crashed.status_code, "secret" in crashed.text) == (500, False)
    assert refused.headers["x-should-retry"] == crashed.headers["x-should-retry"] == "false"


async def test_a_large_answer_is_written_beside_the_event_loop_in_order(here: Desk) -> None:
    texts = ["x" * (1 + place % 7) for place in range(300)]
    async with opened(MemoryBroker(), max_body_bytes=10_000_000) as desk, desk.worker():
        answer = await desk.post("/v1/embeddings", {"model": MODEL, "input": texts})
        tokens = await desk.post("/v1/embeddings", {"model": MODEL, "input": [[15339] * 2000] * 600})
    assert [entry["embedding"][0] for entry in answer.json()["data"]] == [len(text) for text in texts]
    assert [entry["index"] for entry in answer.json()["data"]] == list(range(300))
    assert {entry["embedding"][0] for entry in tokens.json()["data"]} == {10_000}


# -- the model of a request that names none ----------------------------------------------------------------------------


async def test_the_model_is_taken_from_the_body_the_header_or_the_path_in_this_order(here: Desk) -> None:
    async with here.worker():
        by_path = await here.post(f"/tei/{MODEL}/embed", {"inputs": "abc"})
        escaped = await here.post(f"/tei/{MODEL.replace('/', '%2F')}/embed", {"inputs": "abc"})
        slashed = [await here.post(f"/tei/{MODEL}/{path}", {"inputs": "abc"}) for path in ("", "/embed")]
        by_header = await here.post("/embed", {"inputs": "abc"}, X_SIE_Model=MODEL)
        by_body = await here.post("/tei/org/none/embed", {"inputs": "abc", "model": MODEL}, X_SIE_Model="org/none")
        openai = await here.post(f"/tei/{MODEL}/v1/embeddings", {"input": "abc", "model": "text-embeddings-inference"})
    assert [each.json() for each in (by_path, escaped, *slashed, by_header, by_body)] == [[[3.0, 1.0]]] * 6
    assert openai.json()["data"][0]["embedding"] == [3.0, 1.0]


async def test_the_only_model_that_can_do_it_is_taken_where_none_is_named(here: Desk) -> None:
    here.registry.remove(EVERYTHING.id)
    async with here.worker():
        embedded = await here.post("/embed", {"inputs": "abc"})
        ranked = await here.post("/v1/rerank", {"query": "q", "documents": ["abc"]})
    assert embedded.json() == [[3.0, 1.0]]
    assert ranked.json()["model"] == RERANKER.id


async def test_the_first_model_of_the_setting_that_can_do_it_is_taken(broker: Broker) -> None:
    async with opened(broker, default_models=f"{TAGGER.id}, {EVERYTHING.id},{MODEL}") as desk, desk.worker():
        answer = await desk.post("/embed", {"inputs": "abc"})
        info = await desk.client.get("/info")
    assert answer.json() == [[3.0, 1.0]]
    assert answer.headers["x-sie-model-revision"] == EVERYTHING.revision
    assert info.json()["model_id"] == TAGGER.id


async def test_a_setting_that_names_what_is_not_in_the_catalogue_does_no_harm(broker: Broker) -> None:
    async with opened(broker, default_models=f"org/none,{MODEL}") as desk, desk.worker():
        assert (await desk.post("/embed", {"inputs": "abc"})).json() == [[3.0, 1.0]]
        refused = await desk.post("/embed_sparse", {"inputs": "abc"})
    assert (refused.status_code, "SIE_DEFAULT_MODELS" in refused.json()["error"]) == (400, True)


def test_a_setting_that_holds_no_names_stops_the_start() -> None:
    assert named_models("") == []
    assert named_models(" org/a, b:profile ,") == ["org/a", "b:profile"]
    with pytest.raises(ConfigurationError, match="SIE_DEFAULT_MODELS"):
        named_models("org/a:b:c")


async def test_where_several_models_could_do_it_the_ways_to_name_one_are_told(here: Desk) -> None:
    answer = await here.post("/embed", {"inputs": "abc"})
    assert answer.status_code == 400
    for way in ("model", "X-SIE-Model", "/tei/org/model/embed", "SIE_DEFAULT_MODELS"):
        assert way in answer.json()["error"]
    assert answer.json()["limit"] == f"{MODEL}, {EVERYTHING.id}"


async def test_a_model_tells_of_itself_below_its_name(here: Desk) -> None:
    info = await here.client.get(f"/tei/{MODEL}/info")
    health = await here.client.get(f"/tei/{MODEL}/health")
    nothing = await here.client.get("/tei/no/such/health")
    assert (info.json()["model_id"], health.status_code, nothing.status_code) == (MODEL, 200, 404)


@pytest.mark.parametrize("prefix", ["", "/tei/no/such", f"/tei/{MODEL}"])
@pytest.mark.parametrize("name", ["tokenize", "decode", "embed_all"])
async def test_a_route_of_tei_that_is_not_served_says_so_and_is_not_taken_for_a_model(
    here: Desk, prefix: str, name: str
) -> None:
    answer = await here.post(f"{prefix}/{name}", {"inputs": "a"})
    said = answer.json()
    assert (answer.status_code, answer.headers["x-sie-error-code"]) == (404, "NOT_FOUND")
    assert f"/{name} of text-embeddings-inference is not served" in said["error"]
    assert (said["error_type"], said["code"]) == ("Validation", "NOT_FOUND")
    assert "docs/dialects.md" in said["hint"]


async def test_a_model_has_no_metrics_of_its_own_and_who_asks_is_told_where_they_are(here: Desk) -> None:
    for method in ("GET", "POST"):
        answer = await here.client.request(method, f"/tei/{MODEL}/metrics")
        assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")
        assert "GET /metrics" in answer.json()["hint"]
    assert "sie_ingress_requests" in (await here.client.get("/metrics")).text


# -- nothing breaks it -------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
NAMES = """
    input model dimensions encoding_format input_type task embedding_type truncate query documents top_n rank_fields
    return_documents inputs texts embedding_types output_dimension normalize prompt_name truncation_direction raw_scores
    parameters text
"""
FIELDS = st.sampled_from(NAMES.split())


@pytest.mark.parametrize("route", ROUTES)
async def test_any_body_is_answered_or_refused_with_a_code_and_never_breaks_anything(here: Desk, route: str) -> None:
    bodies: list[bytes] = []

    @given(st.dictionaries(FIELDS, JSON, max_size=5) | JSON)
    def collect(body: Any) -> None:
        if isinstance(body, dict) and body:
            body = {ROUTES[route]: "a", "query": "q"} | body
        bodies.append(msgspec.json.encode(body))

    collect()
    bodies += [b"", b"{", b"\xff", b'{"input": "\\ud800"}', b'{"input": 1e999}', b"[" * 5000]
    async with here.worker():
        for body in bodies:
            named = {"Content-Type": "application/json", "X-SIE-Model": EVERYTHING.id}
            answer = await here.client.post(route, content=body, headers=named)
            if answer.status_code == 200:
                continue
            assert answer.status_code < 500, (body, answer.text)
            assert answer.headers["x-sie-error-code"] in BY_CODE
            assert str(msgspec.json.decode(answer.content)).strip()


async def test_a_wrong_method_is_refused_and_the_page_stays_at_the_root(here: Desk) -> None:
    wrong = await here.client.get("/v1/embeddings")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert (await here.client.get("/")).headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(
    ("path", "operation"),
    [("/v1/embeddings", "embeddings"), ("/v2/rerank", "rerank"), (f"/tei/{MODEL}/embed", "tei"), ("/embed", "tei")],
)
async def test_dialects_are_counted_by_names_of_their_own(here: Desk, path: str, operation: str) -> None:
    await here.post(path, {})
    assert (
        f'sie_ingress_requests_total{{code="INVALID_INPUT",operation="{operation}"}} 1.0'
        in (await here.client.get("/metrics")).text
    )
