"""How long a model's texts may be: the publisher's word, within what has a position. Pure."""

from __future__ import annotations

from sie_config.propose.architecture import Family, longest, unturned
from sie_config.propose.draft import Draft
from sie_config.propose.papers import Papers

SENTINEL = 1e9
"""Tokenizers that know no limit name a number as large as this or larger."""

USUAL = 512
FIELD = "max_sequence_length"


def length(papers: Papers, family: Family, draft: Draft, said: tuple[int, str] = (0, "")) -> None:
    """Propose ``max_sequence_length``; ``said``: what the task itself says of it, and where."""
    positions = longest(papers, family)
    asked, source = said if said[0] else _published(papers)
    if 0 < (short := unturned(papers.config)) < (asked or positions):
        draft.put(FIELD, short, "config.json: original_max_position_embeddings, beyond which longrope turns otherwise")
        return
    if not asked and not positions and draft.blocks:
        return
    if not asked and not positions:
        draft.put(FIELD, USUAL, "a guess")
        draft.doubt(FIELD, f"no file says how many tokens a text may have; {USUAL} is a guess")
    elif positions and (not asked or asked > positions):
        room = f"config.json: {family.known.longest if family.known else 'max_position_embeddings'}"
        less = f" less {family.known.first_position}" if family.known and family.known.first_position else ""
        over = f"; {source} says {asked}" if asked else ""
        draft.put(FIELD, positions, f"{room}{less}{over}")
    else:
        draft.put(FIELD, asked, source)


def _published(papers: Papers) -> tuple[int, str]:
    if papers.transformer.max_seq_length:
        return papers.transformer.max_seq_length, f"{papers.transformer_file}: max_seq_length"
    if 0 < papers.tokenizer.model_max_length < SENTINEL:
        return max(1, int(papers.tokenizer.model_max_length)), "tokenizer_config.json: model_max_length"
    return 0, ""
