"""The span head: how well each label before a text fits each span of its words (GLiNER, 2311.08526).

Owns what is computed from the encoder's states: words and labels picked out, the LSTM over words, their scores. Which
rows these are is ``label_tokenizer``'s, what is made of the scores ``sie_bundle.operations.spans``'.

A span's vector is never made. Its first layer is linear in the first and the last word, so it is computed by word
instead of by span; its second is linear, too, so it is multiplied with the labels first: of a row of 384 words with ten
labels, that leaves a fortieth of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence

from sie_bundle.engine.linear import Linear, linear
from sie_bundle.engine.outputs import Floats
from sie_bundle.engine.packing import Packed
from sie_bundle.engine.transfer import fetched, moved
from sie_bundle.models.gliner import TOKEN_LEVEL
from sie_bundle.models.label_tokenizer import LabelTokenizer
from sie_bundle.models.parameters import Parameters, run
from sie_sdk.errors import ModelLoadFailedError

if TYPE_CHECKING:
    from sie_bundle.models.gliner import Config

AT_ONCE = 1024
"""Spans, or pairs of words and labels, whose hidden layer is in memory at a time: 13 MB for a hidden size of 768."""
AT_ONCE_ON_DEVICE = 1 << 16
"""The same where a step is asked for in a few microseconds and its memory is plenty."""

_SPAN = "span_rep_layer.span_rep_layer"
_RNN = "rnn.lstm."


class Ends(NamedTuple):
    """The spans of a row: each one's first word, and how many words it has beside that; [n] int64."""

    first: npt.NDArray[np.int64]
    beside: npt.NDArray[np.int64]


class Places(NamedTuple):
    """Where the labels and words of some rows stand in the packed row, all together, and how many each row has."""

    labels: Tensor
    words: Tensor
    label_counts: list[int]
    word_counts: list[int]


def spans(tokenizer: LabelTokenizer, parameters: Parameters) -> Callable[[Tensor, Packed, Sequence[int]], list[Floats]]:
    """The head. Of a row with n words and C labels it gives logits.

    [n, width, C]: of the span from each word on that is 1 to ``width`` words long; 0 where the row ends before. Of
    checkpoints on the token level [n, C, 3]: whether a word is an entity's first, its last, and inside of it.

    Raises:
        ModelLoadFailedError: the checkpoint has not the layers.
    """
    config = tokenizer.config
    projection = parameters.head(_if_there("token_rep_layer.projection", parameters))
    lstm = _lstm(config, parameters)
    score = _by_word(parameters) if config.span_mode == TOKEN_LEVEL else _by_span(config, parameters)

    def head(states: Tensor, packed: Packed, texts: Sequence[int]) -> list[Floats]:
        at = _places(packed, texts)
        labels, words = (run(projection, states[places].float()) for places in (at.labels, at.words))
        if lstm is not None:
            words = _read_both_ways(lstm, words, at.word_counts)
        return score(words, labels, at)

    return head


def _places(packed: Packed, texts: Sequence[int]) -> Places:
    marks = [packed.rows[text].marks for text in texts]
    assert all(each is not None for each in marks), "rows of this head have labels"
    own = [(packed.starts[text], each) for text, each in zip(texts, marks, strict=True) if each is not None]
    device = packed.device
    return Places(
        moved(np.concatenate([start + each.labels for start, each in own]), device),
        moved(np.concatenate([start + each.words for start, each in own]), device),
        [len(each.labels) for _, each in own],
        [len(each.words) for _, each in own],
    )


def _lstm(config: Config, parameters: Parameters) -> nn.LSTM | None:
    """The layers between words; None: the checkpoint has none."""
    layers = 0
    while f"{_RNN}weight_ih_l{layers}" in parameters:
        layers += 1
    if not layers:
        return None
    with torch.device("meta"):
        lstm = nn.LSTM(config.hidden_size, config.hidden_size // 2, layers, bidirectional=True)
    taken = {name: parameters.take(f"{_RNN}{name}", torch.float32) for name, _ in lstm.named_parameters()}
    if strange := [name for name, own in lstm.named_parameters() if own.shape != taken[name].shape]:
        raise ModelLoadFailedError(
            f"{_RNN}{strange[0]} is not of the hidden_size of gliner_config.json, {config.hidden_size}."
        )
    lstm.load_state_dict(taken, assign=True)
    lstm.flatten_parameters()
    return lstm.eval()


def _read_both_ways(lstm: nn.LSTM, words: Tensor, counts: Sequence[int]) -> Tensor:
    """The LSTM over the words of each row by itself; [words of all rows, hidden]."""
    packed = pack_sequence(list(torch.split(words, list(counts))), enforce_sorted=False)
    read, _ = lstm(packed)
    rows, _ = pad_packed_sequence(cast("PackedSequence", read), batch_first=True)
    return torch.cat([row[:count] for row, count in zip(rows, counts, strict=True)])


class _BySpan(NamedTuple):
    """Scores of spans. ``first`` and ``last``: layers of the words at the ends, up to the sum that is activated."""

    width: int
    labels: Sequence[Linear]
    first: Sequence[Linear]
    last: Sequence[Linear]
    out: Tensor | None
    """[hidden, inner], the layer behind that sum; None: there is none, and the sum is the vector of the span."""
    bias: Tensor | None

    def __call__(self, words: Tensor, labels: Tensor, at: Places) -> list[Floats]:
        """See `spans`."""
        labels, first, last = run(self.labels, labels), run(self.first, words), run(self.last, words)
        shifts = labels @ self.bias if self.bias is not None else labels.new_zeros(len(labels))
        keys = labels @ self.out if self.out is not None else labels
        ends = [_ends(words, self.width) for words in at.word_counts]
        by_word = (torch.split(each, at.word_counts) for each in (first, last))
        by_label = (torch.split(each, at.label_counts) for each in (keys, shifts))
        logits = _fetched([self._row(*row) for row in zip(*by_word, *by_label, ends, strict=True)])
        found = []
        for own, numbers, words_of in zip(ends, logits, at.word_counts, strict=True):
            found.append(np.zeros((words_of, self.width, numbers.shape[1]), np.float32))
            found[-1][own.first, own.beside] = numbers
        return found

    def _row(self, first: Tensor, last: Tensor, keys: Tensor, shift: Tensor, ends: Ends) -> Tensor:
        """[spans, labels]."""
        words, step = moved(np.stack([ends.first, ends.first + ends.beside]), first.device), _at_once(first)
        logits = torch.empty(words.shape[1], len(keys), device=first.device)
        for start in range(0, len(logits), step):
            part = slice(start, start + step)
            hidden = first[words[0, part]] + last[words[1, part]]
            logits[part] = (hidden.relu_() if self.out is not None else hidden) @ keys.T + shift
        return logits


def _by_span(config: Config, parameters: Parameters) -> _BySpan:
    """The layers of ``markerV0``, or of ``marker``, whose last one is linear."""
    size = config.hidden_size
    deep = config.span_mode == "markerV0"
    name = f"{_SPAN}.out_project" + (".0" if deep else "")
    weight, bias = (parameters.take(f"{name}.{kind}", torch.float32) for kind in ("weight", "bias"))
    first, last = (
        [*parameters.head(f"{_SPAN}.project_{end}.0 relu {_SPAN}.project_{end}.3 relu"), linear(part, own)]
        for end, part, own in (("start", weight[:, :size], bias), ("end", weight[:, size:], None))
    )
    out = f"{_SPAN}.out_project.3"
    return _BySpan(
        config.max_width,
        parameters.head("prompt_rep_layer.0 relu prompt_rep_layer.3"),
        first,
        last,
        parameters.take(f"{out}.weight", torch.float32) if deep else None,
        parameters.take(f"{out}.bias", torch.float32) if deep else None,
    )


class _ByWord(NamedTuple):
    """Scores of words. ``by_word``, ``by_label``, ``by_both``: parts of the layer before ``out``."""

    word: Linear
    label: Linear
    by_word: Linear
    by_label: Linear
    by_both: Linear
    out: Linear

    def __call__(self, words: Tensor, labels: Tensor, at: Places) -> list[Floats]:
        """See `spans`."""
        (word, word_factor), (label, label_factor) = self.word(words).chunk(2, -1), self.label(labels).chunk(2, -1)
        parts = zip(
            *(torch.split(each, at.word_counts) for each in (self.by_word(word), word_factor)),
            *(torch.split(each, at.label_counts) for each in (self.by_label(label), label_factor)),
            strict=True,
        )
        return _fetched([self._row(*each) for each in parts])

    def _row(self, word: Tensor, word_factor: Tensor, label: Tensor, label_factor: Tensor) -> Tensor:
        """[words, labels, 3]."""
        found = torch.empty(len(word), len(label), 3, device=word.device)
        step = max(1, _at_once(word) // len(label))
        for start in range(0, len(word), step):
            part = slice(start, start + step)
            both = (word_factor[part, None] * label_factor).flatten(0, 1)
            hidden = self.by_both(both).view(-1, *label.shape) + word[part, None] + label
            found[part] = self.out(hidden.relu_().flatten(0, 1)).view(-1, len(label), 3)
        return found


def _by_word(parameters: Parameters) -> _ByWord:
    hidden = parameters.take("scorer.out_mlp.0.weight", torch.float32)
    word, label, both = hidden.chunk(3, dim=1)
    names = ("scorer.proj_token", "scorer.proj_label", "scorer.out_mlp.3")
    of_word, of_label, out = (parameters.linear([name], dtype=torch.float32) for name in names)
    bias = parameters.take("scorer.out_mlp.0.bias", torch.float32)
    return _ByWord(of_word, of_label, linear(word, None), linear(label, bias), linear(both, None), out)


def _ends(words: int, width: int) -> Ends:
    return Ends(*np.nonzero(np.arange(words)[:, None] + np.arange(width) < words))


def _at_once(tensor: Tensor) -> int:
    return AT_ONCE if tensor.device.type == "cpu" else AT_ONCE_ON_DEVICE


def _fetched(rows: Sequence[Tensor]) -> list[Floats]:
    """All rows' numbers on the host, by one way for all."""
    whole = fetched(torch.cat([row.flatten() for row in rows]))
    ends = np.cumsum([row.numel() for row in rows])[:-1]
    return [part.reshape(row.shape) for part, row in zip(np.split(whole, ends), rows, strict=True)]


def _if_there(name: str, parameters: Parameters) -> str:
    return name if f"{name}.weight" in parameters else ""
