"""The documents say what the code does: every setting, error code, route and reading-list file is where they say."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

import sie_broker.settings
import sie_bundle.settings
import sie_config.settings
import sie_ingress.settings
from sie_broker.memory import MemoryBroker
from sie_broker.pools.pool_table import PoolTable
from sie_config.registry import Registry
from sie_ingress.app import app
from sie_ingress.lanes import Lanes
from sie_ingress.pools import Pools
from sie_ingress.readiness import Readiness
from sie_sdk import settings
from sie_sdk.refusals import BY_CODE

ROOT = Path(__file__).parent.parent
SETTINGS = [
    module.Settings for module in (sie_broker.settings, sie_bundle.settings, sie_config.settings, sie_ingress.settings)
]


def text(name: str) -> str:
    return (ROOT / name).read_text()


@pytest.mark.parametrize("kind", SETTINGS, ids=lambda kind: kind.__module__)
def test_every_setting_is_documented_with_its_default(kind: type[msgspec.Struct]) -> None:
    documented = text("docs/settings.md")
    for field in msgspec.structs.fields(kind):
        default = "" if field.default in (msgspec.NODEFAULT, "") else f"`{field.default}`"
        assert f"| `{settings.variable(field.name)}` | {default}" in documented


def test_every_error_code_is_documented_with_its_status() -> None:
    documented = text("docs/errors.md")
    for code, kind in BY_CODE.items():
        assert f"| `{code}` | {kind.status or 'client'} | `{kind.__name__}` |" in documented


def test_every_route_is_documented() -> None:
    broker = MemoryBroker()
    registry, lanes = Registry(), Lanes(broker, 1.0)
    pools = Pools(registry, lanes, PoolTable(broker.pools))
    routes = app(broker, registry, lanes, pools, sie_ingress.settings.Settings(), Readiness()).routes
    documented = text("docs/http.md")
    for route in routes:
        path = re.sub(r":path|job", lambda match: "" if match[0] == ":path" else "id", getattr(route, "path", ""))
        assert path.replace("/v1/ids/", "/v1/jobs/") in documented


@pytest.mark.parametrize(
    ("real_knative", "files", "kept"),
    [(False, "faults/test_*.py", "pytest.mark.e2e"), (True, "cluster/test_fault_*.py", "pytest.mark.cluster")],
)
def test_every_fault_test_has_its_row_and_every_row_its_test(real_knative: bool, files: str, kept: str) -> None:
    sections = re.split(r"^(?=## )", text("docs/reliability.md"), flags=re.MULTILINE)
    told = [section for section in sections if section.startswith("## On a real Knative") == real_knative]
    rows = re.findall(r"^\| .* \| `(test_\w+)` \|", "".join(told), re.MULTILINE)
    tests = [
        name
        for path in (ROOT / "tests").glob(files)
        if kept in (source := path.read_text())
        for name in re.findall(r"^(?:async )?def (test_\w+)", source, re.MULTILINE)
    ]
    assert sorted(rows) == sorted(tests)


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_every_link_to_a_file_leads_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", text(page)):
        if not target.startswith("http"):
            assert ((ROOT / page).parent / target).exists(), target


@pytest.mark.parametrize(
    "page", ["README.md", "knative/README.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_what_a_page_installs_is_a_clone_of_this_repository_with_extras_that_it_has(page: str) -> None:
    extras = tomllib.loads(text("pyproject.toml"))["project"]["optional-dependencies"]
    for words in re.findall(r"pip install ([^`#\n]+)", text(page)):
        what = words.split()[-1].strip("'\"")
        folder, _, named = what.partition("[")
        assert folder in (".", "./sie-knative"), f"{what} is on no index"
        assert set(filter(None, named.rstrip("]").split(","))) <= extras.keys(), what


def test_the_reading_list_of_one_encode_is_at_most_eight_files_and_1800_lines() -> None:
    section = text("README.md").split("## Read one encode in eight files")[1].split("\nThen:")[0]
    files = re.findall(r"\]\(([^)]+\.py)\)", section)
    assert 0 < len(files) <= 8
    assert sum(len(text(name).splitlines()) for name in files) <= 1800


PARAMETER = re.compile(r"^ +labels: what .*|labels: list\[str\] \| None = Field\((?:\n.*){2}", re.M)


def test_labels_are_said_to_choose_among_those_a_model_has_wherever_they_are_a_parameter() -> None:
    """docs/extract.md: a token or sequence classifier takes them too."""
    rows = re.findall(r"^\| `labels` \|.*", text("docs/integrations.md"), re.M)
    told = [*rows, *(line for path in (ROOT / "sdk").rglob("*.py") for line in PARAMETER.findall(path.read_text()))]
    assert len(told) == 5
    assert all("own" in line and "keep" in line for line in told), told
