"""``If-Match`` and ``If-None-Match`` (RFC 9110, section 13): read, and held against what there is. Pure.

Owns their grammar and the refusal. What the etag of a thing is says the thing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from sie_sdk.errors import InvalidInputError, PreconditionFailedError

ANY = "*"
_TAG = re.compile(r'\s*(?:W/)?"([^"]*)"\s*')


class Precondition(msgspec.Struct, frozen=True):
    """What a write wants to meet; None: whatever there is. ``*`` stands for any etag."""

    match: frozenset[str] | None = None
    none_match: frozenset[str] | None = None

    def hold(self, etag: str | None, what: str) -> None:
        """Let a write of ``what`` pass, of which ``etag`` is there now; None: there is none.

        Raises:
            PreconditionFailedError: it is not as it was to be; tells the etag of now.
        """
        if self.match is not None and not _among(etag, self.match):
            reason = "is not there" if etag is None else "was changed meanwhile"
            raise _failed(f"{what} {reason}: If-Match does not name {etag and quoted(etag)}.", "If-Match", etag)
        if self.none_match is not None and _among(etag, self.none_match):
            raise _failed(f"{what} is there already: If-None-Match names {quoted(etag or '')}.", "If-None-Match", etag)

    def of_catalogue(self) -> Precondition:
        """The same on the whole catalogue: its hash, with which the etags of lists and exports begin."""
        return Precondition(
            *(tags and frozenset(tag.partition("-")[0] for tag in tags) for tags in (self.match, self.none_match))
        )


def read(headers: Mapping[str, str]) -> Precondition:
    """The precondition of a request; ``headers`` are looked up in lower case.

    Raises:
        InvalidInputError: a header is no list of etags.
    """
    match, none_match = headers.get("if-match"), headers.get("if-none-match")
    return Precondition(
        None if match is None else _tags("If-Match", match),
        None if none_match is None else _tags("If-None-Match", none_match),
    )


def is_known(headers: Mapping[str, str], etag: str) -> bool:
    """Whether the caller of a GET has it already, and 304 says all."""
    known = headers.get("if-none-match")
    return known is not None and (known.strip() == ANY or etag in _TAG.findall(known))


def quoted(etag: str) -> str:
    """An etag as headers have it."""
    return f'"{etag}"'


def _among(etag: str | None, tags: frozenset[str]) -> bool:
    return etag is not None and (ANY in tags or etag in tags)


def _tags(name: str, value: str) -> frozenset[str]:
    if value.strip() == ANY:
        return frozenset((ANY,))
    tags = [_TAG.fullmatch(each) for each in value.split(",")]
    if not all(tags):
        raise InvalidInputError(
            f"{name} is no etag: {value[:100]!r}.", field=name, hint=f'It looks like {name}: "8f2d1c0b9a7e6f54".'
        )
    return frozenset(tag[1] for tag in tags if tag)


def _failed(message: str, field: str, etag: str | None) -> PreconditionFailedError:
    return PreconditionFailedError(
        message, field=field, hint="Read it again, and write what you want it to be now.", etag=etag
    )
