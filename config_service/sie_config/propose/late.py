"""Late interaction: a vector per token, as ColBERT, PyLate and sentence-transformers' multi-vector encoders write it.

Owns markers, lengths, the query's augmentation and the projection of token states. Pure.
"""

from __future__ import annotations

import re
import string

import msgspec

from sie_config.propose.architecture import Family, hidden
from sie_config.propose.chain import activation, put_files
from sie_config.propose.draft import Draft
from sie_config.propose.folder import SENTENCE_CONFIGS, Module
from sie_config.propose.papers import Colbert, Papers, Step

FIELD = "tasks.multivector"
SENTENCE = "config_sentence_transformers.json"
ARTIFACT = "artifact.metadata"
QUERY_LENGTH = 32
"""Of PyLate and ColBERT, where nothing is said."""


class Said(msgspec.Struct, frozen=True):
    """What was trained, in one set of words. Lengths 0: not said."""

    source: str
    query_marker: str
    document_marker: str
    query_length: int
    """What queries are cut to, and where they are augmented, filled up to."""
    document_length: int
    attend: bool
    skipped: frozenset[str]
    augmented: bool = True


def is_late(papers: Papers) -> bool:
    """Whether the folder is of a model of late interaction."""
    own = papers.sentence
    return (
        papers.colbert is not None
        or own.model_type in ("ColBERT", "MultiVectorEncoder")
        or own.query_prefix is not None
        or bool(own.query_length)
        or "HF_ColBERT" in papers.config.architectures
        or any(step.type.startswith("pylate.") or step.kind == "MultiVectorMask" for step in papers.modules)
    )


def propose(papers: Papers, family: Family, draft: Draft) -> tuple[int, str]:
    """Propose the multivector task and its score; gives how long texts are, and where that stands."""
    said = _stanford(papers) if not papers.modules else _sentence(papers, draft)
    _projection(papers, family, draft)
    for name, marker in (("query_marker", said.query_marker), ("document_marker", said.document_marker)):
        if marker:
            draft.put(f"{FIELD}.{name}", _token(papers, marker, f"{FIELD}.{name}", draft), said.source)
    if said.augmented:
        _augmentation(papers, family, said, draft)
    elif said.query_length:
        draft.put("profiles.default.options.query_max_length", said.query_length, said.source)
    if said.skipped == frozenset(string.punctuation):
        draft.put(f"{FIELD}.skip_punctuation", True, said.source)
    elif said.skipped:
        draft.block(f"a list of tokens to leave out that is not ASCII's punctuation ({said.source})")
    draft.put("tasks.score.kind", "maxsim", "late interaction")
    if said.document_length and not 0 < said.query_length <= said.document_length:
        draft.put(f"{FIELD}.document_length", said.document_length, said.source)
        return said.query_length, said.source
    return said.document_length, said.source


def _stanford(papers: Papers) -> Said:
    own = papers.colbert or Colbert()
    return Said(
        source=ARTIFACT if papers.colbert else "ColBERT's defaults",
        query_marker=own.query_token_id,
        document_marker=own.doc_token_id,
        query_length=own.query_maxlen,
        document_length=own.doc_maxlen,
        attend=own.attend_to_mask_tokens,
        skipped=frozenset(string.punctuation if own.mask_punctuation else ""),
    )


def _sentence(papers: Papers, draft: Draft) -> Said:
    """PyLate keeps all of it in one file; sentence-transformers 6 in the transformer's, the prompts and the mask's."""
    own = papers.sentence
    if any(step.kind == "MultiVectorMask" for step in papers.modules):
        return _multi_vector_encoder(papers, draft)
    return Said(
        source=SENTENCE,
        query_marker=own.query_prefix or "",
        document_marker=own.document_prefix or "",
        query_length=own.query_length or QUERY_LENGTH,
        document_length=own.document_length,
        attend=own.attend_to_expansion_tokens,
        skipped=frozenset(string.punctuation if own.skiplist_words is None else own.skiplist_words),
        augmented=own.do_query_expansion,
    )


def _multi_vector_encoder(papers: Papers, draft: Draft) -> Said:
    own, expansion = papers.sentence, papers.transformer.query_expansion
    prompts = own.prompts or {}
    path = next(step.path for step in papers.modules if step.kind == "MultiVectorMask")
    mask, name = papers.steps.get(path, Step()), papers.transformer_file or SENTENCE_CONFIGS[0]
    length, token, own_length = expansion.get("length"), expansion.get("token"), papers.transformer.query_length
    if expansion and own_length and own_length != length:
        draft.block(f"queries that are cut to {own_length} tokens and filled up to {length} ({name}: query_length)")
    if expansion and expansion.get("strategy") != "fixed":
        draft.block(f"a query's augmentation of the strategy {expansion.get('strategy')!r} ({name}: query_expansion)")
    if token not in (None, papers.tokenizer.mask):
        draft.block(f"a query's augmentation with the token {token!r} ({name}: query_expansion)")
    if mask.skiplist_words and mask.skiplist_tasks not in ("document", ("document",)):
        draft.block(f"tokens that are left out of more than documents ({path}/config.json: skiplist_tasks)")
    if not any(step.kind == "Normalize" for step in papers.modules):
        draft.block("token vectors that are not of length 1 (modules.json: no Normalize)")
    if mask.keep_only_token_ids:
        draft.block(f"documents of which some tokens only are kept ({path}/config.json: keep_only_token_ids)")
    return Said(
        source=f"{SENTENCE}, {name}",
        query_marker=own.query_prefix or prompts.get("query") or "",
        document_marker=own.document_prefix or prompts.get("document") or "",
        query_length=(length if isinstance(length, int) and length > 0 else QUERY_LENGTH) if expansion else own_length,
        document_length=papers.transformer.document_length,
        attend=expansion.get("attend") is True,
        skipped=frozenset(mask.skiplist_words),
        augmented=bool(expansion),
    )


def _token(papers: Papers, marker: str, field: str, draft: Draft) -> str:
    """The marker as it stands in the vocabulary, which knows "[unused0] " without its space."""
    added = papers.tokenizer.added
    for token in (marker, marker.strip()):
        if token in added or re.fullmatch(r"\[unused\d+\]", token):
            return token
    told = "has it not among its added tokens" if added else "is not here to say so"
    draft.doubt(field, f"{marker!r} must be one token of the vocabulary; tokenizer_config.json {told}")
    return marker


def _augmentation(papers: Papers, family: Family, said: Said, draft: Draft) -> None:
    draft.put(f"{FIELD}.query_length", said.query_length, said.source)
    if mask := papers.tokenizer.mask:
        if mask != "[MASK]":
            draft.put(f"{FIELD}.mask", mask, "tokenizer_config.json: mask_token")
    else:
        draft.doubt(f"{FIELD}.mask", "tokenizer_config.json names no mask token; [MASK] is taken")
    if said.attend:
        draft.put(f"{FIELD}.attend_to_mask", True, said.source)
    elif family.known is not None and family.known.padded:
        draft.block("a query's augmentation that is not attended to, in a model that is computed with padding")
    elif (window := papers.config.local_attention // 2) and said.query_length > window:
        draft.block(f"a query's augmentation to {said.query_length} tokens where a window sees {window} to each side")


def _projection(papers: Papers, family: Family, draft: Draft) -> None:
    layers = [own for own in papers.modules if own.kind == "Dense"]
    if layers:
        _dense(papers, layers, draft)
    elif papers.modules:
        _dim(draft, hidden(papers, family), "config.json: hidden_size")
        draft.put(f"{FIELD}.projection", "", "modules.json: no Dense")
    else:
        tensors = papers.folder.tensors
        found = tensors.get("linear.weight") if tensors is not None else None
        if tensors is not None and found is None:
            draft.block("the projection linear.weight, which the weights lack")
        said = papers.colbert.dim if papers.colbert else 0
        rows = found.shape[0] if found and found.shape else 0
        if said and rows and said != rows:
            draft.doubt(f"{FIELD}.dim", f"{ARTIFACT} says {said}, linear.weight has {rows}")
        _dim(draft, rows or said, "model.safetensors: linear.weight" if rows else f"{ARTIFACT}: dim")


def _dense(papers: Papers, layers: list[Module], draft: Draft) -> None:
    own, name = papers.steps.get(layers[-1].path, Step()), f"{layers[-1].path}/config.json"
    if len(layers) > 1:
        draft.block(f"{len(layers)} linear layers on token states (modules.json)")
    if activation(own) != "":
        draft.block(f"the activation {own.activation_function or 'torch.nn.Tanh'} of a projection ({name})")
    if own.use_residual:
        draft.block(f"a projection beside its input ({name}: use_residual)")
    _dim(draft, own.out_features, f"{name}: out_features")
    draft.put(f"{FIELD}.projection", f"{layers[0].path}.linear", "modules.json: Dense")
    put_files(papers.folder, layers, draft)


def _dim(draft: Draft, dim: int, source: str) -> None:
    if dim:
        draft.put(f"{FIELD}.dim", dim, source)
    else:
        draft.block("a size of its token vectors that some file says")
