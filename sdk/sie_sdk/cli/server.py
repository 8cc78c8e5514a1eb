"""Which server a command asks, for whom and on what: ``--url``, ``--api-key``, ``--tenant``, ``--machine-profile``.

Owns these options and ``--json``, which commands share, and the reading of routes the client has no method for.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click
import msgspec

if TYPE_CHECKING:
    from sie_sdk.client import SIEClient

P = ParamSpec("P")
T = TypeVar("T")

TIMEOUT_S = 30.0
"""Seconds a question to the server may take that is no inference."""

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, one line for each, for programs.")

_OPTIONS = (
    click.option(
        "--url",
        metavar="URL",
        envvar="SIE_BASE_URL",
        show_envvar=True,
        help="The server. [default: http://127.0.0.1:8080]",
    ),
    click.option(
        "--api-key",
        metavar="KEY",
        envvar="SIE_API_KEY",
        show_envvar=True,
        help="Sent as a bearer token. Others see a command's options: prefer the variable.",
    ),
    click.option(
        "--tenant",
        metavar="NAME",
        envvar="SIE_TENANT",
        show_envvar=True,
        help="On whose behalf, for the server's limits.",
    ),
    click.option(
        "--machine-profile", metavar="NAME", help="On which machines, for models that are served on several: l4."
    ),
)


def asks_server(command: Callable[Concatenate[SIEClient, P], T]) -> Callable[..., T]:
    """Give a command these options and, as its first argument, a client made of them. The innermost decorator."""

    @functools.wraps(command)
    def run(
        *args: Any,
        url: str | None,
        api_key: str | None,
        tenant: str | None,
        machine_profile: str | None,
        **keywords: Any,
    ) -> T:
        from sie_sdk.client import SIEClient

        with SIEClient(url, api_key=api_key, tenant=tenant, machine_profile=machine_profile) as client:
            return command(client, *args, **keywords)

    for decorate in reversed(_OPTIONS):
        decorate(run)
    return run


def get(client: SIEClient, path: str, body: object = None) -> Any:
    """The JSON answer of a route that the client has no method for: of GET, or with ``body`` (sent as JSON) of POST."""
    return _asked(client, path, "application/json", body, _parsed)


def get_text(client: SIEClient, path: str) -> str:
    """The YAML answer of such a route, as it is."""
    text: str = _asked(client, path, "application/yaml", None, lambda body, _: body.decode(errors="replace"))
    return text


def _asked(client: SIEClient, path: str, accept: str, body: object, reader: Callable[[bytes, str | None], Any]) -> Any:
    from sie_sdk import calls, formats
    from sie_sdk.effects import Call, Patience, Send
    from sie_sdk.settle import read, settle

    headers = calls.request_headers(accept) | ({} if body is None else {"Content-Type": "application/json"})
    data = None if body is None else formats.json_body(body)
    send = Send("GET" if body is None else "POST", path, headers, data, TIMEOUT_S)
    patience = Patience(wait_for_capacity=False, deadline_s=TIMEOUT_S, timeout_s=TIMEOUT_S)

    def call() -> Call[Any]:
        return read((yield from settle(send, patience)), reader)

    return client._run(call())


def _parsed(body: bytes, content_type: str | None) -> Any:
    from sie_sdk.errors import UnexpectedReplyError

    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise UnexpectedReplyError(f"The reply is not JSON: {error}.") from None


@contextlib.contextmanager
def read_so() -> Iterator[None]:
    """What is read of such an answer: one of another shape is unexpected, and no trace of ours.

    Raises:
        UnexpectedReplyError: it is.
    """
    from sie_sdk.errors import UnexpectedReplyError

    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UnexpectedReplyError(
            f"The reply is JSON of another shape than a server of ours sends ({type(error).__name__}: {error}).",
            hint="Check that --url is the server and not a proxy.",
        ) from error


def print_rows(rows: Iterable[object]) -> None:
    """A line of JSON for each."""
    for row in rows:
        click.echo(msgspec.json.encode(row))
