"""The commands of ``sie config`` that write, against a config service that is reached over HTTP."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import yaml

from sie_broker import process
from sie_config.cli import plan
from sie_config.model import model_spec
from tests.config.served import ADMIN, Service, served
from tests.ingress.conftest import SPEC
from tests.sdk.cli.running import sie

BYTES = os.fsdecode(b"a\xff")
"""An argument that is not UTF-8, as Python hands it over."""


@pytest.fixture
async def reached() -> AsyncIterator[tuple[str, Service]]:
    """Where the service is, and what it keeps."""
    async with served(SPEC) as service, process.serving(service.app, "127.0.0.1", 0, drain_s=0) as port:
        yield f"http://127.0.0.1:{port}", service


@pytest.mark.parametrize(
    ("actor", "kept"),
    [
        ("José", "José"),
        ("é" * 200, "é" * 128),
        (" Ada\nLovelace ", "Ada Lovelace"),
        (os.fsdecode(b"Jos\xe9"), "Jos"),
    ],
    ids=["beyond ASCII", "too long", "two lines", "not UTF-8"],
)
async def test_a_name_of_any_letters_is_in_the_history(
    reached: tuple[str, Service], monkeypatch: pytest.MonkeyPatch, actor: str, kept: str
) -> None:
    url, service = reached
    monkeypatch.setenv("SIE_ACTOR", actor)
    asked = ("config", "delete", SPEC.id, "--yes", "--config-url", url, "--admin-token", ADMIN)
    done = await asyncio.to_thread(sie, *asked)
    assert (done.exit_code, done.stderr) == (0, "")
    (write, *_) = (await service.send("GET", "/history")).json()["events"]
    assert (write["kind"], write["actor"]) == ("delete", kept)


async def test_a_note_that_is_not_utf_8_is_written_and_an_owner_is_refused(
    reached: tuple[str, Service], tmp_path: Path
) -> None:
    url, service = reached
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(model_spec.document(SPEC) | {"licence": "mit"}))
    to = ("--config-url", url, "--admin-token", ADMIN)
    for verb, code in (("apply", 2), ("diff", 1)):
        done = await asyncio.to_thread(sie, "config", verb, str(tmp_path), "--owner", BYTES, *to)
        assert (done.exit_code, done.stdout) == (code, "")
        assert done.stderr.startswith("Error: The request has no form on the wire")
    done = await asyncio.to_thread(sie, "config", "apply", str(tmp_path), "--yes", "--note", BYTES, *to)
    assert done.exit_code == 0, done.output
    (write, *_) = (await service.send("GET", "/history")).json()["events"]
    assert (write["kind"], write["note"]) == ("apply", "a?")


async def test_a_plan_is_asked_about_on_standard_error_and_a_file_gets_the_answer(
    reached: tuple[str, Service], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _ = reached
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(model_spec.document(SPEC) | {"licence": "mit"}))
    to = ("--config-url", url, "--admin-token", ADMIN, "--json")
    monkeypatch.setattr(plan, "_is_asked", lambda: True)
    for verb, about in (("apply", str(tmp_path)), ("rollback", "1"), ("delete", SPEC.id)):
        done = await asyncio.to_thread(sie, "config", verb, about, *to, stdin="y\n")
        assert done.exit_code == 0, done.output
        assert msgspec.json.decode(done.stdout)["changes"]
        assert SPEC.id in done.stderr and "[y/N]" in done.stderr


async def test_a_note_that_is_too_long_is_refused_before_anything_is_asked(
    reached: tuple[str, Service], tmp_path: Path
) -> None:
    url, service = reached
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(model_spec.document(SPEC) | {"licence": "mit"}))
    for verb, about in (("apply", str(tmp_path)), ("rollback", "1"), ("delete", SPEC.id)):
        done = await asyncio.to_thread(sie, "config", verb, about, "--note", "x" * 513, "--config-url", url)
        assert done.exit_code == 2 and "512" in done.stderr and not done.stdout
    assert service.epoch == 1


async def test_an_export_replaces_files_whole_and_names_those_that_no_model_has(
    reached: tuple[str, Service], tmp_path: Path
) -> None:
    url, _ = reached
    name = f"{SPEC.id.replace('/', '__')}.yaml"
    (tmp_path / "old.yaml").write_text("kept")
    (tmp_path / name).write_text("before")
    export = ("config", "export", str(tmp_path), "--origin", "all", "--config-url", url)
    done = await asyncio.to_thread(sie, *export)
    assert done.exit_code == 0 and f"{tmp_path / 'old.yaml'} is of none of these models." in done.stderr
    assert yaml.safe_load((tmp_path / name).read_bytes())["id"] == SPEC.id
    assert set(os.listdir(tmp_path)) == {"old.yaml", name}
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    done = await asyncio.to_thread(sie, *export)
    assert done.exit_code != 0 and f"{tmp_path / name} cannot be written" in done.stderr
    assert set(os.listdir(tmp_path)) == {"old.yaml", name}
