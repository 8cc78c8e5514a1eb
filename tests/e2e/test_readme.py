"""The README's example runs as printed, against a server started as the README says."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sie_local.ports import free_port
from tests.platform import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.weights]

README = (Path(__file__).parent.parent.parent / "README.md").read_text()


@pytest.fixture
def served() -> Iterator[str]:
    """``sie serve`` in a process of its own; drained with SIGTERM."""
    port = free_port()
    command = [str(Path(sys.executable).with_name("sie")), "serve", "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: ready(url))
        yield url
    finally:
        process.terminate()
        assert process.wait(20) == 0


def ready(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/readyz", timeout=1).is_success
    return False


def block(language: str, number: int = 0) -> str:
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)
    return found[number]


def test_the_python_example_prints_what_the_readme_shows(served: str) -> None:
    code = block("python").replace("http://127.0.0.1:8080", served)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    output = README.split(block("python") + "```\n")[1].split("```")[1]
    assert printed.getvalue().strip() == output.strip()


def test_the_curl_example_is_answered(served: str) -> None:
    line = next(line for line in README.splitlines() if line.startswith("curl -i"))
    command = line.replace("http://127.0.0.1:8080", served).replace("curl -i", "curl -s -i -m 30", 1)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("HTTP/1.1 200")
    assert '"dims":384' in done.stdout
