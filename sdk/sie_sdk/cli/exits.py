"""The exit codes of `sie`, and how an error is told: one line, a hint and the request's id, on standard error."""

from __future__ import annotations

import click

from sie_sdk.errors import (
    ConfigurationError,
    ConnectionFailedError,
    DeadlineExceededError,
    InvalidInputError,
    SIEError,
)

INTERRUPTED = 130
BROKEN_PIPE = 141

CODES = {
    0: "it worked",
    1: "the server answered with an error, or something here went wrong",
    2: "wrong usage, wrong input or a wrong setting",
    3: "the server could not be reached",
    4: "the deadline passed; work that was accepted stays queued",
    INTERRUPTED: "interrupted with Ctrl-C",
    BROKEN_PIPE: "whoever read the output has gone (`| head`); nothing is said",
}
"""What each stands for. The last two are what a shell shows for SIGINT and SIGPIPE."""


def code(error: SIEError) -> int:
    """The process's exit code for an error."""
    match error:
        case ConfigurationError():
            return 2
        case InvalidInputError(request_id=None):  # no server said so
            return 2
        case ConnectionFailedError():
            return 3
        case DeadlineExceededError():
            return 4
        case _:
            return 1


def tell(error: SIEError) -> None:
    """Print an error for a person."""
    click.echo(f"Error: {error.message}", err=True)
    if error.hint:
        click.echo(f"Hint: {error.hint}", err=True)
    if error.request_id:
        click.echo(f"Request: {error.request_id}", err=True)


def documented() -> str:
    """The exit codes as `sie --help` lists them."""
    return "\n".join(f"  {number:<3}  {meaning}" for number, meaning in CODES.items())
