"""One encoder, completely described: what a model's ``config.json`` says, under the names of its family's record.

Owns the reading, and the refusal of what is not computed here. The records are ``family``'s, what differs from layer to
layer is ``by_layer``'s.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from sie_bundle.engine.rope import Rope
from sie_bundle.models.by_layer import by_layer
from sie_bundle.models.family import ABSOLUTE, AUTO, FAMILIES, Family, Way
from sie_sdk.errors import ModelLoadFailedError

Positive = Annotated[int, msgspec.Meta(ge=1)]


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of ``config.json``, under BERT's names. Anything else there is ignored.

    ``ropes`` and ``windows``: per layer, the rotation, and how many tokens to each side are seen (None: all).
    """

    model_type: str
    hidden_size: Positive
    vocab_size: Positive
    num_hidden_layers: Positive
    num_attention_heads: Positive
    max_position_embeddings: Positive
    hidden_act: str = "gelu"
    head_act: str = "gelu"
    """Of a head, where that has one of its own."""
    layer_norm_eps: float = 1e-12
    num_key_value_heads: Positive | None = None
    head_dim: Positive | None = None
    id2label: dict[int, str | int | float | bool] | None = None
    pad_token_id: int | None = None
    classifier_pooling: Literal["cls", "mean"] | None = None
    tie_word_embeddings: bool = True
    final_logit_softcapping: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """What no logit over the vocabulary comes to, of either sign (Gemma)."""
    ropes: tuple[Rope, ...] = ()
    windows: tuple[int | None, ...] = ()

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def key_value_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the head on top, in order; empty: none are named."""
        return tuple(str(label) for _, label in sorted((self.id2label or {}).items()))


class Architecture(msgspec.Struct, frozen=True):
    """One encoder, completely described: its family and its sizes."""

    family: Family
    config: Config

    @property
    def longest(self) -> int:
        """How many tokens a text may have."""
        return self.config.max_position_embeddings - (self.family.first_position if self.family.positions else 0)


def architecture(family: str, folder: Path) -> Architecture:
    """Describe the encoder of a model's folder.

    Raises:
        ModelLoadFailedError: the family is unknown, or ``config.json`` is unreadable or of another family.
    """
    if (record := FAMILIES.get(family)) is None:
        raise ModelLoadFailedError(
            f"There is no family {family!r}.", hint=f"Families: {', '.join(FAMILIES)}; or install its adapter."
        )
    path = folder / "config.json"
    try:
        given = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise ModelLoadFailedError(f"{path} cannot be used: {error}.", reason="corrupt") from error
    if family == AUTO:
        record, given = _found(folder, given)
    made = described(record, given, path)
    if family != AUTO and made.config.model_type != (record.model_type or family):
        raise ModelLoadFailedError(f"The spec says family {family!r}, config.json says {made.config.model_type!r}.")
    return made


def described(record: Family, given: dict[str, Any], path: Path) -> Architecture:
    """The encoder of a record, by what its config.json says; ``path``: where that was read, for errors.

    Raises:
        ModelLoadFailedError: a size is missing, or is none; or it asks for what is not computed here.
    """
    try:
        # null, which publishers write, is what is said by leaving it out.
        named = {ours: given[theirs] for ours, theirs in record.config.items() if given.get(theirs) is not None}
        given = {**record.constants, **given, **named}
        layers = by_layer(given) if record.way == "packed" else {}
        config = msgspec.convert(given | layers, type=Config, str_keys=True)
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        raise ModelLoadFailedError(f"{path} cannot be used: {error}.") from error
    said = {name: given[name] for name in record.only if given.get(name) is not None}
    if strange := {name: value for name, value in said.items() if value != record.only[name]}:
        raise ModelLoadFailedError(f"{path} asks for what is not computed here: {strange}.")
    if record.way == "packed":
        decodes = record.may_decode and bool(given.get("is_decoder"))
        causal = decodes or (record.causal and given.get("is_causal") is not False)
        record = msgspec.structs.replace(record, causal=causal)
    if given.get("type_vocab_size") == 0:
        record = msgspec.structs.replace(record, token_types="")
    if record.behind_padding and isinstance(padding := given.get("pad_token_id"), int):
        record = msgspec.structs.replace(record, first_position=padding + 1)
    return Architecture(family=record, config=config)


def _found(folder: Path, given: dict[str, Any]) -> tuple[Family, dict[str, Any]]:
    """The record of ``AUTO`` for a folder, and its config.json, in the words of transformers if there is no record."""
    if (known := FAMILIES.get(str(given.get("model_type")))) is not None:
        # What else a record refuses transformers computes, but positions that it does not compute it ignores.
        only = {name: value for name, value in known.only.items() if name in ABSOLUTE}
        way: Way = "padded" if known.way == "padded" else "transformers"
        return msgspec.structs.replace(known, way=way, only=only), given
    from sie_bundle.models.transformers_library import sizes

    return FAMILIES[AUTO], sizes(folder)
