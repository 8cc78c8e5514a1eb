"""The house keeps its shape: imports point one way, torch stays in one room, files stay small, names say something."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("sdk", "broker", "config_service", "functions")
# Lower floors first; a package imports itself and what is below it. The two functions do not know each other.
MAY_IMPORT = {
    "sie_sdk": set[str](),
    "sie_broker": {"sie_sdk"},
    "sie_config": {"sie_sdk", "sie_broker"},
    "sie_ingress": {"sie_sdk", "sie_broker", "sie_config"},
    "sie_bundle": {"sie_sdk", "sie_broker", "sie_config"},
    "sie_local": {"sie_sdk", "sie_broker", "sie_config", "sie_ingress", "sie_bundle"},
}
# Of the bundle's folders, what each imports of the others and of the modules beside them.
BUNDLE = ROOT / "functions" / "sie_bundle"
FOLDERS_MAY_IMPORT = {
    "engine": {"compiling", "once"},
    "weights": {"engine"},
    "models": {"engine", "weights"},
    "residency": {"engine", "models", "weights"},
    "operations": {"engine", "models", "residency", "resolved"},
}
ENGINE_LINES = 2_000
# Beside it, who needs NATS: processes that connect to a server, and what writes its configuration.
JETSTREAM = ROOT / "broker" / "sie_broker" / "jetstream"
DECLARED = {"sie_broker.jetstream.streams"}  # data
NEEDS_NATS = {
    "sie_broker/__main__.py",
    "sie_config/__main__.py",
    "sie_ingress/__main__.py",
    "sie_bundle/__main__.py",
    "sie_local/dlq.py",
    "sie_config/cli/manifests.py",
    "sie_config/deployment/component.py",
}
EMPTY_NAMES = {"util", "utils", "helper", "helpers", "common", "misc", "manager", "managers", "handler", "handlers"}
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
ALL = [*SOURCES, *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "bench").rglob("*.py"))]


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def package(path: Path) -> str:
    return path.relative_to(ROOT).parts[1]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    own = package(path)
    for module in imported(path):
        top = module.split(".")[0]
        if top in MAY_IMPORT:
            assert top == own or top in MAY_IMPORT[own], f"{own} must not import {module}"
        if top == "torch":
            assert own == "sie_bundle", "torch is imported only under sie_bundle"
        assert top != "transformers" or path.name == "transformers_library.py", "one way in imports transformers"


@pytest.mark.parametrize("folder", FOLDERS_MAY_IMPORT)
def test_the_engine_knows_no_models_and_nobody_those_who_ask_for_them(folder: str) -> None:
    for path in (BUNDLE / folder).rglob("*.py"):
        for module in imported(path):
            if module.startswith("sie_bundle."):
                name = module.split(".")[1]
                assert name == folder or name in FOLDERS_MAY_IMPORT[folder], f"{path} must not import {module}"


def code_lines(path: Path) -> int:
    """Lines of a module without blank ones, comments and docstrings."""
    text = path.read_text()
    kinds = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for token in tokens if token.type not in kinds for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return len(lines)


def test_the_engine_is_read_in_one_sitting() -> None:
    assert sum(code_lines(path) for path in (BUNDLE / "engine").rglob("*.py")) <= ENGINE_LINES


def test_transformers_is_imported_by_a_model_that_needs_it_and_not_before() -> None:
    (path,) = [path for path in SOURCES if path.name == "transformers_library.py"]
    lines = path.read_text().splitlines()
    assert any(line.strip() == "import transformers" for line in lines)
    assert not any(line.startswith(("import transformers", "from transformers")) for line in lines)


def test_nats_is_imported_only_below_jetstream_and_that_only_by_who_needs_it() -> None:
    for path in SOURCES:
        if JETSTREAM in path.parents:
            continue
        modules = set(imported(path))
        assert "nats" not in {module.split(".")[0] for module in modules}, path
        if "/".join(path.relative_to(ROOT).parts[1:]) not in NEEDS_NATS:
            assert {name for name in modules if name.startswith("sie_broker.jetstream")} <= DECLARED, path


def test_the_sdk_needs_neither_torch_nor_nats() -> None:
    heavy = {"torch", "nats", "starlette", "uvicorn", "cloudevents", "yaml"}
    for path in SOURCES:
        if package(path) == "sie_sdk":
            assert heavy.isdisjoint(module.split(".")[0] for module in imported(path)), path


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_small_named_and_introduced(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    assert path.stem not in EMPTY_NAMES and path.parent.name not in EMPTY_NAMES
    if text:
        assert ast.get_docstring(ast.parse(text)), "a module opens with what it owns"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_function_is_longer_than_a_screen(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= 70, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(ROOT)))
def test_wait_for_is_not_used_because_it_swallows_cancellations_on_python_3_11(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr == "wait_for" and isinstance(node.ctx, ast.Load):
            assert not (isinstance(node.value, ast.Name) and node.value.id == "asyncio"), f"line {node.lineno}"
