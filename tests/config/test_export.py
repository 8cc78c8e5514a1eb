"""The whole catalogue in one answer, and its history: what a reader takes from them is what there is, or was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sie_config import catalog
from sie_config.api.export import Export
from sie_config.deployment import placement
from sie_config.epochs.state import State
from sie_config.epochs.store import Change, Event, Stored
from sie_config.model import model_spec
from sie_config.model.model_spec import ModelSpec
from tests.config.served import Service, error, served
from tests.ingress.conftest import EVERYTHING, SPEC, TAGGER

PACKAGED = [*catalog.load().values()]
DEPLOYMENT = placement.deployment("cpu")


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with served(TAGGER, deployment=DEPLOYMENT) as service:
        yield service


async def test_a_snapshot_has_every_model_as_it_was_written_and_every_bundle(service: Service) -> None:
    await service.send("POST", "/apply", {"models": [model_spec.document(SPEC)], "owner": "repo"})
    told = (await service.send("GET", "/export")).json()
    assert (told["snapshot_version"], told["epoch"], told["hash"]) == (1, 2, service.writer.state.digest)
    assert told["generated_at"] > 1.7e9
    first, second = told["models"]
    assert (first["model_id"], first["origin"], first["owner"]) == (SPEC.id, "written", "repo")
    assert (second["model_id"], second["origin"], second["owner"]) == (TAGGER.id, "baseline", "")
    for row in (first, second):
        spec = service.specs()[row["model_id"]]
        assert model_spec.parse(row["model_config"], origin="json") == spec
        assert model_spec.parse(yaml.safe_load(row["raw_yaml"]), origin="yaml") == spec
        assert (row["etag"], row["affected_bundles"]) == (model_spec.etag(spec), ["default"])
    assert [bundle["name"] for bundle in told["bundles"]] == [each.id for each in DEPLOYMENT.bundles]


async def test_an_export_as_yaml_is_what_an_apply_takes(service: Service) -> None:
    await service.send("POST", "/apply", {"models": [model_spec.document(EVERYTHING)], "owner": "repo"})
    text = (await service.send("GET", "/export?format=yaml")).content
    async with served() as elsewhere:
        answer = await elsewhere.client.post("/v1/configs/apply", content=text)
        assert answer.json()["created"] == [EVERYTHING.id, TAGGER.id]
        assert elsewhere.specs() == service.specs()
    again = await service.client.post("/v1/configs/apply", content=text)
    assert again.json()["changes"] == []


async def test_a_catalogue_that_was_emptied_is_exported_as_such(service: Service) -> None:
    await service.send("DELETE", f"/models/{TAGGER.id}")
    assert (await service.send("GET", "/export")).json()["models"] == []
    assert list(yaml.safe_load_all((await service.send("GET", "/export?format=yaml")).text)) == []


@given(st.lists(st.tuples(st.sampled_from(PACKAGED[:5]), st.integers(0, 2)), max_size=12))
def test_pieces_that_are_kept_are_never_of_another_time(writes: list[tuple[ModelSpec, int]]) -> None:
    kept = Export(lambda _: ["default"])
    state = State()
    for epoch, (spec, choice) in enumerate(writes, 1):
        before = state.get(spec.id)
        revised = msgspec.structs.replace(spec, owner=str(choice))
        after = Stored(revised, "written", epoch) if choice else None
        state.apply(Event(epoch, 0.0, "", "put", (Change(spec.id, before, after),)))
        anew = Export(lambda _: ["default"])
        assert kept.json(state, 1.0, []) == anew.json(state, 1.0, [])
        assert kept.yaml(state) == anew.yaml(state)


async def test_while_pieces_are_made_others_get_their_turns() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    state = State.of(msgspec.structs.replace(SPEC, id=f"org/m{number}") for number in range(200))
    counting = asyncio.create_task(count())
    export = Export(lambda _: ["default"])
    await export.prepare(state)
    counting.cancel()
    assert turns >= 10
    assert export.json(state, 1.0, []) == Export(lambda _: ["default"]).json(state, 1.0, [])


# -- history -----------------------------------------------------------------------------------------------------------


async def test_the_history_is_told_in_pages_the_newest_first(service: Service) -> None:
    for revision in "12345":
        await service.send("PATCH", f"/models/{TAGGER.id}?note=n{revision}", {"revision": revision}, x_sie_actor="ada")
    first = (await service.send("GET", "/history?limit=4")).json()
    assert [event["epoch"] for event in first["events"]] == [6, 5, 4, 3] and first["next_before"] == 3
    newest = first["events"][0]
    assert (newest["actor"], newest["kind"], newest["note"]) == ("ada", "patch", "n5")
    assert newest["models"] == [TAGGER.id]
    assert newest["changes"][0]["fields"] == [{"path": "revision", "before": "4", "after": "5"}]
    rest = (await service.send("GET", f"/history?before={first['next_before']}")).json()
    assert [(event["epoch"], event["kind"]) for event in rest["events"]] == [(2, "patch"), (1, "seed")]
    assert rest["next_before"] is None
    nothing = (await service.send("GET", "/history?before=1")).json()
    assert nothing == {"events": [], "next_before": None}


async def test_one_write_is_told_with_whole_specs(service: Service) -> None:
    await service.send("PATCH", f"/models/{TAGGER.id}", {"revision": "2"})
    await service.send("DELETE", f"/models/{TAGGER.id}")
    (patched,) = (await service.send("GET", "/history/2")).json()["changes"]
    assert patched["before"] == model_spec.document(TAGGER)
    assert patched["after"] == {**model_spec.document(TAGGER), "revision": "2"}
    assert (patched["origin_before"], patched["origin_after"]) == ("baseline", "written")
    (revealed,) = (await service.send("GET", "/history/3")).json()["changes"]
    assert (revealed["action"], revealed["origin_after"]) == ("changed", "baseline")
    (seeded,) = (await service.send("GET", "/history/1")).json()["changes"]
    assert (seeded["action"], seeded["before"]) == ("added", None)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/history/99", 404),
        ("/history/0", 404),
        ("/history/x", 400),
        ("/history/-1", 400),
        (f"/history/{'9' * 40}", 400),
        ("/history?limit=0", 400),
        ("/history?limit=501", 400),
        ("/history?before=x", 400),
        ("/export?format=toml", 400),
    ],
)
async def test_what_there_is_not_is_refused(service: Service, path: str, status: int) -> None:
    answer = await service.send("GET", path)
    assert (answer.status_code, bool(error(answer)["code"])) == (status, True)
