"""Completion as a shell asks for it: the printed script in a real bash (zsh, fish), with names from a real server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sie_sdk.cli.completion import matching
from tests.sdk.cli.running import sie
from tests.sdk.scripted_server import ScriptedServer, json_answer

NAMES = ["sentence-transformers/all-MiniLM-L6-v2", "BAAI/bge-m3", "BAAI/bge-small-en-v1.5", "other/BGE-M3"]
ROWS = json_answer({"models": [{"name": name} for name in NAMES]})

BASH = """
source <(sie completion bash)
COMP_WORDS=({words} {last!r})
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_sie_completion sie
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completed(line: str, url: str = "http://127.0.0.1:1") -> list[str]:
    """What bash offers for the last word of ``line``, which may be empty."""
    words, _, last = line.rpartition(" ")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", BASH.format(words=words, last=last)],
        env=os.environ | {"PATH": path, "SIE_BASE_URL": url},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("sie enc", ["encode"]),
        ("sie d", ["dlq", "down"]),
        ("sie jobs su", ["submit"]),
        ("sie jobs submit e", ["encode", "extract"]),
        ("sie encode m --prio", ["--priority"]),
        ("sie encode m --priority b", ["bulk"]),
        ("sie completion ", ["bash", "zsh", "fish"]),
    ],
)
def test_bash_completes_commands_options_and_choices(line: str, offered: list[str]) -> None:
    assert completed(line) == offered


def test_bash_completes_model_names_from_the_server(server: ScriptedServer) -> None:
    server.script = [ROWS]
    assert completed("sie encode BAAI/bge-s", server.url) == ["BAAI/bge-small-en-v1.5"]
    server.script = [ROWS]
    assert completed(f"sie encode --url {server.url} all-mini") == ["all-MiniLM-L6-v2"]


def test_without_a_server_there_are_no_names_and_no_noise() -> None:
    assert completed("sie encode all-") == []


@pytest.mark.parametrize(
    ("begun", "offered"),
    [
        ("", NAMES),
        ("baai/", NAMES[1:3]),
        ("all", ["all-MiniLM-L6-v2"]),
        ("bge-m", []),
        ("bge-s", ["bge-small-en-v1.5"]),
        ("nothing", []),
    ],
)
def test_the_organisation_may_be_left_out_where_the_name_is_one_model(begun: str, offered: list[str]) -> None:
    assert matching(NAMES, begun) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_read_by_it_without_a_fault(shell: str, tmp_path: Path) -> None:
    script = sie("completion", shell).stdout
    assert "_SIE_COMPLETE" in script
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True, timeout=60)
