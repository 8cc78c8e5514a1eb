"""The examples of docs/dialects.md, run as they stand there."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.compat.dialects.test_cohere import COHERE
from tests.compat.dialects.test_openai import OPENAI
from tests.compat.venvs import ROOT, run, venv

pytestmark = [pytest.mark.compat, pytest.mark.weights]

DOCUMENT = (ROOT / "docs/dialects.md").read_text()
SERVER = "http://127.0.0.1:8080"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)


@pytest.mark.parametrize(
    ("client", "requirements", "prints"),
    [("openai", OPENAI, r"2 384\n"), ("cohere", COHERE, r"1 0\.99\d+\n")],
)
def test_an_example_in_python_prints_what_one_expects(
    served: str, client: str, requirements: tuple[str, ...], prints: str
) -> None:
    (code,) = (block for block in blocks("python") if re.search(rf"^(from|import) {client}", block))
    assert SERVER in code
    printed = run(venv(client, requirements), "example.py", code.replace(SERVER, served))
    assert re.fullmatch(prints, printed)


def test_every_example_for_the_shell_answers_with_vectors(served: str) -> None:
    for block in blocks("sh"):
        done = subprocess.run(
            ["sh", "-c", block.replace(SERVER, served)], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout.startswith("[[")
