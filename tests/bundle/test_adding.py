"""``sie models add`` as its user sees it, against a hub on this machine and folders."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from sie_broker import process
from sie_bundle.weights import repository
from sie_config import catalog
from sie_config.api.app import app
from sie_config.api.auth import Access
from sie_config.model import model_spec
from sie_config.model.sources import HubSource, LocalSource
from sie_sdk.errors import ConfigurationError, ConnectionFailedError, WeightsUnavailableError
from tests import tiny_model
from tests.bundle.hub_double import COMMIT, HubDouble
from tests.config.model_folders import sentence
from tests.config.served import ADMIN, NAME, Service, served
from tests.sdk.cli.running import sie

REPO = "acme/tiny"


@pytest.fixture
def hub(hub_here: HubDouble, tmp_path: Path) -> HubDouble:
    """A hub with one sentence-transformers model."""
    hub_here.repos[REPO] = made(tmp_path / "repo")
    return hub_here


def made(folder: Path) -> Path:
    """A tiny model as sentence-transformers would publish it."""
    tiny_model.make(folder)
    config = json.loads((folder / "config.json").read_bytes())
    files = sentence(pooling={"pooling_mode": "cls", "embedding_dimension": config["hidden_size"]})
    for name in ("modules.json", "1_Pooling/config.json", "config_sentence_transformers.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(files[name]))
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    return folder


def test_a_model_of_the_hub_is_described_at_one_commit_without_its_weights(hub: HubDouble, tmp_path: Path) -> None:
    done = sie("models", "add", REPO, "--out", str(tmp_path / "specs"))
    assert done.exit_code == 0, done.output
    path = tmp_path / "specs/acme__tiny.yaml"
    assert done.stdout.strip() == str(path) and "acme/tiny: dense" in done.stderr
    (spec,) = catalog.read(tmp_path / "specs").values()
    assert (spec.id, spec.revision, spec.licence, spec.status) == (REPO, COMMIT, "apache-2.0", "ready")
    assert spec.sources == (LocalSource(path=REPO), HubSource(repo=REPO, revision=COMMIT))
    assert spec.tasks.dense and spec.tasks.dense.pooling == "cls" and spec.parameters > 0
    weights = [line for line in hub.asked if "model.safetensors" in line]
    assert len(weights) == 1, "one look at the header"
    assert any("tokenizer.json" in line for line in hub.asked), "what it does is held against the settings"
    assert all("/main/" not in line for line in hub.asked), "files are asked for by their commit"


def test_a_dry_run_prints_the_spec_and_writes_nothing(hub: HubDouble, tmp_path: Path) -> None:
    done = sie("models", "add", REPO, "--dry-run", "--revision", "main", "--out", str(tmp_path / "specs"))
    assert done.exit_code == 0 and not (tmp_path / "specs").exists()
    assert model_spec.parse(yaml.safe_load(done.stdout), origin="printed").id == REPO
    assert f"# Proposed from acme/tiny at {COMMIT}." in done.stdout and "# 1_Pooling/config.json" in done.stdout


def test_what_a_person_changed_is_replaced_only_when_asked_to(hub: HubDouble, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    command = ("models", "add", REPO, "--id", "me/mine", "--out", str(path))
    assert sie(*command).exit_code == 0 and sie(*command).exit_code == 0
    path.write_text("id: edited\n")
    refused = sie(*command)
    assert refused.exit_code == 2 and "--yes replaces it" in refused.stderr and path.read_text() == "id: edited\n"
    assert sie(*command, "--yes").exit_code == 0 and "id: me/mine" in path.read_text()


def test_a_file_that_is_no_utf8_says_something_else(hub: HubDouble, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    command = ("models", "add", REPO, "--out", str(path))
    path.write_bytes("id: größe\n".encode("latin-1"))
    refused = sie(*command)
    assert refused.exit_code == 2 and "says something else" in refused.stderr
    assert sie(*command, "--yes").exit_code == 0 and path.read_text(encoding="utf-8").startswith("#")


@pytest.mark.parametrize(
    ("asked", "revision", "told", "hint"),
    [
        ("acme/absent", None, "The hub has no model acme/absent", "Check the spelling"),
        (REPO, "v9", "acme/tiny has no revision v9", "/acme/tiny/commits/main"),
        ("acme/secret", None, "The hub does not give acme/secret", "then set HF_TOKEN"),
        ("no such name!", None, "no such name! cannot be read", "Name a folder"),
    ],
)
def test_what_the_hub_refuses_says_what_to_do_next(
    hub: HubDouble, tmp_path: Path, asked: str, revision: str | None, told: str, hint: str
) -> None:
    hub.repos["acme/secret"] = hub.repos[REPO]
    hub.gated.add("acme/secret")
    with pytest.raises(WeightsUnavailableError) as refused:
        repository.read(asked, revision)
    assert told in refused.value.message and hint in (refused.value.hint or "")


def test_a_gated_model_is_read_with_the_token_of_whoever_may(hub: HubDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated.add(REPO)
    monkeypatch.setenv("HF_TOKEN", "friend")
    assert repository.read(REPO).commit == COMMIT


def test_a_hub_that_is_not_there_is_no_connection(hub: HubDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound but not listening
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(ConnectionFailedError, match="cannot connect to 127"):
            repository.read(REPO)
    assert sie("models", "add", "absent/folder/").exit_code != 0


def test_a_broken_file_of_the_hub_is_named_with_its_field(hub: HubDouble) -> None:
    (hub.repos[REPO] / "1_Pooling/config.json").write_text('{"pooling_mode": 3}')
    done = sie("models", "add", REPO, "--dry-run")
    assert done.exit_code == 2 and "1_Pooling/config.json: pooling_mode" in done.stderr
    (hub.repos[REPO] / "config.json").write_bytes(b"x" * (5 << 20))
    with pytest.raises(ConfigurationError, match=r"config\.json: it has 5242880 bytes"):
        repository.read(REPO)


def test_a_folder_is_served_by_its_name_and_known_by_its_digest(tmp_path: Path) -> None:
    folder = made(tmp_path / "my-model")
    done = sie("models", "add", str(folder), "--out", f"{tmp_path}/specs/")
    assert done.exit_code == 0, done.output
    (spec,) = catalog.read(tmp_path / "specs").values()
    assert spec.id == "my-model" and spec.revision.startswith("sha256:")
    assert spec.sources == (LocalSource(path=str(folder)),)


def test_a_folder_of_hugging_faces_cache_is_a_repository_at_a_commit(tmp_path: Path) -> None:
    folder = made(tmp_path / "models--acme--tiny" / "snapshots" / COMMIT)
    done = sie("models", "add", str(folder), "--dry-run")
    spec = model_spec.parse(yaml.safe_load(done.stdout), origin="printed")
    assert (spec.id, spec.revision) == ("acme/tiny", COMMIT)
    assert spec.sources[-1] == HubSource(repo="acme/tiny", revision=COMMIT)


def test_a_folder_of_nobody_here_is_no_folder() -> None:
    done = sie("models", "add", "~nosuchuser/x", "--dry-run")
    assert done.exit_code == 2 and "~nosuchuser/x" in done.stderr and "Traceback" not in done.output, done.output


def test_a_name_that_is_no_model_id_is_refused(tmp_path: Path) -> None:
    done = sie("models", "add", str(made(tmp_path / "x")), "--id", "a b", "--dry-run")
    assert done.exit_code == 2 and "id" in done.stderr


@asynccontextmanager
async def config_service() -> AsyncIterator[tuple[str, Service]]:
    """A config service that a command can reach, and what it keeps."""
    async with served() as service:
        keeper = app(service.registry, service.writer, Access(ADMIN, ""), NAME)
        async with process.serving(keeper, "127.0.0.1", 0, drain_s=0) as port:
            yield f"http://127.0.0.1:{port}", service


async def test_without_a_file_to_write_the_model_is_added_to_what_is_served(tmp_path: Path) -> None:
    folder = str(made(tmp_path / "x"))
    async with config_service() as (url, service):
        command = ("models", "add", folder, "--id", "acme/x", "--url", url, "--config-url", url, "--admin-token", ADMIN)
        unasked = await asyncio.to_thread(sie, *command)
        assert unasked.exit_code == 2 and "say --yes" in unasked.stderr and not service.specs()
        added = await asyncio.to_thread(sie, *command, "--yes", "--note", "the first")
        assert added.exit_code == 0 and "acme/x is added" in added.stderr, added.stderr
        assert "every worker has to have the weights there" in added.stderr
        assert service.specs()["acme/x"] == model_spec.parse(yaml.safe_load(added.stdout), origin="printed")
        again = await asyncio.to_thread(sie, *command)
        assert again.exit_code == 0 and "is there already, the same" in again.stderr
        (tmp_path / "x/README.md").write_text("---\nlicense: mit\n---\n")
        other = await asyncio.to_thread(sie, *command, "--yes")
        assert other.exit_code == 1 and "licence" in other.stderr
        refused = await asyncio.to_thread(sie, *command[:-1], "wrong", "--yes")
        assert refused.exit_code == 1 and "SIE_ADMIN_TOKEN" in refused.stderr
