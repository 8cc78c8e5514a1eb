"""What must hold of the images' recipe, wherever it is read: no builder is needed here."""

from __future__ import annotations

import json
import re
import runpy
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sie_local.programs import own_commands

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "knative/images"
TEXT = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", (IMAGES / "Dockerfile").read_text()))
FUNCTIONS = {"sie-ingress": "ingress", "sie-config": "config", "sie-demand": "demand", "sie-bundle": "bundle"}
Stages = dict[str, list[str]]


def stages() -> Stages:
    """The instructions of each stage, by its name; those it begins with, of the stage it is made from, first."""
    found: Stages = {}
    own: list[str] = []
    for line in filter(None, map(str.strip, TEXT.splitlines())):
        if begun := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            own = found[begun[2]] = [line, *found.get(begun[1], [])]
        else:
            own.append(line)
    return found


def told(stage: str, word: str) -> Iterator[str]:
    """What follows an instruction's name, each time it is given."""
    return (line.removeprefix(word).strip() for line in stages()[stage] if line.startswith(f"{word} "))


def environment(stage: str) -> dict[str, str]:
    return {name: value for line in told(stage, "ENV") for name, _, value in (w.partition("=") for w in line.split())}


def test_every_stage_begins_from_the_pinned_base_or_from_nothing() -> None:
    (base,) = re.findall(r"^ARG BASE=(\S+)", TEXT, re.MULTILINE)
    assert re.fullmatch(r"[\w./-]+:[\w.-]+(@sha256:[0-9a-f]{64})?", base) and not base.endswith(":latest")
    for name, lines in stages().items():
        start = lines[0].split()[1]
        assert start in ("${BASE}", "scratch") or start in stages(), name
    assert ":latest" not in TEXT


@pytest.mark.parametrize("image", [*FUNCTIONS, "sie-bundle-cuda"])
def test_what_runs_is_nobody_in_an_image_without_tools(image: str) -> None:
    assert "FROM scratch AS runtime" in stages()[image]
    (user,) = told(image, "USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    assert not list(told(image, "RUN")) and not list(told(image, "HEALTHCHECK")) and not list(told(image, "VOLUME"))
    assert environment(image)["PYTHONDONTWRITEBYTECODE"] == "1"
    assert environment(image)["SIE_HOST"] == "0.0.0.0"
    assert "PORT" not in environment(image)


@pytest.mark.parametrize("image", FUNCTIONS)
def test_an_image_runs_what_sie_up_runs_and_signals_reach_it(image: str) -> None:
    *_, entry = told(image, "ENTRYPOINT")
    assert json.loads(entry)[1:] == list(own_commands()[FUNCTIONS[image]][1:])
    assert not list(told(image, "CMD"))
    labels = " ".join(told(image, "LABEL"))
    for name in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{name}=" in labels
    assert f'title="{image}"' in labels


def test_nothing_that_pip_keeps_is_left_in_a_layer() -> None:
    for line in re.findall(r"pip install[^&]*", TEXT):
        assert "--no-cache-dir" in line and "--no-compile" in line
        assert "--only-binary :all:" in line or line.rstrip().endswith(" .")


def test_what_an_image_needs_is_what_its_extra_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = runpy.run_path(str(IMAGES / "packages.py"))["needs"]
    ingress, bundle, gpu = (set(needs(project, extra)) for extra in ("ingress", "bundle", "gpu"))
    assert set(project["dependencies"]) < ingress
    assert not any("sie-knative" in each for each in gpu | ingress)
    assert any(each.startswith("torch") for each in bundle) and not any(each.startswith("torch") for each in ingress)
    assert {re.split(r"[<>=]", each)[0] for each in gpu - bundle} == {"flash-attn"}


@pytest.mark.parametrize(("line", "variant"), [("cuda: Optional[str] = None", "cpu"), ("cuda = '13.0'", "cuda")])
def test_a_torch_of_the_other_kind_is_told_from_its_version(tmp_path: Path, line: str, variant: str) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text(f"__version__ = '2.13.0'\n{line}\nhip: Optional[str] = None\n")
    assert runpy.run_path(str(IMAGES / "packages.py"))["torch_variant"](tmp_path) == variant
    assert re.search(r"packages\.py torch \$\{VARIANT\}", TEXT)


def test_what_the_build_may_see_is_what_it_copies() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {word for line in re.findall(r"^COPY (?!--from)(.*)", TEXT, re.MULTILINE) for word in line.split()[:-1]}
    scripts = {word for word in copied if word.startswith("knative/images/")}
    assert copied - scripts == allowed - {"knative/images/*.py"}
    assert all((ROOT / word).exists() for word in copied)
