"""A page of recipes, run as it stands: each ``sh`` block in its order, held to the ``text`` block below it.

Owns the reading of a page, what a test puts in the place of its names, and what counts as printed: the lines of the
text block, in their order, perhaps with others between them. In them ``...`` is anything, and neither times (``2m``,
``0.8s``) nor the width of a gap are compared. Blocks share a folder, and nothing else.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.cluster import kube
from tests.cluster.place import ROOT

_BLOCK = re.compile(r"^```sh\n(.*?)^```\n(?:\n*```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
_LOOSE = re.compile(r"(\.\.\.|\s+|\b(?:\d+(?:\.\d+)?[smhd])+\b)")


class Recipe(NamedTuple):
    """One block. ``line``: where it begins on its page."""

    line: int
    command: str
    printed: str


def recipes(page: str, names: Mapping[str, str], section: str = "") -> list[Recipe]:
    """The blocks of a page, or of the one ``section``, with the page's names replaced by ``names``."""
    text = (ROOT / page).read_text()
    begin = text.index(f"\n## {section}\n") + 1 if section else 0
    end = text.find("\n## ", begin) if section else -1
    found = [
        Recipe(text.count("\n", 0, block.start()) + 1, named(block[1], names), named(block[2] or "", names))
        for block in _BLOCK.finditer(text, begin, len(text) if end < 0 else end + 1)
    ]
    assert found, f"{page} has no recipes"
    return found


def named(text: str, names: Mapping[str, str]) -> str:
    """``text`` with these names replaced: whole ones, a revision's in its pod's; not the command ``sie``."""
    any_of = "|".join(re.escape(name) + ("" if name[-1].isdigit() else "(?!-)") for name in names)
    return re.sub(rf"(?m)(?!^\w+ )(?<![\w-])(?<!dev\.)({any_of})(?!\w|\.dev)", lambda found: names[found[1]], text)


def own_context(folder: Path) -> Path:
    """A copy of the kubeconfig in use, for recipes that choose their namespace in it."""
    copy = folder / "kubeconfig"
    copy.write_text(kube.kubectl("config", "view", "--raw", "--flatten", namespace=None))
    copy.chmod(0o600)
    return copy


def run(recipe: Recipe, page: str, folder: Path, environment: Mapping[str, str]) -> str:
    """Run a block in ``folder``; returns what it printed, which is as the page says or the test fails."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", recipe.command],
        cwd=folder,
        env=os.environ | dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=170,
        check=False,
    )
    where = f"{page}:{recipe.line}"
    assert done.returncode == 0, f"{where}\n{recipe.command}\n{done.stdout}"
    missing = unprinted(recipe.printed, done.stdout)
    assert missing is None, f"{where}\n{recipe.command}\nno line such as\n  {missing}\nin\n{done.stdout}"
    return done.stdout


def unprinted(expected: str, printed: str) -> str | None:
    """The first of the expected lines that is not among the printed ones, behind those before it; None: all are."""
    lines = iter(printed.splitlines())
    for wanted in filter(None, (line.strip() for line in expected.splitlines())):
        shape = re.compile("".join(map(_shape, _LOOSE.split(wanted))))
        if not any(shape.fullmatch(line.strip()) for line in lines):
            return wanted
    return None


def _shape(piece: str) -> str:
    if not _LOOSE.fullmatch(piece):
        return re.escape(piece)
    return r"\s+" if piece.isspace() else ".*" if piece == "..." else r"[\d.smhd]+"
