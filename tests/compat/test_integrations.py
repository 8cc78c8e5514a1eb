"""Our parts of LangChain, LlamaIndex and Haystack, each in an environment of its own, on a server with every task.

What is asserted of them stands in the suites under ``clients``, which also hold LangChain's own standard tests.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compat import every_task, venvs
from tests.e2e.conftest import serving

pytestmark = [pytest.mark.compat, pytest.mark.weights]

KIT = ["pytest==9.2.0", "pytest-asyncio==1.5.0", "mypy==2.4.1"]
FRAMEWORKS = {
    "langchain": ["langchain-core==1.7.2", "langchain-tests==1.1.9", "langchain-qdrant==1.1.0"],
    "llamaindex": ["llama-index-core==0.14.25", "llama-index-vector-stores-qdrant==0.10.4"],
    "haystack": ["haystack-ai==3.4.0"],
}
PUBLISHED = {
    "langchain": ("sie_langchain", ["sie-langchain==0.10.1"]),
    "llamaindex": ("sie_llamaindex", ["sie-llamaindex==0.10.1"]),
    "haystack": ("sie_haystack", ["sie-haystack==0.10.1"]),
}
DOCUMENT = (venvs.ROOT / "docs/integrations.md").read_text()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of ``sie serve``; in float32, so that a batch changes nothing of a value."""
    folder = every_task.make(tmp_path_factory.mktemp("models"))
    with serving("--models", str(folder), SIE_PRECISION="float32") as url:
        yield url


@pytest.fixture(scope="module")
def environment(url: str) -> dict[str, str]:
    """What the scripts are told of the server."""
    return {
        "SIE_URL": url,
        "SIE_DENSE": every_task.DENSE,
        "SIE_RANDOM": every_task.RANDOM,
        "SIE_RERANKER": every_task.RERANKER,
        "SIE_TAGGER": every_task.TAGGER,
        "HAYSTACK_TELEMETRY_ENABLED": "false",
    }


def python(framework: str) -> Path:
    # Editable, so that what is tested is what stands here.
    return venvs.venv(framework, ["-e", f"{venvs.ROOT}[{framework}]", *FRAMEWORKS[framework], *KIT])


@pytest.mark.timeout(venvs.INSTALL_S + venvs.RUN_S)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_test_of_a_framework_s_suite_passes(framework: str, environment: dict[str, str]) -> None:
    outcomes = venvs.run(python(framework), "suite.py", f"{framework}_suite.py", **environment)
    assert set(outcomes.values()) == {"passed"}
    if framework == "langchain":
        standard = [name for name in outcomes if name.startswith("TestStandard")]
        assert {"test_init_from_env", "test_aembed_documents", "test_async_invoke_no_tool_call"} <= {
            name.rpartition("::")[2] for name in standard
        }


@pytest.mark.timeout(venvs.INSTALL_S + venvs.RUN_S)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_example_of_the_document_prints_what_it_shows(framework: str, url: str) -> None:
    section = DOCUMENT.split(f"pip install '.[{framework}]'")[1]
    code, shown = re.findall(r"```(?:python)?\n(.*?)```", section, flags=re.DOTALL)[:2]
    code = code.replace("http://127.0.0.1:8080", url)
    printed = venvs.run(python(framework), "example.py", code, HAYSTACK_TELEMETRY_ENABLED="false")
    assert printed.strip() == shown.strip()


@pytest.mark.timeout(2 * (venvs.INSTALL_S + venvs.RUN_S))
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_code_for_the_published_package_computes_the_same_after_a_change_of_import(
    framework: str, environment: dict[str, str]
) -> None:
    module, requirements = PUBLISHED[framework]
    published = venvs.venv(module.replace("_", "-"), requirements)
    before = venvs.run(published, "migrated.py", framework, module, **environment)
    after = venvs.run(python(framework), "migrated.py", framework, f"sie_sdk.integrations.{framework}", **environment)
    assert leaves(after["computed"]) == pytest.approx(leaves(before["computed"]), abs=1e-3)
    section = DOCUMENT.split("## From sie-langchain")[1]
    assert [name for name in before["exports"] if f"`{name}`" not in section] == []


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Every number and word of nested lists and maps, by its place."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return {place: leaf for key, each in pairs for place, leaf in leaves(each, f"{path}/{key}").items()}
    return {path: value}


@pytest.mark.timeout(venvs.INSTALL_S + 300)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_parts_are_what_the_framework_s_own_types_say(framework: str) -> None:
    interpreter = python(framework)
    cache = interpreter.parents[1] / "mypy"
    check = [str(interpreter), "-m", "mypy", "--cache-dir", str(cache), "--follow-imports", "silent"]
    done = subprocess.run(
        [*check, "-p", f"sie_sdk.integrations.{framework}"], cwd=venvs.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
