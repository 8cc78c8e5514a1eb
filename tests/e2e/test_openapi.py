"""The OpenAPI document of ``sie serve``: its examples are sent to real models, and schemathesis makes up the rest."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests import browser
from tests.e2e import every_task
from tests.e2e.conftest import serving
from tests.openapi_examples import examples_of, failures
from tests.platform import wait_until

pytestmark = pytest.mark.e2e

LIMITS = {"SIE_MAX_ITEMS": "16", "SIE_MAX_TEXT_BYTES": "4096", "SIE_MAX_BODY_BYTES": "100000"}
"""Small, so that what is made up at the limits is small."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of ``sie serve`` with a model for every task."""
    folder = every_task.make(tmp_path_factory.mktemp("every-task"))
    with serving("--models", str(folder), **LIMITS) as url:
        yield url


def test_every_example_is_answered_by_real_models_as_the_document_promises(served: str) -> None:
    document = httpx.get(f"{served}/openapi.json").json()
    examples = examples_of(document)
    assert {"encode", "score", "extract", "openai_embeddings", "cohere_rerank"} <= {
        sent.operation["operationId"] for sent in examples if sent.status == 200
    }
    wrong: list[str] = []
    with httpx.Client(base_url=served, timeout=60) as client:
        for sent in examples:
            answer = client.request(
                sent.method, sent.target, params=sent.query, headers=sent.headers, content=sent.content
            )
            wrong += failures(document, sent, answer)
    assert wrong == []


def test_the_page_shows_every_operation_in_a_browser(served: str, tmp_path: Path) -> None:
    document = httpx.get(f"{served}/openapi.json").json()
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    with browser.opened(f"{served}/docs", tmp_path / "profile") as page:
        drawn = "[...document.querySelectorAll('article')].map(each => each.id)"
        wait_until(lambda: {each["operationId"] for each in operations} <= set(page.evaluate(drawn)))
        assert "could not be read" not in page.text()
        assert page.failures == []


SECONDS = 40 if "SIE_FUZZ" not in os.environ else 1800
"""`make fuzz` gives it half an hour."""
ROOT = Path(__file__).parents[2]
CONFIG = Path(__file__).with_name("schemathesis.toml")


@pytest.mark.timeout(SECONDS + 120)
def test_schemathesis_finds_no_server_error_and_no_answer_that_the_document_does_not_tell_of(
    served: str, tmp_path: Path
) -> None:
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(CONFIG)),
        *("run", f"{served}/openapi.json", "--phases", "examples,coverage,fuzzing", "--continue-on-failure"),
        *("--max-time", str(SECONDS), "--max-examples", str(SECONDS // 4), "--generation-database", "none"),
        *(("--seed", "1") if "SIE_FUZZ" not in os.environ else ()),
    ]
    ran = subprocess.run(
        command,
        cwd=tmp_path,  # it keeps things where it runs
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS + 100,
    )
    assert ran.returncode == 0, ran.stdout[-20_000:]
    assert httpx.get(f"{served}/readyz").is_success
