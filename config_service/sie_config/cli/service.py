"""The config service as the command line asks it: where it is, with which token, and how long it may be busy.

Owns the options ``--url``, ``--config-url`` and ``--admin-token``. An ingress that is asked for what only the config
service does says where that is, and is followed there.
"""

from __future__ import annotations

import functools
import getpass
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import urlencode, urlsplit

import click
import httpx
import msgspec

from sie_config.api.write_terms import LONGEST_ACTOR
from sie_sdk import calls, formats, refusals
from sie_sdk.client import SIEClient
from sie_sdk.effects import Call, Patience, Reply, Send
from sie_sdk.errors import (
    ConnectionFailedError,
    MethodNotAllowedError,
    PreconditionFailedError,
    UnauthorizedError,
    UnavailableError,
    UnexpectedReplyError,
)
from sie_sdk.settle import settle

P = ParamSpec("P")
T = TypeVar("T")

TIMEOUT_S = 60.0
"""How long one request may take, and how long a writer may be busy: a config service may start for it from zero."""
SILENT_S = 45.0
"""After so long without a word, and there is one every 15 s, a stream is dead."""
AGAIN_S = 1.0
TOKEN_FILE, UP_FILE = "admin-token", "up.json"
"""In the state folder of `sie up`: the token that it makes for itself if it is given none, and where it listens."""
EPOCH = "/v1/configs/epoch"

_OPTIONS = (
    click.option(
        "--url",
        metavar="URL",
        envvar="SIE_BASE_URL",
        show_envvar=True,
        help="The server; it says where its config service is. [default: http://127.0.0.1:8080]",
    ),
    click.option(
        "--config-url",
        metavar="URL",
        envvar="SIE_CONFIG_URL",
        show_envvar=True,
        help="The config service, where the server does not know it or its address is not reached from here.",
    ),
    click.option(
        "--admin-token",
        metavar="TOKEN",
        envvar="SIE_ADMIN_TOKEN",
        show_envvar=True,
        help="Allows writes. Others see a command's options: prefer the variable. [default: that of `sie up` here]",
    ),
)


def asks_config(command: Callable[Concatenate[ConfigService, P], T]) -> Callable[..., T]:
    """Give a command the options and, as its first argument, the config service. The innermost decorator."""

    @functools.wraps(command)
    def run(*args: Any, url: str | None, config_url: str | None, admin_token: str | None, **keywords: Any) -> T:
        with ConfigService(url, config_url, admin_token) as service:
            return command(service, *args, **keywords)

    for decorate in reversed(_OPTIONS):
        decorate(run)
    return run


class ConfigService:
    """The config service behind ``url``, or at ``config_url``; a context manager."""

    def __init__(self, url: str | None, config_url: str | None, token: str | None) -> None:
        self._token = token
        self._server = self._client(url)
        self._service = self._client(config_url) if config_url else None

    def __enter__(self) -> ConfigService:
        return self

    def __exit__(self, *_: object) -> None:
        for client in filter(None, (self._server, self._service)):
            client.close()

    def read(self, path: str, **query: str) -> Any:
        """The JSON answer of a read.

        Raises:
            SIEError: the service's own, or it cannot be reached.
        """
        return _json(self._ask(Send("GET", _path(path, query), calls.request_headers(formats.JSON))))

    def events(self, path: str, since: int | None) -> Iterator[tuple[str, Any]]:
        """The server-sent events of a route, each with its kind, for ever: from one stream to the next.

        Raises:
            SIEError: the first stream cannot be had, or a later one is refused for what was asked, not for the moment.
        """
        seen, first = since, True
        client = self._service or self._server
        while True:
            headers = calls.request_headers("text/event-stream") | client._server.headers
            if seen is not None:
                headers["Last-Event-ID"] = str(seen)
            try:
                timeout = httpx.Timeout(TIMEOUT_S, read=SILENT_S)
                with httpx.stream("GET", client.base_url + path, headers=headers, timeout=timeout) as stream:
                    if first or (stream.is_client_error and stream.status_code != httpx.codes.TOO_MANY_REQUESTS):
                        _check(stream)
                    first = False
                    for event in _events(_lines(stream.iter_bytes()) if stream.is_success else ()):
                        seen = int(event["id"])
                        yield event["event"], msgspec.json.decode(event["data"])
            except httpx.HTTPError as error:
                if first:
                    raise ConnectionFailedError(
                        f"{client.base_url} cannot be reached: {error}.", hint="Is it started? --url says which server."
                    ) from None
            time.sleep(AGAIN_S)

    def served(self, path: str, within_s: float | None = None) -> Any:
        """The JSON answer of a read at the server, which knows who serves what. Errors as `read`.

        ``within_s``: it is asked once, and has so long.
        """
        send = Send("GET", path, calls.request_headers(formats.JSON))
        return _json(self._of(self._server, send) if within_s is None else self._once(self._server, send, within_s))

    def write(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        dry_run: bool = False,
        note: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The JSON answer of a write, which is done once however often it has to be sent. Errors as `read`."""
        query = ({"dry_run": "true"} if dry_run else {}) | ({"note": note} if note else {})
        told = calls.request_headers(formats.JSON) | dict(headers or {})
        if not dry_run:
            told["Idempotency-Key"] = uuid.uuid4().hex
        data = None
        if body is not None:
            told["Content-Type"], data = formats.JSON, formats.json_body(body)
        return _json(self._ask(Send(method, _path(path, query), told, data, texts={"X-SIE-Actor": actor()})))

    def as_planned(self, planned: Mapping[str, Any]) -> dict[str, str]:
        """Headers of a write that is refused once the catalogue is another than that of the plan somebody looks at.

        Raises:
            PreconditionFailedError: it is another already.
        """
        now = self.read(EPOCH)
        if now["epoch"] != planned["epoch"]:
            raise PreconditionFailedError(
                f"The plan is of epoch {planned['epoch']}, and epoch {now['epoch']} was written meanwhile.",
                hint="Run the command again, and look at what it would do now.",
            )
        return {"If-Match": f'"{now["hash"]}"'}

    def _ask(self, send: Send) -> Reply:
        """Ask the config service itself; where it is not known, whoever answers says it."""
        if self._service is None:
            try:
                return self._of(self._server, send)
            except MethodNotAllowedError as elsewhere:
                if not (url := elsewhere.details.get("config_url")):
                    raise
                self._service = self._client(str(url))
        try:
            return self._of(self._service, send)
        except ConnectionFailedError as error:
            error.hint = (
                "In a cluster this address is known inside of it alone: run the command there, in a Job or a runner"
                " (docs/gitops.md), or give --config-url an address that leads to it."
            )
            raise

    def _of(self, client: SIEClient, send: Send) -> Reply:
        """One request, again while the writer is busy; where nobody answers, that is said at once."""
        end = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return self._once(client, send, TIMEOUT_S)
            except UnauthorizedError as error:
                if self._token is None and _here(client.base_url):
                    error.hint = f"{error.hint or ''} Of a `sie up --state DIR`: set SIE_STATE_DIR=DIR.".strip()
                raise
            except UnavailableError as busy:
                pause = busy.retry_after or 1.0
                if time.monotonic() + pause > end:
                    raise
                time.sleep(pause)

    def _once(self, client: SIEClient, send: Send, within_s: float) -> Reply:
        patience = Patience(wait_for_capacity=False, deadline_s=within_s, timeout_s=within_s)

        def call() -> Call[Reply]:
            return (yield from settle(msgspec.structs.replace(send, timeout_s=within_s), patience))

        reply: Reply = client._run(call())
        return reply

    def _client(self, url: str | None) -> SIEClient:
        client = SIEClient(url, api_key=self._token)
        if self._token is None and (token := _own_token(client.base_url)):
            client.close()
            client = SIEClient(url, api_key=token)
        return client


def actor() -> str:
    """Who writes, for the history: what ``SIE_ACTOR`` says, else the user and the machine."""
    if not (named := os.environ.get("SIE_ACTOR")):
        try:
            named = f"{getpass.getuser()}@{socket.gethostname()}"
        except (KeyError, OSError):  # a container's user may have no name
            named = socket.gethostname()
    # What does not print, a byte that is not UTF-8 among it, no header may have, and the service keeps it as a blank.
    return "".join(letter if letter.isprintable() else " " for letter in named)[:LONGEST_ACTOR].strip()


def model_path(model: str) -> str:
    """The path of a model."""
    return "/v1/configs/models/" + calls.escaped("model", model, safe="/:")


def _check(stream: httpx.Response) -> None:
    if not stream.is_success:
        error = refusals.read_error(stream.status_code, stream.headers, stream.read())
        error.request_id = error.request_id or stream.request.headers["X-Request-ID"]
        raise error


def _lines(pieces: Iterable[bytes]) -> Iterator[str]:
    """The lines of a stream. httpx ends some within an event too, at line separators that JSON leaves as they are."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode(errors="replace")


def _events(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """The events of a stream, by field; comments are left out."""
    event: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        if not line and "data" in event:
            yield event
        if not line:
            event = {}
        elif name:
            event[name] = value.removeprefix(" ")


def _here(url: str) -> bool:
    return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")


def _own_token(url: str) -> str | None:
    """The token of the `sie up` that runs on this machine, for its own ports and nobody else's."""
    try:
        folder = _state_folder()
        up = msgspec.json.decode((folder / UP_FILE).read_bytes(), type=_Up)
        if not _here(url) or urlsplit(url).port not in (urlsplit(up.url).port, urlsplit(up.config_url).port):
            return None
        return (folder / TOKEN_FILE).read_text().strip() or None
    except (OSError, RuntimeError, ValueError, msgspec.DecodeError):  # nothing is up, the user has no home, no record
        return None


class _Up(msgspec.Struct):
    """What is read of the record of `sie up`: the addresses of its ingress and its config service."""

    url: str = ""
    config_url: str = ""


def _state_folder() -> Path:
    if folder := os.environ.get("SIE_STATE_DIR"):
        return Path(folder)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "sie-knative"


def _path(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(query, errors='replace')}" if query else path


def _json(reply: Reply) -> Any:
    try:
        return msgspec.json.decode(reply.body)
    except msgspec.DecodeError as error:
        raise UnexpectedReplyError(f"The reply is not JSON: {error}.") from None
