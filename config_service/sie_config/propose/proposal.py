"""The proposal of a spec: which parts have a say, in which order, and what comes out. Pure.

Owns the choice among chain, late interaction and heads, and the finished record. The parts are modules of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sie_config.model import model_spec
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import Source
from sie_config.propose import architecture, card, chain, gliner, heads, late, length, papers, prompts, tokens, weights
from sie_config.propose.architecture import Family
from sie_config.propose.draft import Doubt, Draft
from sie_config.propose.folder import Folder
from sie_config.propose.papers import Papers


class Proposal(msgspec.Struct, frozen=True):
    """A spec that was made of a folder."""

    spec: ModelSpec
    document: Mapping[str, Any]
    """The spec as one would write it, defaults left out."""
    notes: Mapping[str, str]
    """Where each field comes from, by its path with dots."""
    doubts: tuple[Doubt, ...]
    languages: str = ""


def spec(folder: Folder, *, id: str, revision: str, sources: Sequence[Source]) -> Proposal:
    """Propose the spec of a model.

    Args:
        revision: the commit, or whatever else names the version of the files.
        sources: where its weights will be fetched from.

    Raises:
        ConfigurationError: a file is not what its name says (``field`` names it and its field), there is no model, or
            ``id`` is none.
    """
    read, draft = papers.read(folder), Draft()
    draft.put("id", id)
    draft.put("revision", revision)
    family = architecture.family(read, draft)
    said = _task(read, family, draft)
    _prune(draft)
    length.length(read, family, draft, said)
    tokens.propose(read, draft)
    prompts.propose(read, draft)
    card.propose(read, draft)
    weights.propose(read, draft)
    draft.put("sources", [msgspec.to_builtins(source) for source in sources])
    if draft.blocks:
        draft.put("status", "planned")
        draft.put("blocked_by", "; ".join(draft.blocks))
    fields = [
        field.name for field in msgspec.structs.fields(ModelSpec) if field.name not in ("id", "revision", "sources")
    ]
    order = ["id", "revision", *fields, "sources"]
    document = {name: draft.document[name] for name in order if name in draft.document}
    made = model_spec.parse(document, origin=id)
    return Proposal(made, document, draft.notes, tuple(draft.doubts), card.languages(read))


def _task(read: Papers, family: Family, draft: Draft) -> tuple[int, str]:
    """What the model can do; gives how long texts are where the task itself says so."""
    if gliner.FILE in read.folder.files:
        return gliner.propose(read, draft)
    steps = chain.effective(read, draft)
    if late.is_late(read):
        return late.propose(read, family, draft)
    if len(steps) > 1 or (steps and steps[0].kind not in ("Transformer", "MLMTransformer")):
        chain.propose(read, family, draft)
        heads.lexical(read, family, draft)
    else:
        heads.propose(read, family, draft)
        heads.lexical(read, family, draft)
    return 0, ""


def _prune(draft: Draft) -> None:
    """Leave out the tasks without a size, which is a block already, and what needs them."""
    tasks = draft.document.setdefault("tasks", {})
    for name in ("dense", "sparse", "multivector"):
        if "dim" not in tasks.get(name, {"dim": 0}):
            del tasks[name]
    if tasks.get("score", {}).get("kind") == "maxsim" and "multivector" not in tasks:
        del tasks["score"]
