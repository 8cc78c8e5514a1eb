"""What settings say of a text's tokens beside tokenizer.json, which is all that a worker reads. Pure.

Owns small letters, accents, spaces, token types, the side that is cut and the token at the end: what the spec can say
of them, and what is waited for because tokenizer.json does otherwise. How long texts are is ``length``'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sie_config.propose.draft import Draft
from sie_config.propose.folder import SENTENCE_CONFIGS, TOKENIZER_CONFIG, TOKENIZER_JSON, parsed
from sie_config.propose.papers import Papers, Tokenizer

# Whose class in transformers makes its normalizer, or its pre-tokenizer, anew of these settings.
_WORD_PIECES: Final = frozenset(("Bert", "ConvBert", "DistilBert", "Electra", "MPNet", "MobileBert", "SqueezeBert"))
_BYTE_PAIRS: Final = frozenset(("Bart", "Deberta", "GPT2", "Longformer", "Roberta"))
# Whose class gives a model no token types, unless `model_input_names` say so.
_UNTYPED: Final = frozenset(
    ("Bart", "Camembert", "DistilBert", "GPT2", "Longformer", "MPNet", "Roberta", "TokenizersBackend", "XLMRoberta")
)
_ANYBODYS: Final = "PreTrained"
"""Whose class it is too where transformers 4 gave types, and 5 gives none."""


def propose(read: Papers, draft: Draft) -> None:
    """Propose what the spec can say, and note what is waited for."""
    whole = parsed(read.folder, TOKENIZER_JSON)
    file = whole if isinstance(whole, dict) else {}
    _small_letters(read, file if TOKENIZER_JSON in read.folder.files else None, draft)
    _end(read, draft)
    _side(read, file, draft)
    _normalizer(read.tokenizer, file, draft)
    _prefix(read.tokenizer, file, draft)
    _types(read, file, draft)


def _small_letters(read: Papers, file: dict[str, Any] | None, draft: Draft) -> None:
    """Before the tokenizer, which must then make them itself."""
    if not read.transformer.do_lower_case:
        return
    if file is None:
        name = read.transformer_file or SENTENCE_CONFIGS[0]
        draft.doubt("tasks", f"{name} wants small letters (do_lower_case), and no tokenizer.json says so")
    elif not any(own["type"] == "Lowercase" or own.get("lowercase") is True for own in _parts(file, "normalizer")):
        draft.block(f"texts in small letters before the tokenizer ({read.transformer_file}: do_lower_case)")


def _end(read: Papers, draft: Draft) -> None:
    """The token behind every text that is asked for, whether or not tokenizer.json has it, too."""
    if not (end := read.tokenizer.end):
        return
    if "dense" in draft.document["tasks"]:
        draft.put("tasks.dense.end_token", end, f"{TOKENIZER_CONFIG}: add_eos_token")
    else:
        draft.doubt("tasks", f"{TOKENIZER_CONFIG} ends every text with {end!r}; see that tokenizer.json does, too")


def _side(read: Papers, file: dict[str, Any], draft: Draft) -> None:
    """The settings go before tokenizer.json, and sentence-transformers' before those."""
    side, source = read.tokenizer.truncation_side, TOKENIZER_CONFIG
    for given in (read.transformer.tokenizer_args, read.transformer.processor_kwargs):
        if (own := given.get("truncation_side")) in ("left", "right"):
            side, source = own, read.transformer_file
    told = str(_part(file, "truncation").get("direction") or "right").lower()
    if side is not None and side != told:
        draft.put("truncation_side", side, f"{source}: truncation_side")


def _normalizer(said: Tokenizer, file: dict[str, Any], draft: Draft) -> None:
    if said.kind and said.kind not in _WORD_PIECES:
        return
    (own, *_) = [part for part in _parts(file, "normalizer") if part.get("type") == "BertNormalizer"] or [{}]
    if not own:
        return
    # What the class takes where nothing is said: small letters, and accents as with them.
    lower = said.do_lower_case if said.do_lower_case is not None or not said.kind else True
    lowers = own.get("lowercase") is True
    bare = own.get("strip_accents")
    wanted = {
        "do_lower_case": (lower, lowers),
        "strip_accents": (said.strip_accents, lowers if bare is None else bare),
        "tokenize_chinese_chars": (said.tokenize_chinese_chars, own.get("handle_chinese_chars", True)),
    }
    for option, (asked, done) in wanted.items():
        if asked is not None and asked is not bool(done):
            draft.block(_otherwise(option, asked))


def _prefix(said: Tokenizer, file: dict[str, Any], draft: Draft) -> None:
    asked = said.add_prefix_space
    if said.kind not in _BYTE_PAIRS or asked is None:
        return
    done = [part.get("add_prefix_space", True) for part in _parts(file, "pre_tokenizer") if part["type"] == "ByteLevel"]
    if done and done[0] is not asked:
        draft.block(_otherwise("add_prefix_space", asked))


def _otherwise(option: str, asked: bool) -> str:
    return f"a tokenizer.json that does as {TOKENIZER_CONFIG} says ({option}: {str(asked).lower()})"


def _types(read: Papers, file: dict[str, Any], draft: Draft) -> None:
    """tokenizer.json tells a pair's second text by its type, and a worker the model; transformers may not."""
    tasks, said = draft.document.get("tasks", {}), read.tokenizer
    kinds = tasks.get("score", {}).get("kind"), tasks.get("extract", {}).get("kind")
    pairs = kinds[0] == "cross_encoder" or kinds[1] == "entailment"
    if not pairs or read.config.type_vocab_size < 2 or not _second_type(_part(file, "post_processor")):
        return
    if said.model_input_names is not None:
        if "token_type_ids" not in said.model_input_names:
            draft.block(f"pairs without token types ({TOKENIZER_CONFIG}: model_input_names)")
    elif said.kind in _UNTYPED:
        draft.block(f"pairs without token types ({TOKENIZER_CONFIG}: {said.tokenizer_class})")
    elif said.kind == _ANYBODYS:
        draft.doubt(
            "tasks", f"{TOKENIZER_CONFIG} does not say whether pairs have token types (model_input_names); here they do"
        )


def _second_type(processor: dict[str, Any]) -> bool:
    if processor.get("type") == "BertProcessing":
        return True
    inner = processor.get("processors")
    if isinstance(inner, list):
        return any(_second_type(own) for own in inner if isinstance(own, dict))
    pair = processor.get("pair")
    pieces = [piece for piece in (pair if isinstance(pair, list) else ()) if isinstance(piece, dict)]
    return any(own.get("type_id") == 1 for piece in pieces for own in piece.values() if isinstance(own, dict))


def _part(file: dict[str, Any], name: str) -> dict[str, Any]:
    found = file.get(name)
    return found if isinstance(found, dict) else {}


def _parts(file: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """A part of tokenizer.json, and what stands in it one after the other."""
    whole = _part(file, name)
    for own in (whole, *(whole.get("normalizers") or ()), *(whole.get("pretokenizers") or ())):
        if isinstance(own, dict) and isinstance(own.get("type"), str):
            yield own
