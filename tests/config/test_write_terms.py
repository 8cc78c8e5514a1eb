"""What a write says beside its body: dry runs do nothing, conditions hold, and a key is obeyed once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from sie_broker.contract import Broker
from sie_config.api import write_terms
from sie_config.model import model_spec
from sie_config.model.model_spec import ModelSpec
from tests.config.served import Service, error, served
from tests.ingress.conftest import SPEC, TAGGER

DOCUMENT = model_spec.document(SPEC)
ONE = f"/models/{SPEC.id}"


def tag(spec: ModelSpec) -> str:
    return model_spec.etag(spec)


def changed(**fields: Any) -> ModelSpec:
    return msgspec.structs.replace(SPEC, **fields)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with served(TAGGER) as service:
        yield service


EVERY_WRITE = [
    ("POST", "/models", DOCUMENT),
    ("PUT", ONE, model_spec.document(changed(revision="2"))),
    ("PATCH", f"/models/{TAGGER.id}", {"revision": "2"}),
    ("DELETE", f"/models/{TAGGER.id}", None),
    ("POST", "/apply", {"models": [DOCUMENT], "owner": "repo"}),
    ("POST", "/rollback/1", None),
]


@pytest.mark.parametrize(("method", "path", "body"), EVERY_WRITE, ids=lambda value: str(value)[:20])
async def test_a_dry_run_says_what_the_write_then_does_and_changes_nothing(
    service: Service, method: str, path: str, body: object
) -> None:
    if "rollback" in path:
        await service.send("POST", "/models", DOCUMENT)
    before = service.epoch
    tried = await service.send(method, f"{path}?dry_run=true", body, idempotency_key="k")
    assert tried.status_code == 200
    assert (tried.json()["dry_run"], tried.json()["epoch"], service.epoch) == (True, before, before)
    done = await service.send(method, path, body, idempotency_key="k")
    assert (done.json()["dry_run"], done.json()["epoch"], service.epoch) == (False, before + 1, before + 1)
    assert tried.json()["changes"] == done.json()["changes"] != []


@pytest.mark.parametrize("condition", ["if-match", "if-none-match"])
def test_a_write_under_another_condition_is_another_write(condition: str) -> None:
    def digest(**headers: str) -> str:
        return write_terms.read("PUT /models/m", {}, headers, b"{}", ()).digest

    assert len({digest(), digest(**{condition: "*"}), digest(**{condition: '"a"'})}) == 3


@pytest.mark.parametrize("query", ["dry_run=yes", "dryrun=true", "dry_run=true&x=1", "owner=a"])
async def test_a_parameter_that_is_not_known_is_refused_rather_than_passed_over(service: Service, query: str) -> None:
    assert (await service.send("PUT", f"{ONE}?{query}", DOCUMENT)).status_code == 400
    assert service.epoch == 1


async def test_a_write_under_a_condition_is_made_only_where_it_holds(service: Service) -> None:
    created = await service.send("PUT", ONE, DOCUMENT, if_none_match="*")
    assert created.status_code == 201
    refused = await service.send("PUT", ONE, DOCUMENT, if_none_match="*")
    assert (refused.status_code, error(refused)["code"]) == (412, "PRECONDITION_FAILED")
    assert error(refused)["etag"] == tag(SPEC)
    second = await service.send("PATCH", ONE, {"revision": "2"}, if_match=created.headers["etag"])
    assert second.status_code == 200
    for method, path, body in (
        ("PATCH", ONE, {"revision": "3"}),
        ("PUT", ONE, DOCUMENT),
        ("DELETE", ONE, None),
        ("POST", "/models", {"id": SPEC.id, "profiles": {"light": {}}}),
    ):
        late = await service.send(method, path, body, if_match=created.headers["etag"])
        assert (late.status_code, error(late)["etag"]) == (412, tag(changed(revision="2")))
    absent = await service.send("DELETE", "/models/org/none", if_match="*")
    assert (absent.status_code, error(absent)["etag"]) == (412, None)
    listed = await service.send("GET", "/models")
    await service.send("PATCH", ONE, {"revision": "4"})
    stale = await service.send("POST", "/apply", {"models": []}, if_match=listed.headers["etag"])
    assert stale.status_code == 412


@pytest.mark.parametrize(("method", "path", "body"), EVERY_WRITE[:5], ids=lambda value: str(value)[:20])
async def test_a_repeated_key_is_answered_as_before_and_changes_nothing(
    service: Service, method: str, path: str, body: object
) -> None:
    first = await service.send(method, path, body, idempotency_key="once")
    epoch = service.epoch
    await service.send("PUT", "/models/org/between", model_spec.document(changed(id="org/between")))
    again = await service.send(method, path, body, idempotency_key="once")
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert again.headers.get("etag") == first.headers.get("etag")
    assert again.headers["idempotency-replayed"] == "true"
    assert service.epoch == epoch + 1
    others: list[tuple[str, str, object]] = [(method, f"{path}?note=x", body), ("PATCH", ONE, {"licence": "mit"})]
    for other in others:
        mismatch = await service.send(*other, idempotency_key="once")
        assert (mismatch.status_code, error(mismatch)["code"]) == (422, "IDEMPOTENCY_MISMATCH")


async def test_a_key_that_comes_many_times_at_once_is_obeyed_once(service: Service) -> None:
    await service.send("PATCH", f"/models/{TAGGER.id}", {"revision": "2"})
    path = f"/models/{TAGGER.id}"  # twice it would reveal the baseline's spec, and then delete that
    answers = await asyncio.gather(*(service.send("DELETE", path, idempotency_key="k") for _ in range(8)))
    assert {answer.content for answer in answers} == {answers[0].content}
    assert service.epoch == 3 and service.specs() == {TAGGER.id: TAGGER}


async def test_a_key_of_a_write_that_changed_nothing_is_remembered_too(broker: Broker) -> None:
    async with served(SPEC, broker=broker) as service:
        first = await service.send("PUT", ONE, DOCUMENT, idempotency_key="k")
        assert first.json()["unchanged"]
        await service.send("PATCH", ONE, {"revision": "2"})
        again = await service.send("PUT", ONE, DOCUMENT, idempotency_key="k")
        assert (again.content, service.epoch) == (first.content, 2)
        assert service.specs() == {SPEC.id: changed(revision="2")}


async def test_a_key_is_known_to_the_copy_that_writes_next(broker: Broker) -> None:
    path = f"/models/{TAGGER.id}"
    async with served(TAGGER, broker=broker) as service:
        await service.send("PATCH", path, {"revision": "2"})
        first = await service.send("DELETE", path, idempotency_key="k")
    async with served(TAGGER, broker=broker) as service:
        again = await service.send("DELETE", path, idempotency_key="k")
        assert (again.content, service.epoch) == (first.content, 3)
        assert service.specs() == {TAGGER.id: TAGGER}


async def test_a_key_that_another_copy_obeys_after_we_looked_is_answered_as_there(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await service.send("PUT", ONE, DOCUMENT, idempotency_key="k")

    async def not_yet(key: str) -> None:
        return None

    monkeypatch.setattr(service.writer, "request", not_yet)
    again = await service.send("PUT", ONE, DOCUMENT, idempotency_key="k")
    assert (again.content, again.headers["idempotency-replayed"]) == (first.content, "true")
    other = await service.send("PATCH", ONE, {"licence": "mit"}, idempotency_key="k")
    assert (other.status_code, error(other)["code"]) == (422, "IDEMPOTENCY_MISMATCH")
    assert service.epoch == 2


async def test_a_refused_write_uses_no_key(service: Service) -> None:
    refused = await service.send("PUT", ONE, {"id": SPEC.id}, idempotency_key="k")
    assert refused.status_code == 422
    assert (await service.send("PUT", ONE, DOCUMENT, idempotency_key="k")).status_code == 201


async def test_who_writes_and_why_is_kept(service: Service) -> None:
    note = f"{ONE}?note=ticket%20%C3%A4%0A7"
    await service.client.put(f"/v1/configs{note}", json=DOCUMENT, headers={b"X-SIE-Actor": "Åsa".encode()})
    event = await service.writer.event(service.epoch)
    assert event is not None
    assert (event.actor, event.kind, event.note) == ("Åsa", "put", "ticket ä 7")
    for headers in ({"x_sie_actor": "a" * 129}, {"idempotency_key": "k" * 129}, {"if_match": "x"}):
        assert (await service.send("PUT", ONE, DOCUMENT, **headers)).status_code == 400
