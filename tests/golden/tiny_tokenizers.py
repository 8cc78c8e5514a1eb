"""Tiny tokenizers, one per family of models: its kind of tokenizer and its special tokens, with a few words.

Texts of lower-case ASCII letters and spaces become words where there is one and letters where not.
"""

from __future__ import annotations

import string
from typing import NamedTuple

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

WORDS = ("hello", "world", "ship", "lighthouse", "yes", "no", "query", "coffee")
"""Each is one token in every tokenizer."""


class Family(NamedTuple):
    """Which model and special tokens; ids count from 0 in the order of ``first``, then words, then ``last``."""

    model: str
    first: tuple[str, ...]
    last: tuple[str, ...]
    single: str
    """As the post-processor has it: $A is the text."""
    pair: str
    unknown: str


_ROBERTA = ("<s> $A </s>", "<s> $A </s> </s> $B </s>")
_BERT = ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
FAMILIES = {
    "bert": Family("wordpiece", ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), (), *_BERT, "[UNK]"),
    "mpnet": Family("wordpiece", ("<s>", "<pad>", "</s>", "[UNK]"), ("<mask>",), *_ROBERTA, "[UNK]"),
    "roberta": Family("bytes", ("<s>", "<pad>", "</s>", "<unk>"), ("<mask>",), *_ROBERTA, "<unk>"),
    "modernbert": Family("bytes", ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"), (), *_BERT, "[UNK]"),
    "xlm-roberta": Family("unigram", ("<s>", "<pad>", "</s>", "<unk>"), ("<mask>",), *_ROBERTA, "<unk>"),
    "deberta": Family("unigram", ("[PAD]", "[CLS]", "[SEP]", "[UNK]"), ("[MASK]",), *_BERT, "[UNK]"),
    "albert": Family("unigram", ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"), (), *_BERT, "<unk>"),
    "qwen": Family("bytes", (), ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), "$A <|endoftext|>", "", ""),
    "llama": Family("unigram", ("<unk>", "<s>", "</s>"), (), "<s> $A </s>", "", "<unk>"),
    "gemma": Family("unigram", ("<pad>", "<eos>", "<bos>", "<unk>"), (), "<bos> $A <eos>", "", "<unk>"),
}


def make(family: str) -> tokenizers.Tokenizer:
    """The tokenizer of one of ``FAMILIES``."""
    kind = FAMILIES[family]
    made = {"wordpiece": _wordpiece, "bytes": _bytes, "unigram": _unigram}[kind.model](kind)
    special = [*kind.first, *kind.last]
    made.add_special_tokens(special)
    used = [(name, made.token_to_id(name)) for name in special if name in f"{kind.single} {kind.pair}"]
    template = {"single": kind.single} | ({"pair": kind.pair} if kind.pair else {})
    made.post_processor = processors.TemplateProcessing(special_tokens=used, **template)
    return made


def _wordpiece(kind: Family) -> tokenizers.Tokenizer:
    letters = [*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase)]
    vocabulary = {token: i for i, token in enumerate([*kind.first, *WORDS, *letters, *kind.last])}
    made = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=kind.unknown))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made


def _bytes(kind: Family) -> tokenizers.Tokenizer:
    """Byte-level BPE whose merges make the words, with and without the space before them, out of letters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    chains = [(word[:i], word[i]) for word in WORDS for i in range(1, len(word))]
    merges = list(dict.fromkeys([*chains, *(("Ġ", word) for word in WORDS)]))
    tokens = list(dict.fromkeys([*kind.first, *alphabet, *("".join(pair) for pair in merges), *kind.last]))
    vocabulary = {token: i for i, token in enumerate(tokens)}
    made = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token=kind.unknown or None))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made


def _unigram(kind: Family) -> tokenizers.Tokenizer:
    pieces = [*(f"▁{word}" for word in WORDS), "▁", *string.ascii_letters]
    # A word is likelier than its letters.
    scores = [*((piece, -2.0) for piece in pieces[: len(WORDS)]), *((piece, -6.0) for piece in pieces[len(WORDS) :])]
    vocabulary = [*((name, 0.0) for name in kind.first), *scores, *((name, 0.0) for name in kind.last)]
    made = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=kind.first.index(kind.unknown)))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    return made
