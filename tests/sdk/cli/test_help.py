"""What the command line says of itself: every command teaches by example, every option is explained."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest

import sie_sdk
from sie_config import catalog
from sie_config.registry import Registry
from sie_sdk import cli
from sie_sdk.cli import exits, group
from sie_sdk.refusals import BY_CODE
from tests.sdk.cli import reference
from tests.sdk.cli.running import commands, sie

EVERY = [pytest.param(context, command, id=context.command_path) for context, command in commands()]
MANUAL = reference.PAGE.read_text()


@pytest.mark.parametrize(("context", "command"), EVERY)
def test_every_command_says_what_it_is_for_and_teaches_by_example(
    context: click.Context, command: click.Command
) -> None:
    told = command.get_help(context)
    purpose, _, examples = (command.help or "").partition("Examples:\n")
    assert purpose.strip().splitlines()[0].endswith("."), "the first line is a sentence"
    assert examples.strip(), "there are examples"
    assert "Examples:" in told
    lines = [line.strip() for line in examples.partition("\n\n")[0].splitlines() if line.strip()]
    assert all("sie" in line for line in lines)


@pytest.mark.parametrize(("context", "command"), EVERY)
def test_every_argument_is_spoken_of(context: click.Context, command: click.Command) -> None:
    prose = (command.help or "").partition("Examples:\n")[0]
    for argument in command.params:
        if isinstance(argument, click.Argument):
            name = (argument.metavar or argument.name or "").upper().strip("[].")
            assert re.search(rf"\b{name}S?\b", prose), f"{context.command_path} {name}"


@pytest.mark.parametrize(("context", "command"), EVERY)
def test_every_option_is_explained(context: click.Context, command: click.Command) -> None:
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, f"{context.command_path} {option.opts}"


@pytest.mark.parametrize(("context", "command"), EVERY)
def test_help_fits_a_terminal_of_100_columns(context: click.Context, command: click.Command) -> None:
    assert max(map(len, command.get_help(context).splitlines())) <= 110


def test_the_examples_of_help_name_options_that_exist() -> None:
    known = {name for _, command in commands() for option in command.params for name in option.opts}
    known |= {name for _, command in commands() for option in command.params for name in option.secondary_opts}
    for context, command in commands():
        _, _, examples = (command.help or "").partition("Examples:\n")
        named = {word for word in examples.replace("$(", " ").split() if word.startswith("--") and len(word) > 2}
        assert named <= known, context.command_path


def test_the_manual_has_every_command_and_option_as_it_is() -> None:
    _, mark, made = MANUAL.partition(reference.MARK)
    assert mark, "docs/cli.md has the mark"
    assert made.strip() == reference.reference().strip(), "run: python -m tests.sdk.cli.reference"


def test_the_manual_lists_the_exit_codes() -> None:
    for code, meaning in exits.CODES.items():
        assert f"| {code} | {meaning.replace('|', chr(92) + '|')} |" in MANUAL


def test_every_error_of_the_tree_has_a_documented_exit_code() -> None:
    listed = sie("--help").stdout.split("Exit codes:")[1].split("Options:")[0]
    documented = {line.split()[0] for line in listed.strip().splitlines()}
    assert {str(exits.code(cls("x"))) for cls in BY_CODE.values()} <= documented == {str(code) for code in exits.CODES}


def test_the_group_lists_every_command_under_a_heading() -> None:
    told = sie("--help").stdout
    for name in ("encode", "score", "extract", "jobs", "models", "pools", "bench", "up", "serve", "dlq", "completion"):
        assert f"\n  {name} " in told
    assert {name for section in group.SECTIONS.values() for name in section} == set(
        cli.main.list_commands(click.Context(cli.main))
    )


def test_help_imports_no_command_and_nothing_that_is_slow() -> None:
    script = (
        "import sys\nfrom sie_sdk.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert "sie_sdk.cli" in loaded
    assert not {name for name in loaded if name.startswith(("rich", "httpx", "asyncio", "sie_local", "yaml", "torch"))}
    assert {name for name in loaded if name.startswith("sie_sdk.cli.")} == {"sie_sdk.cli.group", "sie_sdk.cli.exits"}


def test_a_command_whose_extra_is_missing_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = EntryPoint("up", "sie_local.not_installed:up", "sie.commands")
    monkeypatch.setattr(group, "_installed", lambda: [absent])
    result = sie("up", "--any", "option")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: sie up needs the [local] extra")
    assert "pip install '.[local]' in a clone" in result.stderr


def test_a_command_that_misses_its_extra_only_when_it_runs_says_which_too(tmp_path: Path) -> None:
    """As after `pip install sie-knative`, which brings no YAML."""
    script = "import sys; sys.modules['yaml'] = None; from sie_sdk.cli import main; main(['up', '--port', '0'])"
    environ = os.environ | {"SIE_STATE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environ, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert done.stderr.startswith("Error: sie up needs the [local] extra (import of yaml halted")


def test_a_verb_whose_extra_is_missing_says_all_of_its_name_and_ends_with_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    absent = EntryPoint("diff", "sie_config.not_installed:diff", "sie.commands.config")
    monkeypatch.setattr(group, "_installed", lambda of="sie.commands": [absent] if of == absent.group else [])
    result = sie("config", "diff", "models/")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: sie config diff needs the [config] extra")


def test_a_command_of_another_package_is_found_by_name_and_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    present = EntryPoint("hello", f"{__name__}:hello", "sie.commands")
    monkeypatch.setattr(group, "_installed", lambda: [present])
    assert sie("hello").stdout == "hello from elsewhere\n"
    assert sie("--help").stdout.endswith("More:\n  hello       Stands for a command of another package.\n")


@click.command()
def hello() -> None:
    """Stands for a command of another package."""
    click.echo("hello from elsewhere")


def test_the_version_is_printed() -> None:
    assert sie("--version").stdout.startswith("sie, version ")


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1", "COLUMNS": "60"}])
def test_help_in_a_pipe_has_no_colours(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sie_sdk.cli", "encode", "--help"],
        env=os.environ | environment,
        capture_output=True,
        check=True,
    )
    assert b"\x1b" not in done.stdout


MODELS = re.compile(
    r"\bsie (?:(?:jobs submit )?(?:encode|score|extract)|bench|fetch|models show|config (?:show|resolve|status)"
    r"|pools create .*--pin|dlq .*--model|(?:up|serve) .*--models) (?!\S*/\s)([\w./:,-]+)"
)
"""Where a command is told a model, or several with commas; a folder ends with a slash."""


def test_every_model_of_an_example_is_one_that_the_packaged_catalogue_serves() -> None:
    served = Registry(catalog.load().values())
    examples = "".join((command.help or "").partition("Examples:\n")[2] for _, command in commands())
    named = {name for found in MODELS.findall(examples) for name in found.split(",")}
    for path in Path(sie_sdk.__file__).parent.rglob("*.py"):
        named |= {*re.findall(r"""(?:\.(?:encode|score|extract)\(|model=)"([\w./-]{3,})\"""", path.read_text())}
    assert {"distilbert-NER", "dslim/distilbert-NER", "bge-m3", "ms-marco-MiniLM-L-6-v2"} <= named
    for name in named:
        served.resolve(name)
