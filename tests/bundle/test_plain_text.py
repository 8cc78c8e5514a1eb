"""Plain texts: the same tokens word by word from memory as from the tokenizer, whatever stands in a text.

By Python, and by compiled code where there is any: `made_of` has both.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, processors

from sie_bundle.engine import native
from sie_bundle.engine.row import Ids
from sie_bundle.models import words as words_module
from sie_bundle.models.plain_text import LATELY, Encode, PlainText
from sie_bundle.models.tokenization import Tokenizer

FRAGMENTS = ("[SEP]", "[sep]", "[", "<x>", "Ärger", "arger", "NEW", "new", "hello", "World", "don't", "é", "中", "K")
VOCABULARY = ("[UNK]", "[CLS]", "[SEP]", "hello", "world", "new", "##er", *string.ascii_letters, *"0123456789.,'[]-")


def made(*, lowercase: bool, clean_text: bool = True) -> tokenizers.Tokenizer:
    """One as BERT's, whose own tokens are looked for before and after the normalizer."""
    numbers = {word: n for n, word in enumerate((*VOCABULARY, *(f"##{letter}" for letter in string.ascii_letters)))}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, clean_text=clean_text)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.add_special_tokens(["[UNK]", "[CLS]", "[SEP]"])
    tokenizer.add_tokens([tokenizers.AddedToken("<x>", lstrip=True), tokenizers.AddedToken("Ärger", normalized=True)])
    tokenizer.add_tokens([tokenizers.AddedToken("NEW", normalized=True, single_word=True)])
    return tokenizer


@pytest.fixture(autouse=True, scope="module")
def however_short() -> Iterator[None]:
    """Compiled code reads all texts that it can."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(words_module, "FEW", 0)
        yield


def ids_by(tokenizer: tokenizers.Tokenizer, special: bool = True) -> Encode:
    """The tokenizer's own ids."""

    def encode(texts: Sequence[str]) -> list[Ids]:
        made = tokenizer.encode_batch_fast(list(texts), add_special_tokens=special)
        return [np.array(encoding.ids, np.int64) for encoding in made]

    return encode


def never(texts: Sequence[str]) -> list[Ids]:
    pytest.fail(f"{texts} met the normalizer")


def lists(made: Sequence[Ids]) -> list[list[int]]:
    return [ids.tolist() for ids in made]


LIBRARY = native.library(native.WORDS, native.KEPT)
WAYS = [False, True] if LIBRARY else [False]
needs_compiler = pytest.mark.skipif(not LIBRARY, reason="there is no compiler here")
by_each_way = pytest.mark.parametrize("compiled", WAYS, ids=lambda compiled: "compiled" if compiled else "python")


def made_of(tokenizer: tokenizers.Tokenizer, *, compiled: bool = False) -> PlainText:
    plain = PlainText.of(tokenizer)
    assert plain
    if compiled:
        assert LIBRARY
        plain.compile(LIBRARY)
    return plain


TOKENIZERS = [made(lowercase=lowercase) for lowercase in (True, False)]
PLAIN = [made_of(tokenizer) for tokenizer in TOKENIZERS]
COMPILED = [made_of(tokenizer, compiled=len(WAYS) > 1) for tokenizer in TOKENIZERS]
"""These have met words before."""


@given(
    st.lists(st.lists(st.text(st.characters(max_codepoint=127)) | st.sampled_from(FRAGMENTS)).map("".join), min_size=1),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(WAYS),
)
def test_plain_texts_have_the_tokens_that_the_tokenizer_gives_them(
    texts: list[str], lowercase: bool, special: bool, new: bool, compiled: bool
) -> None:
    whole = TOKENIZERS[lowercase]
    known = COMPILED if compiled else PLAIN
    plain = made_of(whole, compiled=compiled) if new else known[lowercase]
    encode = ids_by(whole, special)
    got = plain.encode(texts, special, encode)
    assert lists(got) == lists(encode(texts))
    assert all(ids.dtype == np.int64 and ids.flags.writeable for ids in got)


@pytest.mark.parametrize("text", ["Hello world.", "HELLO\tworld\r\n", "", " "])
def test_a_plain_text_never_meets_the_normalizer(text: str) -> None:
    plain = PlainText.of(made(lowercase=True))
    assert plain
    (own,) = plain.encode([text], True, never)
    assert own[0] == 1


@by_each_way
def test_a_word_is_asked_for_once_and_forgotten_when_there_are_too_many(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words_module, "KEPT_WORDS", 4)
    monkeypatch.setattr(words_module, "ASKED_WORDS", 2)
    whole = made(lowercase=True)
    plain = made_of(whole, compiled=compiled)
    words = plain._words

    def kept(text: str) -> set[bytes]:
        assert lists(plain.encode([text], True, never)) == lists(ids_by(whole)([text]))
        return set(words._kept)

    long = "a" * (words_module.KEPT_LETTERS + 1)
    assert kept("hello c hello world") == {b"hello", b"c", b"world"}
    known = words._kept[b"hello"]
    assert kept("hello a") == {b"hello", b"c", b"world", b"a"}
    assert words._kept[b"hello"] is known
    assert kept(f"{long} hello") == {b"hello", b"c", b"world", b"a"}, "what is longer than words are is not kept"
    assert kept("hello b") == {b"b"}
    assert kept("a c d e f") == set(), "more than may be kept"


@by_each_way
def test_several_threads_learn_words_at_once(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words_module, "KEPT_WORDS", 8)  # so that they are forgotten again and again
    monkeypatch.setattr(words_module, "BRIEF", 0)  # so that all of them read at a time
    whole = made(lowercase=True)
    plain = made_of(whole, compiled=compiled)
    texts = [" ".join(string.ascii_letters[i : i + 5]) for i in range(40)]
    wanted = lists(ids_by(whole)(texts))
    with ThreadPoolExecutor(4) as threads:
        for got in [threads.submit(plain.encode, texts, True, never) for _ in range(64)]:
            assert lists(got.result(30)) == wanted


@pytest.mark.parametrize("text", ["hello [SEP] world", "caf\xe9", "a\0b", "a\x0bb", "a\x7fb", "<X>", "anew", "Arger"])
@by_each_way
def test_any_other_text_does(compiled: bool, text: str) -> None:
    plain = made_of(made(lowercase=True), compiled=compiled)
    met: list[str] = []

    def normalized(texts: Sequence[str]) -> list[Ids]:
        met.extend(texts)
        return ids_by(made(lowercase=True))(texts)

    plain.encode(["hello", text], True, normalized)
    assert met == [text]


@by_each_way
def test_it_is_quick_while_few_texts_are_of_new_words_or_not_plain(compiled: bool) -> None:
    whole = made(lowercase=True)
    plain = made_of(whole, compiled=compiled)
    assert not plain.quick
    plain.encode(["hello world"], True, never)
    assert not plain.quick, "its words were new"
    plain.encode(["hello world"] * 4, True, never)
    assert plain.quick
    plain.encode(["world wide", "words"], True, never)
    assert not plain.quick
    plain.encode(["hello"] * 3 * LATELY, True, never)
    assert plain.quick
    plain.encode(["caf\xe9"] * LATELY, True, ids_by(whole))
    assert not plain.quick, "what was is forgotten"


@needs_compiler
def test_compiled_code_reads_what_is_known_and_leaves_the_rest_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = made(lowercase=True)
    plain = made_of(whole)
    letters, tokens = "a" * words_module.LETTERS, "z" * words_module.TOKENS
    by_python = {"hello caf\xe9", f"hello {letters}a", f"{tokens}z world", "a\0b", "a new one", letters}
    texts = ["Hello, world.", *by_python, f"Hello {tokens} world", "", "\t"]
    wanted = lists(plain.encode(texts, True, ids_by(whole)))
    assert LIBRARY
    plain.compile(LIBRARY)
    for text, ids, own in zip(texts, plain._words.read(texts, True), wanted, strict=True):
        assert (None if ids is None else ids.tolist()) == (None if text in by_python else own)
    assert lists(plain.encode(texts, True, ids_by(whole))) == wanted
    words = plain._words
    plain.compile(LIBRARY)  # as with each model that is made of one tokenizer
    monkeypatch.setattr(words, "ids", never)
    assert lists(plain.encode(["hello world"] * 100, False, never)) == [[3, 4]] * 100


@needs_compiler
def test_what_waits_for_a_pass_are_tokens_and_no_room_for_letters() -> None:
    plain = made_of(made(lowercase=True), compiled=True)
    texts = ["hello world " * 100] * 4
    plain.encode(texts, True, never)
    (kept,) = {id(ids.base): ids.base for ids in plain.encode(texts, True, never)}.values()
    assert isinstance(kept, np.ndarray) and kept.base is None and kept.nbytes == 4 * 202 * 8


@needs_compiler
def test_a_short_text_alone_is_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = made_of(made(lowercase=True), compiled=True)
    plain.encode(["hello"], True, never)
    monkeypatch.setattr(words_module, "FEW", len("hello") + 1)
    assert plain._words.read(["hello"], True) == [None]
    assert [ids is not None and ids.tolist() for ids in plain._words.read(["hello"] * 2, True)] == [[1, 3, 2]] * 2


@by_each_way
@pytest.mark.parametrize("mark", string.punctuation)
def test_each_mark_is_a_word_of_its_own(compiled: bool, mark: str) -> None:
    whole = made(lowercase=True)
    plain = made_of(whole, compiled=compiled)
    plain.encode([f"a b {mark}"], False, never)
    (own,) = plain.encode([f"a{mark}b{mark}{mark}"], False, never)
    assert own.tolist() == whole.encode(f"a {mark} b {mark} {mark}", add_special_tokens=False).ids
    assert len(own) == 5


def test_a_tokenizer_with_another_normalizer_or_other_words_has_no_plain_texts() -> None:
    other = made(lowercase=True)
    other.normalizer = normalizers.Sequence([normalizers.Replace("a", "b"), normalizers.Lowercase()])
    assert PlainText.of(other) is None
    assert PlainText.of(made(lowercase=True, clean_text=False)) is None
    for words in (pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Whitespace()):
        other = made(lowercase=True)
        other.pre_tokenizer = words
        assert PlainText.of(other) is None
    other = tokenizers.Tokenizer(models.BPE())
    other.normalizer, other.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    assert PlainText.of(other) is None


def test_a_tokenizer_takes_that_way_by_itself(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, seen = Tokenizer.load(tiny_folder), []

    def encode(texts: list[str], special: bool, others: object) -> list[Ids]:
        seen.extend(texts)
        return ids_by(tokenizer._tokenizer)(texts)

    assert tokenizer.plain
    monkeypatch.setattr(tokenizer.plain, "encode", encode)
    tokenizer.rows(["hello world"], 8)
    tokenizer.windows(["hello world"], 8, 2)  # which needs to know where each token stands
    assert seen == ["hello world"]


PIECES = (*FRAGMENTS, " ", "  ", "\n", "\x01", "abcdefgh" * 40)


@given(st.lists(st.sampled_from(PIECES), min_size=40).map("".join), st.booleans())
def test_the_beginning_of_a_text_has_the_first_tokens_of_the_whole(text: str, lowercase: bool) -> None:
    whole, plain = TOKENIZERS[lowercase], PLAIN[lowercase]
    assert plain
    ids = whole.encode(text, add_special_tokens=False).ids
    beginning = whole.encode(plain.beginning(text, 4), add_special_tokens=False).ids
    assert ids[: len(beginning)] == beginning


def test_a_long_text_is_read_as_far_as_its_tokens_count(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["hello " * 5_000, "hello" + " " * 5_000 + "world new", "x" * 500, "hello"]
    tokenizer, read = Tokenizer(made(lowercase=True)), list[str]()
    plain = tokenizer.plain
    assert plain
    encode = plain.encode

    def noted(texts: list[str], special: bool, others: Encode) -> list[Ids]:
        read.extend(texts)
        return encode(texts, special, others)

    monkeypatch.setattr(plain, "encode", noted)
    rows = [own.ids.tolist() for own in tokenizer.rows(texts, 6)]
    assert texts[0] not in read and texts[1] in read, "the second has more tokens behind its spaces"
    monkeypatch.setattr(plain, "_apart", False)
    assert [own.ids.tolist() for own in tokenizer.rows(texts, 6)] == rows and texts[0] in read


def test_where_a_name_has_a_space_in_it_all_of_a_text_is_read() -> None:
    tokenizer = made(lowercase=True)
    tokenizer.add_tokens([tokenizers.AddedToken("hello world")])
    plain = PlainText.of(tokenizer)
    assert plain and plain.beginning(text := "hello " * 5_000, 4) is text
