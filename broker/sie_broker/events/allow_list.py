"""Where results may be sent: the reply sinks that an operator allows. Pure.

Owns the two forms of a sink, an http(s) URL and ``nats:<subject>``, and the comparison with the allow list. A URL is
compared in its parsed parts, by the parser of the client that sends, and in one spelling alone: what two readers could
read differently is refused. Who sends stands in ``sinks``.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple
from urllib.parse import unquote

import httpx

from sie_broker.events.sink_client import shown
from sie_sdk.errors import ConfigurationError, InvalidInputError

MAX_LENGTH = 2048
NATS = "nats:"
_PORTS = {"http": 80, "https": 443}
_URL = re.compile(r"https?://[!-~]+")
_SUBJECT = re.compile(r"[!-)+-=?-~]{1,255}")
"""Visible ASCII without ``*`` and ``>``."""


class Target(NamedTuple):
    """Where one result goes."""

    kind: Literal["http", "nats"]
    address: str
    """The URL, or the subject."""


class _Prefix(NamedTuple):
    scheme: str
    host: str
    port: int
    path: str


class AllowList:
    """``urls`` and ``subjects``: what sinks begin with, separated by commas; none where empty.

    Raises:
        ConfigurationError: an entry is no such beginning.
    """

    def __init__(self, urls: str, subjects: str) -> None:
        self._urls = [_prefix(entry) for entry in _entries(urls)]
        self._subjects = [_subject_prefix(entry) for entry in _entries(subjects)]

    @property
    def needs_tls(self) -> bool:
        """Whether any sink is spoken to over TLS."""
        return any(each.scheme == "https" for each in self._urls)

    def check(self, sink: str, field: str = "replyto") -> Target:
        """The target that ``sink`` names.

        Raises:
            InvalidInputError: it is no sink, or not allowed; ``field`` is the attribute.
        """
        if len(sink) > MAX_LENGTH:
            raise _refused(field, f"{field} has {len(sink)} characters.", MAX_LENGTH)
        if sink.startswith(NATS):
            return self._checked_subject(sink.removeprefix(NATS), field)
        return self._checked_url(sink, field)

    def _checked_subject(self, subject: str, field: str) -> Target:
        if not _is_literal(subject):
            raise _refused(field, f"{field} names no subject: {subject[:80]!r}.", "a subject without wildcards")
        # Ours and the server's own are nobody's to write to, whatever the list says.
        if subject.startswith("$") or subject.partition(".")[0] == "sie" or not _begins(subject, self._subjects, "."):
            raise _refused(
                field,
                f"Results are not sent to subject {subject[:80]}.",
                "SIE_REPLY_SUBJECTS",  # not its value: callers need not know what else is there
                "Name an inbox, or leave it out and read the job.",
            )
        return Target("nats", subject)

    def _checked_url(self, sink: str, field: str) -> Target:
        try:
            parsed = _parsed(sink)
        except ValueError as fault:
            raise _refused(
                field,
                f"{field} is no sink: {fault}.",
                "http://, https:// or nats:",
                "Example: https://example.org/sink",
            ) from None
        for allowed in self._urls:
            if parsed[:3] == allowed[:3] and _begins(parsed.path, [allowed.path], "/"):
                return Target("http", sink)
        raise _refused(
            field,
            f"Results are not sent to {shown(sink)[:200]}.",  # it may be read by others: in a log, in a dead letter
            "SIE_REPLY_SINKS",
            "Ask the operator to add it to SIE_REPLY_SINKS, or leave it out and read the job.",
        )


def _parsed(url: str) -> _Prefix:
    """The parts of a URL that are compared.

    Raises:
        ValueError: it is none, or one that two readers could read differently; says why.
    """
    if not _URL.fullmatch(url):
        raise ValueError("it is not http(s) in visible ASCII")
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as fault:
        raise ValueError(str(fault).rstrip(".").lower()) from None
    authority = url.partition("://")[2].partition("/")[0].partition("?")[0]
    if "@" in authority or parsed.userinfo:
        raise ValueError("it names a user")
    if "#" in url or "\\" in url:
        raise ValueError("it has a fragment or a backslash")
    if not parsed.host:
        raise ValueError("it names no host")
    path = parsed.raw_path.partition(b"?")[0].decode()
    # The path as a server may read it: with its escapes undone, perhaps twice, there must be no way up in it.
    read = unquote(unquote(path))
    segments = [segment.partition(";")[0] for segment in re.split(r"[/\\]", read)]  # some servers drop what follows ;
    if "." in segments or ".." in segments or read.count("/") != path.count("/"):
        raise ValueError("its path has dots or escaped slashes for segments")
    if "//" in path:
        raise ValueError("its path has an empty segment")
    return _Prefix(parsed.scheme, parsed.host, parsed.port or _PORTS[parsed.scheme], path)


def _is_literal(subject: str) -> bool:
    return bool(_SUBJECT.fullmatch(subject)) and all(subject.split("."))


def _begins(name: str, beginnings: list[str], separator: str) -> bool:
    """Whether ``name`` is one of these, or lies under one: ``/hooks`` is no beginning of ``/hooks2``."""
    return any(
        name == each or name.startswith(each if each.endswith(separator) else each + separator) for each in beginnings
    )


def _prefix(entry: str) -> _Prefix:
    try:
        if "?" in entry:
            raise ValueError("it has a query")
        return _parsed(entry)
    except ValueError as fault:
        raise ConfigurationError(
            f"SIE_REPLY_SINKS: {entry!r} is no beginning of URLs: {fault}.",
            field="SIE_REPLY_SINKS",
            hint="Example: https://example.org/sinks/,http://broker-ingress.knative-eventing.svc.cluster.local/",
        ) from None


def _subject_prefix(entry: str) -> str:
    if not _is_literal(entry.removesuffix(".")):
        raise ConfigurationError(
            f"SIE_REPLY_SUBJECTS: {entry!r} is no beginning of subjects.",
            field="SIE_REPLY_SUBJECTS",
            hint="Example: _INBOX.,shop.results.",
        )
    return entry


def _entries(setting: str) -> list[str]:
    return [entry for entry in (part.strip() for part in setting.split(",")) if entry]


def _refused(field: str, message: str, limit: str | int, hint: str | None = None) -> InvalidInputError:
    return InvalidInputError(message, field=field, limit=limit, hint=hint)
