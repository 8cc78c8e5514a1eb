"""Every Python example of docs/sdk.md runs as printed, against a server with the models it names."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sie_config import catalog
from tests.compat import every_task
from tests.e2e.conftest import serving
from tests.golden.checkpoints import checkpoint

pytestmark = [pytest.mark.e2e, pytest.mark.weights]

MANUAL = (Path(__file__).parents[2] / "docs/sdk.md").read_text()
EXAMPLES: list[tuple[str, str]] = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", MANUAL, flags=re.DOTALL)
COLBERT = "answerdotai/answerai-colbert-small-v1"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``sie serve`` with the models of the manual."""
    folder = every_task.make(tmp_path_factory.mktemp("models"))
    shutil.copy(catalog.PACKAGED / f"{COLBERT.replace('/', '__')}.yaml", folder)
    (folder / COLBERT).parent.mkdir()
    (folder / COLBERT).symlink_to(checkpoint("answerai-colbert"))
    with serving("--models", str(folder)) as url:
        yield url


def test_every_example_shows_what_it_prints() -> None:
    assert len(EXAMPLES) == MANUAL.count("```python\n") > 8


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_prints_what_the_manual_shows(served: str, number: int) -> None:
    code, shown = EXAMPLES[number]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code.replace("http://127.0.0.1:8080", served), "docs/sdk.md", "exec"), {})
    assert printed.getvalue().strip() == shown.strip()
