"""One name, one model: on every route, in every spelling that a path or an event can hold; and what a profile does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from sie_broker import process
from sie_broker.memory import MemoryBroker
from sie_broker.records import Work
from sie_config.deployment import placement
from sie_config.model.model_spec import Profile
from sie_sdk import wire
from tests.ingress.conftest import EVERYTHING, RERANKER, SPEC, TAGGER, Desk, opened

PROFILED = msgspec.structs.replace(
    EVERYTHING, profiles={"light": Profile({"output_dtype": "float16", "normalize": False, "activation": "sigmoid"})}
)
ITEMS = {"items": [{"text": "abc"}]}
SCORE = {"query": {"text": "a"}, **ITEMS}
ROUTES: list[tuple[str, str, dict[str, Any]]] = [
    ("encode", SPEC.id, ITEMS),
    ("score", RERANKER.id, SCORE),
    ("extract", TAGGER.id, ITEMS),
]


@pytest.fixture
async def one() -> AsyncIterator[Desk]:
    """A desk in memory with a worker, for what no broker sees."""
    broker = MemoryBroker()
    await broker.connect()
    async with opened(broker) as desk, desk.worker():
        desk.registry.put(PROFILED)
        yield desk
    await broker.close()


@asynccontextmanager
async def sent(desk: Desk) -> AsyncIterator[list[dict[str, Any]]]:
    """The bodies that workers were given meanwhile."""
    bodies: list[dict[str, Any]] = []

    async def look(work: Work) -> bytes:
        bodies.append(msgspec.msgpack.decode(work.data))
        return await desk.count(work)

    async with desk.worker(look):
        yield bodies


SPELLINGS = {
    "as it is": "{org}/{model}",
    "in capitals": "{ORG}/{MODEL}",
    "without its organisation": "{model}",
    "with its bundle": "default:/{org}/{model}",
    "with its bundle in capitals and its profile": "DEFAULT:/{org}/{model}:Default",
    "with the slash escaped": "{org}%2F{model}",
    "with slash and colons escaped": "default%3A%2F{org}%2f{model}%3adefault",
    "with letters escaped": "%6Frg/{model}",
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS.keys())
async def test_every_spelling_of_a_name_leads_to_the_same_model_on_every_route(one: Desk, spelling: str) -> None:
    for operation, model, body in ROUTES:
        org, name = model.split("/")
        path = spelling.format(org=org, model=name, ORG=org.upper(), MODEL=name.upper())
        answer = await one.post(f"/v1/{operation}/{path}", body)
        assert (answer.status_code, answer.json()["model"]) == (200, model)
        info = await one.client.get(f"/v1/models/{path}")
        assert (info.status_code, info.json()["name"]) == (200, model)


REFUSED = {
    "an escape within an escape is decoded once": ("org%252Fcounting-model", 404, "MODEL_NOT_FOUND"),
    "a space is no part of a name": ("org/counting-model%20", 404, "MODEL_NOT_FOUND"),
    "a plus is no space": ("org/counting+model", 404, "MODEL_NOT_FOUND"),
    "a trailing slash is not cut off": ("org/counting-model/", 404, "MODEL_NOT_FOUND"),
    "a leading slash is not cut off": ("/org/counting-model", 404, "MODEL_NOT_FOUND"),
    "two slashes are not one": ("org//counting-model", 404, "MODEL_NOT_FOUND"),
    "letters of other alphabets": ("%C3%B6rg/m%C3%B6del", 404, "MODEL_NOT_FOUND"),
    "bytes that are no text": ("%ff%fe", 404, "MODEL_NOT_FOUND"),
    "an end of line": ("org/counting%0Amodel", 404, "MODEL_NOT_FOUND"),
    "an end of line at the end": ("org/counting-model%0A", 404, "MODEL_NOT_FOUND"),
    "a null byte": ("org/counting-model%00", 404, "MODEL_NOT_FOUND"),
    "dots that climb, escaped": ("%2e%2e/%2e%2e/etc/passwd", 404, "MODEL_NOT_FOUND"),
    "nothing but a colon": (":", 400, "INVALID_INPUT"),
    "a bundle alone": ("default:/", 400, "INVALID_INPUT"),
    "an empty profile": ("org/counting-model:", 400, "INVALID_INPUT"),
    "600 characters": ("m" * 600, 400, "INVALID_INPUT"),
    "a bundle that is not": ("sglang:/org/counting-model", 404, "BUNDLE_NOT_FOUND"),
    "a profile that is not": ("org/counting-model:fast", 400, "PROFILE_NOT_FOUND"),
}


@pytest.mark.parametrize(("path", "status", "code"), REFUSED.values(), ids=REFUSED.keys())
async def test_a_name_of_nothing_is_refused_alike_on_every_route(one: Desk, path: str, status: int, code: str) -> None:
    for operation, _, body in ROUTES:
        answer = await one.post(f"/v1/{operation}/{path}", body)
        assert (answer.status_code, answer.headers["x-sie-error-code"]) == (status, code)
        assert answer.json()["error"]["param"] == "model" and answer.json()["error"]["hint"]
    info = await one.client.get(f"/v1/models/{path}")
    assert (info.status_code, info.headers["x-sie-error-code"]) == (status, code)


async def test_no_name_at_all_is_refused_with_the_grammar(one: Desk) -> None:
    for operation, _, body in ROUTES:
        answer = await one.post(f"/v1/{operation}/", body)
        assert (answer.status_code, answer.json()["error"]["limit"]) == (400, "[bundle:/]org/model[:profile]")


async def test_a_bundle_that_does_not_serve_the_model_is_a_conflict_that_lists_the_one_that_does(one: Desk) -> None:
    there = placement.deployment("cpu")
    other = msgspec.structs.replace(there.bundles[0], id="other")
    one.registry.deploy(msgspec.structs.replace(there, bundles=(*there.bundles, other)))
    one.registry.put(msgspec.structs.replace(RERANKER, bundle="other"))
    answer = await one.post(f"/v1/encode/other:/{SPEC.id}", ITEMS)
    assert answer.status_code == 409
    assert answer.json()["error"]["compatible_bundles"] == ["default"]


async def raw(port: int, target: bytes) -> tuple[int, dict[str, Any] | None]:
    """What a server on ``port`` answers to a POST whose path is exactly these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(ITEMS).encode()
    head = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close"
    writer.write(head % (target, len(body)) + b"\r\n\r\n" + body)
    answer = await reader.read()
    writer.close()
    status, _, rest = answer.partition(b"\r\n\r\n")
    return int(status.split()[1]), json.loads(rest) if rest.startswith(b"{") else None


async def test_on_a_socket_too_a_path_is_decoded_once_and_nothing_in_it_ends_the_process(one: Desk) -> None:
    served = {
        b"/v1/encode/org/counting-model",
        b"/v1/encode/org%2Fcounting-model:default",
        b"/v1/encode/org%2fCOUNTING-model?x=1",
    }
    refused = {
        b"/v1/encode/org%252Fcounting-model": 404,
        b"/v1/encode/../encode/org/counting-model": 404,  # a client that means to climb climbs itself
        b"/v1/encode/org/../org/counting-model": 404,
        b"/v1/encode/org/counting-model%": 404,
        b"/v1/encode/org/counting-model%zz": 404,
        b"/v1/encode/%ff": 404,
        b"/v1/encode/" + b"m" * 30_000: 400,
        b"/v1/encode/\xc3\xb6rg": 400,
    }
    async with process.serving(one.ingress, "127.0.0.1", 0, drain_s=1) as port:
        for target in served:
            status, answer = await raw(port, target)
            assert answer is not None and (status, answer["model"]) == (200, SPEC.id), target
        for target, expected in refused.items():
            assert (await raw(port, target))[0] == expected, target
        assert (await raw(port, min(served)))[0] == 200


async def test_an_event_names_a_model_as_a_path_does(one: Desk) -> None:
    event = {
        "ce-specversion": "1.0",
        "ce-id": "1",
        "ce-source": "/me",
        "ce-type": "dev.sie.encode.v1",
        "prefer": "wait=5",
    }
    for number, name in enumerate((SPEC.id, "DEFAULT:/org/counting-model:default", "counting-model")):
        answer = await one.client.post(
            "/v1/events", json=ITEMS, headers=event | {"ce-id": str(number), "ce-model": name}
        )
        assert (answer.status_code, answer.json()["model"]) == (200, SPEC.id)
    wrong = {"a:b:c": "INVALID_INPUT", "x:/org/everything": "BUNDLE_NOT_FOUND", "everything:x": "PROFILE_NOT_FOUND"}
    for name, code in wrong.items():
        answer = await one.client.post("/v1/events", json=ITEMS, headers=event | {"ce-model": name})
        assert (answer.status_code, answer.headers["x-sie-error-code"]) == (400, code)
        assert answer.json()["error"]["param"] == "ce-model"


@pytest.mark.parametrize("media", [wire.JSON, wire.MSGPACK])
async def test_a_worker_is_given_the_profile_s_options_and_no_profile(desk: Desk, media: str) -> None:
    desk.registry.put(PROFILED)
    encoder = msgspec.json if media == wire.JSON else msgspec.msgpack
    own = {**ITEMS, "params": {"options": {"profile": "light", "is_query": True}}}
    async with sent(desk) as bodies:
        for name, body in ((f"{PROFILED.id}:light", ITEMS), (PROFILED.id, own), (PROFILED.id, ITEMS)):
            answer = await desk.client.post(
                f"/v1/encode/{name}", content=encoder.encode(body), headers={"content-type": media}
            )
            assert answer.status_code == 200
    chosen, with_own, without = bodies
    assert chosen == {**ITEMS, "params": {"output_dtype": "float16", "options": {"normalize": False}}}
    assert with_own["params"] == {"output_dtype": "float16", "options": {"normalize": False, "is_query": True}}
    assert without == ITEMS


async def test_a_body_travels_as_it_came_when_no_profile_is_chosen(desk: Desk) -> None:
    desk.registry.put(PROFILED)
    bodies: list[bytes] = []

    async def look(work: Work) -> bytes:
        bodies.append(work.data)
        return await desk.count(work)

    own = msgspec.msgpack.encode({"params": {"options": None}, "unknown": 1, **ITEMS})
    async with desk.worker(look):
        await desk.client.post(f"/v1/encode/{PROFILED.id}", content=own)
    assert bodies == [own]


async def test_an_unknown_profile_in_the_options_is_refused_before_anything_is_queued(one: Desk) -> None:
    answer = await one.post(f"/v1/encode/{SPEC.id}", {**ITEMS, "params": {"options": {"profile": "light"}}})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "PROFILE_NOT_FOUND", "params.options.profile")
    assert error["profiles"] == ["default"] and not one.computed


async def test_aliases_lead_to_their_models_on_every_route() -> None:
    broker = MemoryBroker()
    await broker.connect()
    aliases = {"house": SPEC.id, "quick/house": f"default:/{PROFILED.id}:light"}
    async with opened(broker, model_aliases=json.dumps(aliases)) as desk, sent(desk) as bodies:
        desk.registry.put(PROFILED)
        assert (await desk.post("/v1/encode/House", ITEMS)).json()["model"] == SPEC.id
        assert (await desk.post("/v1/encode/quick%2Fhouse", ITEMS)).json()["model"] == PROFILED.id
        assert bodies[1]["params"]["output_dtype"] == "float16"
        assert (await desk.client.get("/v1/models/house")).json()["aliases"] == ["house"]
    await broker.close()
