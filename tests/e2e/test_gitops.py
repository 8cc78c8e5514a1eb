"""A platform engineer's day: specs in a folder, diff, apply, a request served, rollback, two owners that leave each
other alone. Against ``sie up``, through the command line as a shell runs it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest
import yaml

from tests import tiny_model
from tests.e2e.conftest import SPEC
from tests.platform import Platform, wait_until

pytestmark = pytest.mark.e2e

SIE = str(Path(sys.executable).with_name("sie"))


class Engineer:
    """Somebody with a shell and a checkout."""

    def __init__(self, platform: Platform, state: Path, checkout: Path) -> None:
        self.env = os.environ | {"SIE_BASE_URL": platform.url, "SIE_STATE_DIR": str(state), "SIE_ACTOR": "alice"}
        self.checkout = checkout

    def sie(self, *words: str, expected: int = 0, stdin: str | None = None, **env: str) -> str:
        """The standard output of a command that ends with that exit code."""
        done = subprocess.run(
            [SIE, *words],
            env=self.env | env,
            cwd=self.checkout,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == expected, done.stdout + done.stderr
        return done.stdout + (done.stderr if expected else "")

    def write(self, file: str, **fields: object) -> None:
        """A spec of the tiny model, with these fields."""
        spec = yaml.safe_load(SPEC.format(path=self.checkout / "weights")) | fields
        path = self.checkout / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(spec))

    def models(self) -> set[str]:
        """What the server lists of ours."""
        listed = self.sie("config", "list", "--json").splitlines()
        return {row["model_id"] for row in map(json.loads, listed) if row["model_id"].startswith("acme/")}


@pytest.fixture(scope="module")
def engineer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engineer]:
    state, checkout = tmp_path_factory.mktemp("state"), tmp_path_factory.mktemp("checkout")
    tiny_model.make(checkout / "weights")
    platform = Platform(state)
    platform.up()
    try:
        yield Engineer(platform, state, checkout)
    finally:
        platform.down()


def test_a_folder_of_specs_is_diffed_applied_served_and_rolled_back(engineer: Engineer) -> None:
    engineer.write("models/tiny.yaml", id="acme/tiny")
    assert "no faults" in engineer.sie("config", "validate", "models")
    plan = engineer.sie("config", "diff", "models", expected=2)
    assert "+ acme/tiny" in plan and "Plan: 1 to add, 0 to change, 0 to delete" in plan
    assert engineer.models() == set(), "a diff changes nothing"
    applied = engineer.sie("config", "apply", "models", "--yes", "--note", "the first", "--wait", "30")
    assert "1 added" in applied
    assert "Plan: 0 to add" in engineer.sie("config", "diff", "models")

    vector = json.loads(engineer.sie("encode", "acme/tiny", "hello world", "--json"))
    assert len(vector["dense"]["values"]) == 32 if isinstance(vector["dense"], dict) else len(vector["dense"]) == 32

    engineer.write("models/tiny.yaml", id="acme/tiny", max_sequence_length=16, licence="mit")
    plan = engineer.sie("config", "diff", "models", expected=2)
    assert "~ acme/tiny" in plan and "~ max_sequence_length: 32 -> 16" in plan and "+ licence" in plan
    engineer.sie("config", "apply", "models", "--yes", "--wait", "30")
    assert "max_sequence_length: 16" in engineer.sie("config", "show", "acme/tiny")

    writes = [json.loads(line) for line in engineer.sie("config", "history", "--json").splitlines()]
    first = next(each["epoch"] for each in writes if each["note"] == "the first")
    assert writes[0]["actor"] == "alice" and writes[0]["models"] == ["acme/tiny"]
    assert "32 -> 16" in engineer.sie("config", "history", str(writes[0]["epoch"]))
    engineer.sie("config", "rollback", str(first), "--yes")
    wait_until(lambda: "max_sequence_length: 32" in engineer.sie("config", "show", "acme/tiny"))
    engineer.sie("config", "diff", "models", expected=2)
    engineer.sie("config", "delete", "acme/tiny", "--yes")
    wait_until(lambda: engineer.models() == set())


def test_two_owners_that_prune_leave_each_other_s_models_alone(engineer: Engineer) -> None:
    for team in ("red", "blue"):
        for name in ("a", "b"):
            engineer.write(f"{team}/{name}.yaml", id=f"acme/{team}-{name}")
        engineer.sie("config", "apply", team, "--owner", team, "--prune", "--yes")
    everything = {"acme/red-a", "acme/red-b", "acme/blue-a", "acme/blue-b"}
    wait_until(lambda: engineer.models() == everything)
    (engineer.checkout / "red" / "b.yaml").unlink()
    plan = engineer.sie("config", "diff", "red", "--owner", "red", "--prune", expected=2)
    assert "- acme/red-b" in plan and "blue" not in plan
    engineer.sie("config", "apply", "red", "--owner", "red", "--prune", "--yes")
    wait_until(lambda: engineer.models() == everything - {"acme/red-b"})

    engineer.write("red/stolen.yaml", id="acme/blue-a")
    refused = engineer.sie("config", "apply", "red", "--owner", "red", "--yes", expected=1)
    assert "blue" in refused
    engineer.sie("config", "apply", "red", "--owner", "red", "--adopt", "--yes")
    engineer.sie("config", "apply", "blue", "--owner", "blue", "--prune", "--yes", expected=1)
    for team in ("red", "blue"):
        for file in (engineer.checkout / team).iterdir():
            file.unlink()
        (engineer.checkout / team / "none.yaml").write_text("")
        engineer.sie("config", "apply", team, "--owner", team, "--prune", "--yes")
    wait_until(lambda: engineer.models() == set())


def test_an_export_is_a_folder_that_applies_to_nothing_new(engineer: Engineer) -> None:
    engineer.write("kept/one.yaml", id="acme/one", profiles={"short": {"options": {"max_seq_length": 8}}})
    engineer.write("kept/two.yaml", id="acme/two", owner="me")
    engineer.sie("config", "apply", "kept", "--yes", "--wait", "30")
    engineer.sie("config", "export", "exported")
    assert sorted(file.name for file in (engineer.checkout / "exported").iterdir()) == [
        "acme__one.yaml",
        "acme__two.yaml",
    ]
    assert "Plan: 0 to add, 0 to change" in engineer.sie("config", "diff", "exported")
    assert "acme/two" in engineer.sie("config", "export", "--owner", "me")
    stream = engineer.sie("config", "export")
    assert "Plan: 0 to add, 0 to change" in engineer.sie("config", "diff", "-", stdin=stream)
    for model in ("acme/one", "acme/two"):
        engineer.sie("config", "delete", model, "--yes")
    wait_until(lambda: engineer.models() == set())


def test_faults_of_all_files_are_told_at_once_and_nothing_is_sent(engineer: Engineer) -> None:
    engineer.write("wrong/a.yaml", id="acme/a", max_sequence_length=-1, colour="red")
    engineer.write("wrong/b.yaml", id="acme//b")
    (engineer.checkout / "wrong" / "c.yaml").write_text("id: [")
    told = engineer.sie("config", "validate", "wrong", expected=2)
    assert "c.yaml" in told
    (engineer.checkout / "wrong" / "c.yaml").unlink()
    for command, code in ((("validate",), 2), (("diff",), 1), (("apply", "--yes"), 2)):
        told = engineer.sie("config", command[0], "wrong", *command[1:], expected=code)
        for part in ("wrong/a.yaml: max_sequence_length", "wrong/a.yaml: colour", "wrong/b.yaml: id"):
            assert part in told
    engineer.sie("config", "diff", "absent", expected=1)
    engineer.sie("config", "diff", "--no-such-option", expected=1)


def test_without_the_token_nothing_is_written(engineer: Engineer, tmp_path: Path) -> None:
    engineer.write("more/one.yaml", id="acme/one")
    told = engineer.sie("config", "apply", "more", "--yes", expected=1, SIE_ADMIN_TOKEN="wrong")
    assert "SIE_ADMIN_TOKEN" in told
    told = engineer.sie("config", "apply", "more", "--yes", expected=1, SIE_STATE_DIR=str(tmp_path))
    assert "token" in told.lower()
    assert engineer.models() == set()


def test_a_watcher_sees_changes_as_they_are_made(engineer: Engineer) -> None:
    env = engineer.env
    process = subprocess.Popen([SIE, "config", "watch", "--json"], env=env, stdout=subprocess.PIPE, text=True)
    lines: list[str] = []
    assert process.stdout is not None
    reading = threading.Thread(target=lambda: lines.extend(iter(process.stdout.readline, "")), daemon=True)  # type: ignore[union-attr]
    reading.start()
    try:
        engineer.write("seen/one.yaml", id="acme/seen")

        def told() -> bool:
            engineer.write("seen/one.yaml", id="acme/seen", revision=os.urandom(4).hex())
            engineer.sie("config", "apply", "seen", "--yes")
            return bool(lines)

        wait_until(told)
        event = json.loads(lines[0])
        assert event["type"] == "dev.sie.config.changed.v1"
        assert event["data"]["changes"][0]["model"] == "acme/seen"
    finally:
        process.kill()
        reading.join(10)
        with process:
            pass
    engineer.sie("config", "delete", "acme/seen", "--yes")


@pytest.mark.parametrize("verb", ["apply", "delete", "rollback"])
def test_what_somebody_looked_at_is_what_is_done_or_nothing(engineer: Engineer, verb: str) -> None:
    engineer.write("asked/asked.yaml", id="acme/asked")
    engineer.sie("config", "apply", "asked", "--yes")
    epoch = json.loads(engineer.sie("config", "history", "--limit", "1", "--json"))["epoch"]
    words = {"apply": "asked", "delete": "acme/asked", "rollback": str(epoch - 1)}
    engineer.write("asked/asked.yaml", id="acme/asked", licence="mit")
    answer, question = pty.openpty()
    asking = subprocess.Popen(
        [SIE, "config", verb, words[verb]],
        env=engineer.env,
        cwd=engineer.checkout,
        stdin=question,
        stdout=PIPE,
        stderr=STDOUT,
    )
    os.close(question)
    assert asking.stdout is not None
    told = b""
    while b"[y/N]" not in told:
        told += (more := os.read(asking.stdout.fileno(), 4096))
        assert more, told
    engineer.write("meanwhile/asked.yaml", id="acme/asked", licence="apache-2.0")
    engineer.sie("config", "apply", "meanwhile", "--yes")
    os.write(answer, b"y\n")
    rest, _ = asking.communicate(timeout=60)
    os.close(answer)
    assert (asking.returncode, b"changed meanwhile" in rest) == (1, True), rest
    assert "licence: apache-2.0" in engineer.sie("config", "show", "acme/asked")


def test_nothing_is_written_where_nobody_could_say_whether_it_is_served(engineer: Engineer) -> None:
    engineer.write("waited/waited.yaml", id="acme/waited")
    service = json.loads(engineer.sie("status", "--json"))["config_url"]
    words = ("config", "apply", "waited", "--yes", "--wait", "30", "--config-url", service)
    assert "Could not reach" in engineer.sie(*words, "--url", "http://127.0.0.1:9", expected=3)
    assert "acme/waited" not in engineer.models()
