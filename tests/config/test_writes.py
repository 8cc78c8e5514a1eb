"""The routes that change the catalogue: what each answers, what it leaves, and what it refuses without a trace."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
import yaml
from starlette.routing import Route

from sie_broker.contract import Broker
from sie_config.epochs import writer
from sie_config.model import model_spec
from sie_config.model.model_spec import ModelSpec
from tests.config.served import NAME, READER, Service, error, served
from tests.ingress.conftest import EVERYTHING, SPEC, TAGGER

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


async def test_a_model_is_added_changed_and_removed_and_each_answer_says_what_that_did(broker: Broker) -> None:
    async with served(TAGGER, broker=broker) as service:
        added = await service.send("POST", "/models", DOCUMENT)
        assert added.status_code == 201
        told = added.json()
        assert told.pop("warnings") and told.pop("changes")[0]["action"] == "added"
        assert told == {
            "model_id": SPEC.id,
            "created_profiles": ["default"],
            "existing_profiles_skipped": [],
            "routable_bundles_by_profile": {"default": ["default"]},
            "router_id": NAME,
            "epoch": 2,
            "etag": tag(SPEC),
            "dry_run": False,
        }
        assert added.headers["etag"] == f'"{tag(SPEC)}"'

        replaced = (await service.send("PUT", ONE, model_spec.document(changed(revision="2")))).json()
        assert (replaced["replaced"], replaced["unchanged"], replaced["epoch"]) == (True, False, 3)
        assert replaced["affected_bundles"] == ["default"]
        assert replaced["changes"] == [
            {
                "model": SPEC.id,
                "action": "changed",
                "fields": [{"path": "revision", "before": "0", "after": "2"}],
                "etag_before": tag(SPEC),
                "etag_after": tag(changed(revision="2")),
            }
        ]

        patched = (await service.send("PATCH", ONE, {"tasks": {"dense": {"normalize": False}}})).json()
        assert [each["path"] for each in patched["changes"][0]["fields"]] == ["tasks.dense.normalize"]

        deleted = (await service.send("DELETE", ONE)).json()
        assert (deleted["deleted"], deleted["unchanged"], deleted["fallback"], deleted["etag"]) == (
            True,
            False,
            False,
            None,
        )
        assert deleted["epoch"] == service.epoch == 5
        assert list(service.specs()) == [TAGGER.id]


async def test_what_changes_nothing_makes_no_epoch_and_says_so(service: Service) -> None:
    await service.send("PUT", ONE, DOCUMENT)
    before = service.epoch
    again = await service.send("POST", "/models", DOCUMENT)
    assert (again.status_code, again.json()["created_profiles"]) == (200, [])
    for method, body in (("PUT", DOCUMENT), ("PATCH", {})):
        answer = await service.send(method, ONE, body)
        assert (answer.status_code, answer.json()["unchanged"], answer.json()["replaced"]) == (200, True, False)
        assert answer.headers["etag"] == f'"{tag(SPEC)}"'
    applied = (await service.send("POST", "/apply", {"models": [DOCUMENT]})).json()
    assert applied["unchanged"] == [SPEC.id] and not applied["changes"]
    await service.send("DELETE", f"/models/{TAGGER.id}")
    gone = (await service.send("DELETE", f"/models/{TAGGER.id}")).json()
    assert (gone["deleted"], gone["unchanged"]) == (False, True)
    assert service.epoch == before + 1


async def test_a_delete_that_reveals_the_catalogue_s_own_spec_says_so(service: Service) -> None:
    await service.send("PATCH", f"/models/{TAGGER.id}", {"revision": "9"})
    answer = await service.send("DELETE", f"/models/{TAGGER.id}")
    assert (answer.json()["fallback"], answer.json()["etag"]) == (True, tag(TAGGER))
    assert service.specs() == {TAGGER.id: TAGGER}


async def test_profiles_are_added_to_a_model_and_conflicts_are_listed(service: Service) -> None:
    await service.send("POST", "/models", DOCUMENT)
    light = {"id": SPEC.id, "profiles": {"light": {"options": {"output_dtype": "int8"}}}}
    added = await service.send("POST", "/models", light)
    assert (added.status_code, added.json()["created_profiles"]) == (200, ["light"])
    again = (await service.send("POST", "/models", light)).json()
    assert (again["created_profiles"], again["existing_profiles_skipped"]) == ([], ["light"])
    refused = await service.send("POST", "/models", {**light, "profiles": {"light": {}}, "revision": "3"})
    assert (refused.status_code, error(refused)["code"]) == (409, "CONTENT_CONFLICT")
    assert error(refused)["conflicts"] == ["revision", "profiles.light.options"]


async def test_who_takes_a_model_from_its_owner_by_hand_is_warned(service: Service) -> None:
    await service.send("POST", "/apply", {"models": [DOCUMENT], "owner": "repo"})
    answer = (await service.send("PUT", ONE, DOCUMENT)).json()
    assert f"{SPEC.id} was repo's, and is nobody's now." in answer["warnings"]
    again = (await service.send("PUT", ONE, {**DOCUMENT, "revision": "2"})).json()
    assert not any("was" in warning for warning in again["warnings"])


async def test_many_models_are_applied_at_once_or_none(service: Service) -> None:
    models = [DOCUMENT, model_spec.document(EVERYTHING)]
    answer = (await service.send("POST", "/apply", {"models": models, "owner": "repo", "prune": True})).json()
    assert (answer["created"], answer["epoch"]) == ([SPEC.id, EVERYTHING.id], service.epoch)
    assert [each["action"] for each in answer["changes"]] == ["added", "added"]
    pruned = (await service.send("POST", "/apply", {"models": models[1:], "owner": "repo", "prune": True})).json()
    assert (pruned["deleted"], pruned["unchanged"]) == ([SPEC.id], [EVERYTHING.id])
    before = service.epoch
    elsewhere = await service.send("POST", "/apply", {"models": models, "owner": "other"})
    assert (elsewhere.status_code, error(elsewhere)["owned"]) == (409, {EVERYTHING.id: "repo"})
    faulty = await service.send("POST", "/apply", {"models": [DOCUMENT, {"id": "org/x"}]})
    assert (faulty.status_code, error(faulty)["code"]) == (422, "INVALID_SPEC")
    assert error(faulty)["faults"][0]["path"].startswith("models[1].")
    assert service.epoch == before and SPEC.id not in service.specs()


async def test_a_folder_of_yaml_is_applied_as_one_stream(service: Service) -> None:
    text = yaml.safe_dump_all([DOCUMENT, model_spec.document(EVERYTHING)])
    answer = await service.client.post(
        "/v1/configs/apply?owner=repo&prune&note=first", content=text, headers={"Content-Type": "application/yaml"}
    )
    assert answer.json()["created"] == [SPEC.id, EVERYTHING.id]
    assert {spec.owner for spec in service.specs().values()} == {"repo", ""}
    nothing = await service.client.post("/v1/configs/apply?owner=repo&prune=true", content=b"")
    assert nothing.status_code == 400  # an empty file does not delete what there is
    assert (await service.send("POST", "/apply", {"models": [], "owner": "repo", "prune": True})).json()["deleted"]


async def test_the_catalogue_is_rolled_back_to_an_epoch_as_a_new_one(service: Service) -> None:
    await service.send("POST", "/models", DOCUMENT)
    then, epoch = service.specs(), service.epoch
    await service.send("PATCH", ONE, {"revision": "2"})
    await service.send("DELETE", f"/models/{TAGGER.id}")
    tried = (await service.send("POST", f"/rollback/{epoch}?dry_run=true")).json()
    back = (await service.send("POST", f"/rollback/{epoch}")).json()
    assert service.specs() == then and back["epoch"] == epoch + 3
    assert (back["created"], back["changed"]) == ([TAGGER.id], [SPEC.id])
    assert tried["changes"] == back["changes"]
    for wrong, status in (("99", 404), ("0", 404), ("x", 400), ("-1", 400), ("9" * 5000, 400)):
        assert (await service.send("POST", f"/rollback/{wrong}")).status_code == status


# -- what comes, and what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        (b"id: [", {"Content-Type": "application/yaml"}, 400, "INVALID_INPUT"),
        (b"{}", {"Content-Type": "application/x-www-form-urlencoded"}, 415, "UNSUPPORTED_MEDIA_TYPE"),
        (b"{}", {"Content-Encoding": "gzip"}, 415, "UNSUPPORTED_MEDIA_TYPE"),
        (b"id: org/a__b", {"Content-Encoding": "Identity"}, 422, "INVALID_SPEC"),
        (b"a: 1\na: 2", {}, 400, "INVALID_INPUT"),
        (b"- 1", {}, 400, "INVALID_INPUT"),
        (b"", {}, 400, "INVALID_INPUT"),
        (b"a: 1\n---\nb: 1", {}, 400, "INVALID_INPUT"),
        (b" " * (1024 * 1024 + 1), {}, 413, "PAYLOAD_TOO_LARGE"),
        (b"id: org/a__b", {}, 422, "INVALID_SPEC"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_a_body_that_is_no_spec_is_refused_by_its_kind(
    service: Service, content: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    for method, path in (("POST", "/v1/configs/models"), ("PUT", f"/v1/configs{ONE}")):
        answer = await service.client.request(method, path, content=content, headers=headers)
        assert (answer.status_code, error(answer)["code"]) == (status, code)
    assert service.epoch == 1


async def test_all_faults_of_a_spec_are_told_at_once(service: Service) -> None:
    answer = await service.send("POST", "/models", {**DOCUMENT, "tasks": {"dense": {"dim": 0}}, "pool": 7, "x": 1})
    assert answer.status_code == 422
    assert {fault["path"] for fault in error(answer)["faults"]} == {"tasks.dense.dim", "pool", "x"}


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/v1/nothing", 404, None),
        ("GET", "/v1/configs/", 404, None),
        ("PATCH", "/v1/configs/models", 405, "GET, HEAD, POST"),
        ("POST", "/v1/configs/models/org/m", 405, "DELETE, GET, HEAD, PATCH, PUT"),
        ("GET", "/v1/configs/apply", 405, "POST"),
        ("DELETE", "/v1/configs/history", 405, "GET, HEAD"),
    ],
)
async def test_what_is_no_route_is_a_typed_error(
    service: Service, method: str, path: str, status: int, allow: str | None
) -> None:
    answer = await service.client.request(method, path)
    assert (answer.status_code, answer.headers.get("allow")) == (status, allow)
    assert answer.headers["x-sie-error-code"] == error(answer)["code"]


async def test_every_route_asks_for_its_token_and_probes_for_none() -> None:
    async with served(TAGGER, read=READER) as service:
        places = {"model:path": TAGGER.id, "epoch": "1", "bundle": "default"}
        routes = [each for each in service.app.routes if isinstance(each, Route) and each.path.startswith("/v1")]
        every = [(method, route.path) for route in routes for method in route.methods or ()]
        assert len(every) > 20
        for method, form in every:
            path = re.sub(r"{([^}]*)}", lambda found: places[found[1]], form)
            for token in ("", "wrong"):
                answer = await service.client.request(method, path, headers={"Authorization": f"Bearer {token}"})
                assert (answer.status_code, answer.headers["x-sie-error-code"]) == (401, "UNAUTHORIZED"), path
                assert answer.headers["www-authenticate"].startswith("Bearer")
            reader = await service.client.request(method, path, headers={"Authorization": f"Bearer {READER}"})
            reads = method in ("GET", "HEAD") or path.endswith("resolve")
            assert (reader.status_code not in (401, 403)) == reads, path
        for probe in ("/healthz", "/livez", "/readyz"):
            assert (await service.client.get(probe, headers={"Authorization": ""})).text == "ok"
        assert service.epoch == 1


async def test_without_an_admin_token_writes_are_off_and_reads_are_not() -> None:
    async with served(TAGGER, admin="") as service:
        answer = await service.send("PUT", ONE, DOCUMENT)
        assert (answer.status_code, error(answer)["code"]) == (403, "FORBIDDEN")
        assert "SIE_ADMIN_TOKEN" in error(answer)["message"]
        assert (await service.send("GET", "/models")).status_code == 200


async def test_another_writer_is_a_reason_to_come_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "IDLE_S", 0.01)
    monkeypatch.setattr(writer, "PATIENCE_S", 0.01)
    service.writer._leading.clear()
    answer = await service.send("PUT", ONE, DOCUMENT)
    assert (answer.status_code, error(answer)["code"]) == (503, "CONFIG_WRITER_BUSY")
    assert answer.headers["retry-after"] == "1"
    assert (await service.send("GET", "/epoch")).json()["writer"] is None
    assert (await service.send("PUT", f"{ONE}?dry_run", DOCUMENT)).status_code == 200


async def test_what_went_wrong_inside_is_told_to_nobody(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(service.writer, "write", broken)
    answer = await service.send("PUT", ONE, DOCUMENT, x_request_id="r-1")
    assert (answer.status_code, error(answer)["code"]) == (500, "INTERNAL_ERROR")
    assert "secret" not in answer.text and answer.headers["x-request-id"] == "r-1"


async def test_the_same_spec_comes_as_yaml_and_as_json(service: Service) -> None:
    for media, content in (("text/plain", yaml.safe_dump(DOCUMENT)), ("application/json", json.dumps(DOCUMENT))):
        answer: httpx.Response = await service.client.put(
            f"/v1/configs{ONE}", content=content, headers={"Content-Type": media}
        )
        assert answer.json()["etag"] == tag(SPEC)
