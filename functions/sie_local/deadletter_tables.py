"""What dead letters look like on a terminal: a table, one letter in full, lines of JSON for programs.

Owns the layout and how a payload is made readable; pure but for printing.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sie_broker.records import DeadLetter
from sie_sdk.formats import JSON, MSGPACK

LONGEST_TEXT = 200
LONGEST_LIST = 8
WIDE = 10_000
"""Nothing is cut to the width of the terminal: an id that is cut cannot be copied."""


def summary(letter: DeadLetter) -> dict[str, Any]:
    """A letter as JSON, without its headers and payload."""
    event = {name.removeprefix("ce-"): unquote(value) for name, value in letter.headers.items()}
    lane = "/".join(event.get(part, "?") for part in ("pool", "bundle", "profile"))
    return {
        "id": letter.id,
        "model": event.get("model", ""),
        "op": event.get("type", "").removeprefix("dev.sie.").removesuffix(".v1"),
        "lane": "" if lane == "?/?/?" else lane,
        "priority": event.get("priority", ""),
        "tenant": event.get("tenant", ""),
        "reason": letter.reason,
        "fault": letter.fault,
        "at": letter.at,
        "accepted": letter.accepted,
        "deliveries": letter.deliveries,
        "size": letter.size,
    }


def payload(letter: DeadLetter) -> Any:
    """What the letter's data says, as far as it can be read: msgpack or JSON, else text, else bytes."""
    media = unquote(letter.headers.get("ce-datacontenttype", MSGPACK))
    readers: dict[str, Callable[[bytes], Any]] = {MSGPACK: msgspec.msgpack.decode, JSON: msgspec.json.decode}
    try:
        return readers.get(media, bytes.decode)(letter.data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return letter.data


def plain(value: Any, *, cut: bool) -> Any:
    """``value`` as JSON knows it. ``cut``: long texts and lists are shortened and say by how much."""
    if isinstance(value, dict):
        return {_name(key): plain(inner, cut=cut) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        shown = [plain(inner, cut=cut) for inner in (value[:LONGEST_LIST] if cut else value)]
        return shown + ([f"... {len(value) - LONGEST_LIST} more"] if len(shown) < len(value) else [])
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>" if cut else base64.b64encode(value).decode()
    if isinstance(value, str) and cut and len(value) > LONGEST_TEXT:
        return f"{value[:LONGEST_TEXT]}... ({len(value)} characters)"
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def lines(letters: Iterable[DeadLetter]) -> None:
    """One line of JSON per letter."""
    for letter in letters:
        click.echo(json.dumps(summary(letter)))


def whole(letter: DeadLetter) -> None:
    """One letter as one line of JSON, with its headers and its payload; bytes are base64."""
    data = plain(payload(letter), cut=False)
    click.echo(json.dumps({**summary(letter), "subject": letter.subject, "headers": letter.headers, "payload": data}))


def table(letters: Iterable[DeadLetter]) -> None:
    """A line per letter, oldest first."""
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("id", "model", "op", "lane", "reason", "when", "size"):
        shown.add_column(column, justify="right" if column == "size" else "left", no_wrap=True)
    for letter in letters:
        row = summary(letter)
        cells = (row["id"], row["model"], row["op"], row["lane"], row["reason"], moment(letter.at), size(letter.size))
        shown.add_row(*(Text(cell) for cell in cells))
    Console(highlight=False, width=WIDE).print(shown)


def details(letter: DeadLetter) -> None:
    """One letter for people: what became of it, its headers, its payload with long values cut."""
    row = summary(letter)
    times = "one delivery" if letter.deliveries == 1 else f"{letter.deliveries} deliveries"
    facts = {
        "id": letter.id,
        "model": row["model"],
        "operation": row["op"],
        "lane": row["lane"],
        "reason": f"{letter.reason}: {letter.fault}" if letter.fault else letter.reason,
        "accepted": moment(letter.accepted),
        "given up": f"{moment(letter.at)}, after {times}",
        "queue": letter.subject,
    }
    for name, value in facts.items():
        click.echo(f"{name:<10} {value}")
    click.echo("\nheaders")
    for name, value in sorted(letter.headers.items()):
        click.echo(f"  {name}: {unquote(value)}")
    click.echo(f"\npayload ({size(letter.size)})")
    readable = json.dumps(plain(payload(letter), cut=True), indent=2, ensure_ascii=False)
    click.echo("\n".join(f"  {line}" for line in readable.splitlines()))


def moment(seconds: float) -> str:
    """A time of day here, to the second."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


def size(count: int) -> str:
    """Bytes for people."""
    return (
        f"{count} B" if count < 1024 else f"{count / 1024:.1f} KB" if count < 1024**2 else f"{count / 1024**2:.1f} MB"
    )


def _name(key: Any) -> str:
    return key.decode(errors="replace") if isinstance(key, bytes) else str(key)
