"""What the folder of a GLiNER says in gliner_config.json: which kind it is, and how long its texts may be. Pure.

Owns the reading of that file. What the engine computes of it stands in ``sie_bundle.models.gliner``; a test compares.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from sie_config.propose.draft import Draft
from sie_config.propose.families import FAMILIES
from sie_config.propose.folder import record
from sie_config.propose.papers import Papers

FILE: Final = "gliner_config.json"
NAMED: Final = frozenset(
    f"microsoft/{name}" for name in ("deberta-v3-small", "deberta-v3-base", "deberta-v3-large", "mdeberta-v3-base")
)
"""Encoders that are known by their names."""
COMPUTED: Final = {
    "span_mode": ("markerV0", "marker", "token_level"),
    "subtoken_pooling": ("first",),
    "words_splitter_type": ("whitespace",),
}
"""The values that are computed, of fields that may have others."""
EMPTY: Final = (
    *("post_fusion_schema", "fuse_layers", "represent_spans", "labels_encoder", "labels_decoder"),
    *("span_encoder_config", "precomputed_prompts_mode"),
)
"""Fields of parts that are not computed, where they are set."""
TOKENS_OF_A_WORD: Final = 2
"""With its share of the labels in front of it."""


class Gliner(msgspec.Struct, frozen=True):
    """What is read of the file, with its library's defaults."""

    model_name: str = ""
    encoder_config: dict[str, Any] | None = None
    max_len: Annotated[int, msgspec.Meta(ge=1, le=1 << 31)] = 384
    span_mode: str = "markerV0"
    subtoken_pooling: str = "first"
    words_splitter_type: str = "whitespace"
    post_fusion_schema: Any = None
    fuse_layers: Any = None
    represent_spans: Any = None
    labels_encoder: Any = None
    labels_decoder: Any = None
    span_encoder_config: Any = None
    precomputed_prompts_mode: Any = None


def family(papers: Papers, draft: Draft) -> str:
    """The family; what is not computed is noted as a block."""
    read = _read(papers)
    for name in EMPTY:
        if getattr(read, name):
            draft.block(f"GLiNERs with {name} ({FILE})")
    for name, known in COMPUTED.items():
        if (value := getattr(read, name)) not in known:
            draft.block(f"GLiNERs with {name} {value!r:.60} ({FILE})")
    encoder = read.encoder_config
    if encoder is None and read.model_name not in NAMED:
        draft.block(f"a description of its encoder, {read.model_name!r:.80} ({FILE}: encoder_config)")
    if encoder is not None and (kind := encoder.get("model_type", "deberta-v2")) not in FAMILIES:
        draft.block(f"GLiNERs on {kind!r:.60} ({FILE}: encoder_config.model_type)")
    return "gliner_bi" if read.labels_encoder else "gliner"


def propose(papers: Papers, draft: Draft) -> tuple[int, str]:
    """Propose the task; gives how many tokens a text may have, and where that stands."""
    draft.put("tasks.extract.kind", "spans", FILE)
    read = _read(papers)
    tokens, source = TOKENS_OF_A_WORD * read.max_len, f"{FILE}: max_len, with {TOKENS_OF_A_WORD} tokens to a word"
    encoder = read.encoder_config or {}
    positions = encoder.get("max_position_embeddings")
    if isinstance(positions, int) and 0 < positions < tokens and encoder.get("position_biased_input") is not False:
        return positions, f"{FILE}: encoder_config.max_position_embeddings"
    return tokens, source


def _read(papers: Papers) -> Gliner:
    return record(papers.folder, FILE, Gliner) or Gliner()
