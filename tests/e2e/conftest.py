"""A folder of specs with a tiny model beside them, and ``sie serve`` on it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

from sie_local.ports import free_port
from tests import tiny_model
from tests.platform import wait_until

Serve = Callable[..., AbstractContextManager[str]]

SPEC = """
id: test/tiny
family: bert
revision: "0"
max_sequence_length: 32
tasks: {{dense: {{dim: 32, query_prompt: "hello ", document_prompt: ""}}}}
sources: [{{kind: local, path: {path}}}]
"""


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``test/tiny``, whose token "poison" has no finite vector, and ``test/absent``, whose weights are nowhere."""
    folder = tmp_path_factory.mktemp("models")
    tiny_model.make(folder / "tiny", nan_token="poison")
    (folder / "tiny.yaml").write_text(SPEC.format(path="tiny"))
    (folder / "absent.yaml").write_text(SPEC.format(path="absent").replace("test/tiny", "test/absent"))
    return folder


@contextlib.contextmanager
def serving(*options: str, **settings: str) -> Iterator[str]:
    """``sie serve`` in a process of its own, drained with SIGTERM; yields its URL. ``settings``: of its environment."""
    port = free_port()
    command = [str(Path(sys.executable).with_name("sie")), "serve", "--port", str(port), *options]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, **settings})
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _ready(url))
        yield url
    finally:
        process.terminate()
        assert process.wait(60) == 0


def _ready(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/readyz", timeout=1).is_success
    return False


@pytest.fixture(scope="session")
def tiny(model_folder: Path) -> Iterator[str]:
    """The URL of ``sie serve --models <folder>``."""
    with serving("--models", str(model_folder)) as url:
        yield url
