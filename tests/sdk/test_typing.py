"""The public methods mean to a type checker what they do at run time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_mypy_agrees_with_the_public_api() -> None:
    check = [sys.executable, "-m", "mypy", "tests/sdk/typing_api.py"]
    result = subprocess.run(check, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
