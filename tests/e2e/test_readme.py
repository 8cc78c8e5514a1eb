"""The README's example runs as printed, against a server started as the README says."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import serving
from tests.golden.checkpoints import checkpoint

pytestmark = [pytest.mark.e2e, pytest.mark.weights]

README = (Path(__file__).parent.parent.parent / "README.md").read_text()


# The catalogue's models whose weights come from another package here than from the hub.
OTHERS = {
    "cross-encoder/ms-marco-MiniLM-L-12-v2": "msmarco-reranker",
    "answerdotai/answerai-colbert-small-v1": "answerai-colbert",
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``sie serve`` as the README starts it."""
    folder = tmp_path_factory.mktemp("weights")
    for model, key in OTHERS.items():
        (folder / model).parent.mkdir()
        (folder / model).symlink_to(checkpoint(key))
    with serving(SIE_WEIGHTS_DIR=str(folder)) as url:
        yield url


def block(language: str, number: int = 0) -> str:
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)
    return found[number]


@pytest.mark.parametrize("number", [0, 1])
def test_the_python_examples_print_what_the_readme_shows(served: str, number: int) -> None:
    code = block("python", number).replace("http://127.0.0.1:8080", served)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    output = README.split(block("python", number) + "```\n")[1].split("```")[1]
    assert printed.getvalue().strip() == output.strip()


def test_the_curl_example_is_answered(served: str) -> None:
    line = next(line for line in README.splitlines() if line.startswith("curl -i"))
    command = line.replace("http://127.0.0.1:8080", served).replace("curl -i", "curl -s -i -m 30", 1)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("HTTP/1.1 200")
    assert '"dims":384' in done.stdout
