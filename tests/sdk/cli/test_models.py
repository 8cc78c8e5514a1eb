"""``sie models`` and ``sie health``: what a server has, for people and for programs."""

from __future__ import annotations

import json

from sie_sdk import ModelNotFoundError, NotFoundError
from tests.sdk.cli.running import sie
from tests.sdk.scripted_server import ScriptedServer, json_answer, refused

MODEL = {
    "name": "org/m",
    "outputs": ["dense", "sparse", "score", "json"],
    "dims": {"dense": 384, "sparse": 30522},
    "max_sequence_length": 512,
    "revision": "abc",
    "bundle": "default",
    "state": "loaded",
    "inputs": ["text"],
    "profiles": {"default": {"is_default": True}, "fast": {}},
    "aliases": ["m-latest"],
}
SPEC = {"licence": "mit", "profile": "cpu", "tasks": {"dense": {"dims": [256, 128]}}}


def test_a_model_is_shown_with_what_it_gives_and_how_to_call_it(server: ScriptedServer) -> None:
    server.script = [json_answer(MODEL), json_answer(SPEC)]
    done = sie("models", "show", "m", "--url", server.url)
    assert [asked.path for asked in server.asked] == ["/v1/models/m", "/v1/configs/models/org/m"]
    assert done.stdout.splitlines()[:11] == [
        "org/m",
        "  outputs   dense (384 dims), sparse (30522 dims), score, json",
        "  shorter   256, 128 dims: --option dimensions=N",
        "  length    512 tokens",
        "  licence   mit",
        "  inputs    text",
        "  revision  abc",
        "  profiles  default, fast",
        "  aliases   m-latest",
        "  runs in   default on cpu",
        "  state     loaded",
    ]
    called = done.stdout.split("Call it:\n")[1]
    assert '  sie encode org/m "hello"' in called
    assert '  sie encode org/m --type sparse "hello"' in called
    assert "  sie score org/m" in called and "  sie extract org/m" in called
    assert 'client.encode("org/m", "hello").dense' in called


def test_a_planned_model_is_shown_with_what_it_waits_for_and_not_how_to_call_it(server: ScriptedServer) -> None:
    waits = {"code": "MODEL_PLANNED", "message": "its span head", "attempts": 0, "permanent": True}
    server.script = [json_answer({**MODEL, "state": "planned", "last_error": waits}), json_answer(SPEC)]
    done = sie("models", "show", "m", "--url", server.url)
    assert "  state     planned: its span head\n" in done.stdout and "Call it" not in done.stdout


def test_a_server_that_shows_no_specs_shows_its_models(server: ScriptedServer) -> None:
    server.script = [json_answer(MODEL), refused(NotFoundError("There is nothing there."))]
    done = sie("models", "show", "m", "--url", server.url)
    assert done.exit_code == 0 and "licence" not in done.stdout


def test_a_model_for_programs_is_its_row(server: ScriptedServer) -> None:
    server.script = [json_answer(MODEL)]
    assert json.loads(sie("models", "show", "m", "--json", "--url", server.url).stdout)["dims"] == MODEL["dims"]


def test_a_misspelt_model_is_exit_code_1_with_the_hint(server: ScriptedServer) -> None:
    server.script = [refused(ModelNotFoundError("There is no model x.", hint="Did you mean org/m?"))]
    done = sie("models", "show", "x", "--url", server.url)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "Error: There is no model x.\nHint: Did you mean org/m?\nRequest: r-error\n"


LANE = {"pool": "default", "bundle": "default", "gpu": "cpu", "waiting": 4, "rate": 38.5, "measured": True, "wanted": 3}
WORKER = {
    "name": "host-1",
    "state": "ready",
    "pool": "default",
    "bundle": "default",
    "gpu": "cpu",
    "queue_depth": 2,
    "memory_used_bytes": 812_000_000,
    "loaded_models": ["org/m", "org/n"],
}


def test_health_is_the_lanes_and_the_workers(server: ScriptedServer) -> None:
    server.script = [json_answer({"lanes": [LANE | {"live": 1}], "workers": [WORKER]})] * 2
    lanes, lane, gap, workers, worker = sie("health", "--url", server.url).stdout.splitlines()
    assert lanes.split() == ["lane", "waiting", "wanted", "live", "works/s"] and gap == ""
    assert lane.split() == ["default/default/cpu", "4", "3", "1", "38.5"]
    assert workers.split()[:2] == ["worker", "state"]
    assert worker.split() == ["host-1", "ready", "default", "default", "cpu", "2", "812", "MB", "org/m,", "org/n"]
    assert json.loads(sie("health", "--json", "--url", server.url).stdout)["workers"][0]["name"] == "host-1"


def test_a_server_at_zero_is_well(server: ScriptedServer) -> None:
    server.script = [json_answer({"lanes": [], "workers": []})]
    done = sie("health", "--url", server.url)
    assert (done.exit_code, done.stdout) == (0, "No workers; they start when there is work.\n")


def test_the_key_and_the_tenant_are_sent_from_options_and_variables(server: ScriptedServer) -> None:
    server.script = [json_answer({"models": []})]
    sie("models", "--api-key", "secret", "--tenant", "acme", "--url", server.url)
    headers = server.asked[0].headers
    assert (headers["authorization"], headers["x-sie-tenant"]) == ("Bearer secret", "acme")


def test_a_page_of_a_proxy_is_told_as_what_it_is(server: ScriptedServer) -> None:
    server.script = [json_answer("x")]
    server.script[0].body = b"<html>"
    done = sie("health", "--url", server.url)
    assert done.exit_code == 1 and "not JSON" in done.stderr
