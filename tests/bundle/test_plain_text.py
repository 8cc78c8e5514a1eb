"""Plain texts: the same tokens without the normalizer as with it, whatever stands in a text."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, processors

from sie_bundle.models.plain_text import Encode, PlainText
from sie_bundle.models.tokenization import Tokenizer

FRAGMENTS = ("[SEP]", "[sep]", "[", "<x>", "Ärger", "arger", "NEW", "new", "hello", "World", "don't", "é", "中", "K")
VOCABULARY = ("[UNK]", "[CLS]", "[SEP]", "hello", "world", "new", "##er", *string.ascii_letters, *"0123456789.,'[]-")


def made(
    *, lowercase: bool, clean_text: bool = True, words: pre_tokenizers.PreTokenizer | None = None
) -> tokenizers.Tokenizer:
    """One as BERT's, whose own tokens are looked for before and after the normalizer."""
    numbers = {word: n for n, word in enumerate((*VOCABULARY, *(f"##{letter}" for letter in string.ascii_letters)))}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, clean_text=clean_text)
    tokenizer.pre_tokenizer = words or pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.add_special_tokens(["[UNK]", "[CLS]", "[SEP]"])
    tokenizer.add_tokens([tokenizers.AddedToken("<x>", lstrip=True), tokenizers.AddedToken("Ärger", normalized=True)])
    tokenizer.add_tokens([tokenizers.AddedToken("NEW", normalized=True, single_word=True)])
    return tokenizer


WORDS = (pre_tokenizers.BertPreTokenizer(), pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Whitespace())
TOKENIZERS = [made(lowercase=lowercase, words=words) for lowercase in (True, False) for words in WORDS]


@given(
    st.lists(st.lists(st.text(st.characters(max_codepoint=127)) | st.sampled_from(FRAGMENTS)).map("".join), min_size=1),
    st.sampled_from(TOKENIZERS),
    st.booleans(),
)
def test_plain_texts_have_the_tokens_that_the_normalizer_would_give(
    texts: list[str], whole: tokenizers.Tokenizer, special: bool
) -> None:
    plain = PlainText.of(whole)
    assert plain
    got = plain.encode(texts, special, lambda others: whole.encode_batch_fast(others, add_special_tokens=special))
    wanted = whole.encode_batch_fast(texts, add_special_tokens=special)
    assert [(own.ids, own.type_ids) for own in got] == [(own.ids, own.type_ids) for own in wanted]


@pytest.mark.parametrize("text", ["Hello world.", "HELLO\tworld\r\n", "", " "])
def test_a_plain_text_never_meets_the_normalizer(text: str) -> None:
    plain = PlainText.of(made(lowercase=True))
    assert plain
    (own,) = plain.encode([text], True, lambda texts: pytest.fail(f"{texts} met the normalizer"))
    assert own.ids[0] == 1


@pytest.mark.parametrize("text", ["hello [SEP] world", "caf\xe9", "a\0b", "a\x0bb", "a\x7fb", "<X>", "anew", "Arger"])
def test_any_other_text_does(text: str) -> None:
    plain = PlainText.of(made(lowercase=True))
    assert plain
    met: list[str] = []

    def normalized(texts: list[str]) -> list[tokenizers.Encoding]:
        met.extend(texts)
        return made(lowercase=True).encode_batch(texts)

    plain.encode(["hello", text], True, normalized)
    assert met == [text]


@pytest.mark.parametrize("mark", string.punctuation)
def test_each_mark_is_a_word_of_its_own(mark: str) -> None:
    whole = made(lowercase=True)
    plain = PlainText.of(whole)
    assert plain
    (own,) = plain.encode([f"a{mark}b{mark}{mark}"], False, lambda texts: pytest.fail(f"{texts} met the normalizer"))
    assert own.ids == whole.encode(f"a {mark} b {mark} {mark}", add_special_tokens=False).ids
    assert len(own.ids) == 5


def test_a_tokenizer_with_another_normalizer_has_no_plain_texts() -> None:
    other = made(lowercase=True)
    other.normalizer = normalizers.Sequence([normalizers.Replace("a", "b"), normalizers.Lowercase()])
    assert PlainText.of(other) is None
    assert PlainText.of(made(lowercase=True, clean_text=False)) is None


def test_a_tokenizer_takes_that_way_by_itself(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, seen = Tokenizer.load(tiny_folder), []

    def encode(texts: list[str], special: bool, others: object) -> list[tokenizers.Encoding]:
        seen.extend(texts)
        return tokenizer._tokenizer.encode_batch(texts)

    assert tokenizer._plain
    monkeypatch.setattr(tokenizer._plain, "encode", encode)
    tokenizer.rows(["hello world"], 8)
    tokenizer.windows(["hello world"], 8, 2)  # which needs to know where each token stands
    assert seen == ["hello world"]


PIECES = (*FRAGMENTS, " ", "  ", "\n", "\x01", "abcdefgh" * 40)


@given(st.lists(st.sampled_from(PIECES), min_size=40).map("".join), st.booleans())
def test_the_beginning_of_a_text_has_the_first_tokens_of_the_whole(text: str, lowercase: bool) -> None:
    whole = TOKENIZERS[lowercase]
    plain = PlainText.of(whole)
    assert plain
    ids = whole.encode(text, add_special_tokens=False).ids
    beginning = whole.encode(plain.beginning(text, 4), add_special_tokens=False).ids
    assert ids[: len(beginning)] == beginning


def test_a_long_text_is_read_as_far_as_its_tokens_count(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["hello " * 5_000, "hello" + " " * 5_000 + "world new", "x" * 500, "hello"]
    tokenizer, read = Tokenizer(made(lowercase=True)), list[str]()
    plain = tokenizer._plain
    assert plain
    encode = plain.encode

    def noted(texts: list[str], special: bool, others: Encode) -> list[tokenizers.Encoding]:
        read.extend(texts)
        return encode(texts, special, others)

    monkeypatch.setattr(plain, "encode", noted)
    rows = [own.ids.tolist() for own in tokenizer.rows(texts, 6)]
    assert texts[0] not in read and texts[1] in read, "the second has more tokens behind its spaces"
    monkeypatch.setattr(plain, "_by_word", False)
    assert [own.ids.tolist() for own in tokenizer.rows(texts, 6)] == rows and texts[0] in read


def test_where_a_name_has_a_space_in_it_all_of_a_text_is_read() -> None:
    tokenizer = made(lowercase=True)
    tokenizer.add_tokens([tokenizers.AddedToken("hello world")])
    plain = PlainText.of(tokenizer)
    assert plain and plain.beginning(text := "hello " * 5_000, 4) is text
