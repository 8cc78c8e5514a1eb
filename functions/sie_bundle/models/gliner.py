"""GLiNER (2311.08526): what a checkpoint's ``gliner_config.json`` says, of the encoder and of what stands on it.

Owns the names and the reading. Computes nothing: the rows with labels are ``label_tokenizer``'s, the scores
``span_head``'s. Labels and text go through one encoder here; checkpoints with a second one for labels, with decoders or
with fused layers are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from sie_bundle.models import family
from sie_bundle.models.architecture import Architecture, Positive, described
from sie_bundle.weights import layout
from sie_sdk.errors import ModelLoadFailedError

if TYPE_CHECKING:
    from torch import Tensor

ENCODER: Final = "token_rep_layer.bert_layer.model."
"""What stands before the names of the encoder's tensors."""

TOKEN_LEVEL: Final = "token_level"
"""The ``span_mode`` of checkpoints that score words as first, last and inner ones of an entity."""

SPAN_MODES: Final = ("markerV0", "marker", TOKEN_LEVEL)

_DEBERTA_V3: Final[dict[str, Any]] = {
    "model_type": "deberta-v2",
    "hidden_act": "gelu",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-7,
    "max_position_embeddings": 512,
    "max_relative_positions": -1,
    "norm_rel_ebd": "layer_norm",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "position_buckets": 256,
    "relative_attention": True,
    "share_att_key": True,
    "type_vocab_size": 0,
}
_LARGE: Final = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24}
NAMED: Final[dict[str, dict[str, Any]]] = {
    "microsoft/deberta-v3-small": {**_DEBERTA_V3, "num_hidden_layers": 6},
    "microsoft/deberta-v3-base": _DEBERTA_V3,
    "microsoft/deberta-v3-large": {**_DEBERTA_V3, **_LARGE},
    "microsoft/mdeberta-v3-base": _DEBERTA_V3,
}
"""The encoders that checkpoints of 2024 only name (``model_name``), with nothing of them in the folder."""


class Config(msgspec.Struct, frozen=True):
    """What is read of ``gliner_config.json``, with its library's defaults. Anything else there is of training."""

    model_name: str = ""
    """The encoder it was trained from."""
    encoder_config: dict[str, Any] | None = None
    """The encoder's config.json."""
    hidden_size: Positive = 512
    """Of words and labels, the encoder's states projected to it where it is another."""
    span_mode: str = "markerV0"
    max_width: Positive = 12
    """Words of the longest span."""
    max_len: Positive = 384
    """Words of the longest text it was trained on."""
    subtoken_pooling: str = "first"
    ent_token: str = "<<ENT>>"
    sep_token: str = "<<SEP>>"
    embed_ent_token: bool = True
    """A label's state is that of the marker before it; else that of its first token."""
    words_splitter_type: str = "whitespace"
    post_fusion_schema: str | None = None
    fuse_layers: bool | None = None
    represent_spans: bool | None = None
    labels_encoder: str | None = None
    labels_decoder: str | None = None
    span_encoder_config: dict[str, Any] | None = None
    precomputed_prompts_mode: bool | None = None


COMPUTED: Final[dict[str, tuple[Any, ...]]] = {
    "span_mode": SPAN_MODES,
    "subtoken_pooling": ("first",),
    "words_splitter_type": ("whitespace",),
}
"""The values that are computed here, of what a config may say otherwise; of the other fields only the empty ones."""
EMPTY: Final = (
    *("post_fusion_schema", "fuse_layers", "represent_spans", "labels_encoder", "labels_decoder"),
    *("span_encoder_config", "precomputed_prompts_mode"),
)


@lru_cache(maxsize=64)
def _read(path: Path, stamp: int) -> Config:
    try:
        config = msgspec.json.decode(path.read_bytes(), type=Config)
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        reason = "unknown" if isinstance(error, msgspec.ValidationError) else "corrupt"
        raise ModelLoadFailedError(f"{path} cannot be used: {error}.", reason=reason) from error
    strange = {name: value for name in EMPTY if (value := getattr(config, name))}
    strange |= {name: value for name, known in COMPUTED.items() if (value := getattr(config, name)) not in known}
    if strange:
        told = ", ".join(f"{name} {value!r:.60}" for name, value in strange.items())
        raise ModelLoadFailedError(f"{path} asks for what is not computed here: {told}.")
    return config


def read(folder: Path) -> Config:
    """The folder's gliner_config.json.

    Raises:
        ModelLoadFailedError: it is missing or unreadable, or asks for what is not computed here.
    """
    path = folder / layout.GLINER_CONFIG
    return _read(path, path.stat().st_mtime_ns if path.is_file() else 0)


def encoder(folder: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The encoder's config.json, with as many words as its table has.

    Raises:
        ModelLoadFailedError: see `read`; also, nothing describes the encoder.
    """
    config = read(folder)
    given = config.encoder_config or NAMED.get(config.model_name)
    if given is None:
        raise ModelLoadFailedError(
            f"{folder / layout.GLINER_CONFIG} does not describe its encoder, {config.model_name or 'without a name'}.",
            hint=f"Give it an encoder_config; without one, these are known: {', '.join(NAMED)}.",
        )
    given = {"model_type": "deberta-v2", **given}
    record = family.FAMILIES.get(str(given["model_type"]))
    table = f"{ENCODER}{record.words}.weight" if record else ""
    return {**given, "vocab_size": len(tensors[table])} if table in tensors else given


def own(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The encoder's tensors, by the names they have where it stands alone."""
    return {name.removeprefix(ENCODER): tensors[name] for name in tensors if name.startswith(ENCODER)}


def architecture(folder: Path, tensors: Mapping[str, Tensor]) -> Architecture:
    """The encoder of a GLiNER's folder, its tensors under `ENCODER`.

    Raises:
        ModelLoadFailedError: see `encoder`; also, the encoder is none of `family.FAMILIES`, or its sizes are missing.
    """
    given = encoder(folder, tensors)
    name = str(given["model_type"])
    if (record := family.FAMILIES.get(name)) is None or not record.words:
        raise ModelLoadFailedError(f"A GLiNER on {name} is not computed here.", hint=f"Known: {', '.join(NAMED)}.")
    if given.get("position_biased_input") is False:  # distances alone count: there is no last position
        given["max_position_embeddings"] = 1 << 30
    record = msgspec.structs.replace(record, prefixes=(ENCODER,))
    return described(record, given, folder / layout.GLINER_CONFIG)
