"""The whole catalogue in one answer: as JSON for readers that take a snapshot, as YAML for a folder in git.

Owns both forms, and the pieces of them that are kept from one answer to the next: one per spec, for most specs never
change. Where a model is told apart from the baseline stands in ``state``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import yaml

from sie_config.epochs.state import State
from sie_config.epochs.store import Stored
from sie_config.model import model_spec
from sie_config.model.model_spec import ModelSpec

VERSION = 1
AT_ONCE = 16
"""Pieces that are made before others get a turn; each takes some 0.2 ms."""


class Exported(msgspec.Struct, frozen=True):
    """One model. ``model_config`` and ``raw_yaml`` are the spec as one would write it, as JSON and as text."""

    model_id: str
    model_config: msgspec.Raw
    raw_yaml: str
    origin: str
    owner: str
    etag: str


class Snapshot(msgspec.Struct, frozen=True):
    """The catalogue after ``epoch``; ``hash`` is the same for the same entries. ``generated_at``: Unix time."""

    snapshot_version: int
    epoch: int
    hash: str
    generated_at: float
    models: list[msgspec.Raw]
    bundles: Sequence[msgspec.Struct]


class _Piece(msgspec.Struct, frozen=True):
    stored: Stored
    json: bytes
    """An `Exported` without its end."""
    yaml: str


class Export:
    """Makes exports. ``bundles``: those that can serve a model."""

    def __init__(self, bundles: Callable[[ModelSpec], Sequence[str]]) -> None:
        self._bundles = bundles
        self._pieces: dict[str, _Piece] = {}

    def json(self, state: State, at: float, bundles: Sequence[msgspec.Struct]) -> bytes:
        """The catalogue as a `Snapshot`, made at that time."""
        models = [msgspec.Raw(self._whole(piece)) for piece in self._all(state)]
        return msgspec.json.encode(Snapshot(VERSION, state.epoch, state.digest, at, models, bundles))

    def yaml(self, state: State) -> bytes:
        """The specs as documents of one YAML stream, by name."""
        head = f"# {len(state.specs())} models of epoch {state.epoch}, {state.digest}\n"
        return "---\n".join((head, *(piece.yaml for piece in self._all(state)))).encode()

    async def prepare(self, state: State) -> None:
        """Make the pieces that are not kept yet, a few at a time: whoever else is served waits for no more of them."""
        made = 0
        for each in list(state.stored.values()):
            if each.spec is not None and not self._kept(each.spec, each):
                self._piece(each.spec, each)
                made += 1
                if made % AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _all(self, state: State) -> list[_Piece]:
        found = [self._piece(each.spec, each) for each in state.stored.values() if each.spec is not None]
        if len(self._pieces) > len(found):
            self._pieces = {key: piece for key, piece in self._pieces.items() if key in state.stored}
        return sorted(found, key=lambda piece: piece.stored.spec.id if piece.stored.spec else "")

    def _piece(self, spec: ModelSpec, stored: Stored) -> _Piece:
        if (piece := self._kept(spec, stored)) is None:
            written = model_spec.document(spec)
            text = as_yaml(written)
            row = Exported(
                spec.id,
                msgspec.Raw(msgspec.json.encode(written)),
                text,
                stored.origin,
                spec.owner,
                model_spec.etag(spec),
            )
            piece = self._pieces[spec.id.lower()] = _Piece(stored, msgspec.json.encode(row)[:-1], text)
        return piece

    def _kept(self, spec: ModelSpec, stored: Stored) -> _Piece | None:
        piece = self._pieces.get(spec.id.lower())
        # Equal and another, where the whole catalogue was read anew.
        return piece if piece is not None and (piece.stored is stored or piece.stored == stored) else None

    def _whole(self, piece: _Piece) -> bytes:
        spec = piece.stored.spec
        affected = msgspec.json.encode(self._bundles(spec) if spec else [])
        return piece.json + b',"affected_bundles":' + affected + b"}"


def as_yaml(document: object) -> str:
    """Plain data as one would write it."""
    text: str = yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True, width=120)
    return text
