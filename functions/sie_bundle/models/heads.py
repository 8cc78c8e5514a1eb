"""Heads: what is made of the token states of one forward pass, per text. The tasks of a model share that pass.

Owns the computation on the device, down to arrays in the caller's order. Not here: what requests want (``encode``,
``score``, ``extract``), quantisation and merging (off the device's thread), the names of the layers (``family``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from sie_bundle.engine.linear import Linear
from sie_bundle.engine.outputs import Floats, Outputs, SparseRow
from sie_bundle.engine.packing import Group, Packed
from sie_bundle.engine.pooling import POOLINGS, Pool
from sie_bundle.engine.transfer import computed, fetched, moved
from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.models.label_tokenizer import LabelTokenizer
from sie_bundle.models.parameters import Parameters, run
from sie_bundle.models.span_head import spans
from sie_config.model.tasks import Dense, Multivector, Score, Sparse
from sie_sdk.errors import ModelLoadFailedError

VOCABULARY_TOKENS = 512
"""Tokens whose logits over the whole vocabulary are in memory at a time: 60 MB for BERT's."""
WEIGHTS = 1 << 28
"""Numbers over the vocabulary that are kept at a time, 1 GB: those of 6,500 short texts in one batch are 6.5 GB."""


Head: TypeAlias = Callable[[Tensor, Packed, Sequence[int]], Outputs]
"""(states [T, hidden], packed, texts by their number in the caller's order) to one output per text asked for."""


def heads(checkpoint: Checkpoint, parameters: Parameters, pool: Pool) -> dict[str, Head]:
    """The heads the model's spec asks for, by name; ``pool``: of the states its encoder gives.

    ``dense`` [dim], and where its length is brought to 1, ``pooled`` [dim], the same before that; ``dense:cls`` and so
    on for each other pooling. ``sparse`` a
    `SparseRow`, ``multivector`` [tokens, dim]. ``logits`` [labels] of the whole text, ``token_logits`` [tokens,
    labels], ``yes_no`` [1]. ``spans``: see `span_head.spans`.

    Raises:
        ModelLoadFailedError: the checkpoint has not the layers for one.
    """
    tasks, family = checkpoint.spec.tasks, checkpoint.architecture.family
    made: dict[str, Head] = {}
    if tasks.dense:
        made |= _dense(tasks.dense, parameters, pool)
    if tasks.sparse:
        made["sparse"] = _sparse(tasks.sparse, checkpoint, parameters)
    if tasks.multivector:
        made["multivector"] = _multivector(tasks.multivector, parameters)
    if tasks.score and tasks.score.kind == "yes_no":
        made["yes_no"] = _yes_no(tasks.score, checkpoint, parameters, pool)
    classifies = tasks.extract and tasks.extract.kind in ("classes", "entailment")
    if classifies or (tasks.score and tasks.score.kind == "cross_encoder"):
        made["logits"] = _logits(checkpoint, parameters, pool)
    if tasks.extract and tasks.extract.kind == "entities":
        layers = parameters.head(tasks.extract.head or family.token_classifier)
        made["token_logits"] = lambda states, packed, texts: _by_text(run(layers, states), packed, texts)
    if isinstance(tokenizer := checkpoint.tokenizer, LabelTokenizer):
        made["spans"] = spans(tokenizer, parameters)
    return made


def _dense(task: Dense, parameters: Parameters, pool: Pool) -> dict[str, Head]:
    layers = parameters.head(task.projection)

    def head(pooling: str, *, unit: bool) -> Head:
        def pooled(states: Tensor, packed: Packed, texts: Sequence[int]) -> Floats:
            if not layers:
                return _rows(pool(states, packed, pooling, unit), texts)
            vectors = run(layers, torch.as_tensor(pool(states, packed, pooling)))
            return _rows(normalize(vectors, dim=-1) if unit else vectors, texts)

        return pooled

    made: dict[str, Head] = {}
    for pooling in POOLINGS:
        other = "" if pooling == task.pooling else f":{pooling}"
        made["dense" + other] = head(pooling, unit=task.normalize)
        if task.normalize:
            made["pooled" + other] = head(pooling, unit=False)
    return made


def _logits(checkpoint: Checkpoint, parameters: Parameters, pool: Pool) -> Head:
    family, config = checkpoint.architecture.family, checkpoint.architecture.config
    own = checkpoint.spec.tasks.extract
    layers = parameters.head((own.head if own else "") or family.classifier)
    pooling = (own.pooling if own else "") or config.classifier_pooling or family.classifier_pooling

    padding = config.pad_token_id if pooling == "last" else None

    def head(states: Tensor, packed: Packed, texts: Sequence[int]) -> Floats:
        places = None if padding is None else _before_padding(packed, padding)
        one = pool(states, packed, pooling) if places is None else states[moved(places, states.device)].float()
        return _rows(run(layers, torch.as_tensor(one)), texts)

    return head


def _before_padding(packed: Packed, padding: int) -> npt.NDArray[np.int64] | None:
    """[n]: where the last token of each text is that is not ``padding``; None: all are the last of their texts.

    transformers' classifiers on decoders look for that token, and where the padding is also what ends a text it is not
    the last one.
    """
    ids, last = packed.tokens.ids, packed.starts + packed.lengths - 1
    padded = np.flatnonzero(ids[last] == padding)
    for text in padded:
        others = np.flatnonzero(ids[packed.starts[text] : last[text]] != padding)
        last[text] = packed.starts[text] + (others[-1] if len(others) else 0)
    return last if len(padded) else None


def _yes_no(task: Score, checkpoint: Checkpoint, parameters: Parameters, pool: Pool) -> Head:
    """The logit of "yes" less that of "no" behind the last token: both rows of the vocabulary's head, nothing else."""
    both = parameters.rows(parameters.vocabulary, [checkpoint.tokenizer.id(token) for token in (task.yes, task.no)])
    cap = checkpoint.architecture.config.final_logit_softcapping

    def head(states: Tensor, packed: Packed, texts: Sequence[int]) -> Floats:
        # A difference of two large numbers: in float32 whatever the states are.
        logits = _capped(torch.as_tensor(pool(states, packed, "last")) @ both.T, cap)
        return _rows(logits[:, :1] - logits[:, 1:], texts)

    return head


def _multivector(task: Multivector, parameters: Parameters) -> Head:
    layers = parameters.head(task.projection)

    def head(states: Tensor, packed: Packed, texts: Sequence[int]) -> list[Floats]:
        return _by_text(normalize(run(layers, states).float(), dim=-1), packed, texts)

    return head


def _sparse(task: Sparse, checkpoint: Checkpoint, parameters: Parameters) -> Head:
    if task.kind == "lexical":
        weights = parameters.linear([task.projection], dtype=torch.float32)
        special = np.array(sorted(checkpoint.tokenizer.special), dtype=np.int64)
        return lambda states, packed, texts: _lexical(torch.relu(weights(states)), packed, texts, special)
    if not (description := checkpoint.architecture.family.masked_lm):
        raise ModelLoadFailedError(f"The family {checkpoint.spec.family!r} has no masked language model's head here.")
    layers = parameters.head(description, vocabulary=True)
    config = checkpoint.architecture.config  # and not the checkpoint, whose files would stay open with the model
    cap, vocabulary = config.final_logit_softcapping, config.vocab_size

    def head(states: Tensor, packed: Packed, texts: Sequence[int]) -> list[SparseRow]:
        rows: list[SparseRow] = []
        entries = entries_on_host if states.device.type == "cpu" else entries_on_device
        for some in _at_once(packed.groups, vocabulary):
            best = _capped(torch.cat([_best(layers, group.view(states)) for group in some]), cap)
            rows += entries(torch.log1p(torch.relu(best)))
        return [rows[place] for place in packed.places[list(texts)].tolist()]

    return head


def _at_once(groups: Sequence[Group], vocabulary: int) -> Iterator[list[Group]]:
    """The groups in parts whose texts have no more than `WEIGHTS` numbers over the vocabulary; a large one is cut."""
    most = max(1, WEIGHTS // vocabulary)
    part: list[Group] = []
    for group in groups:
        for first in range(0, group.texts, most):
            some = min(most, group.texts - first)
            if part and sum(each.texts for each in part) + some > most:
                yield part
                part = []
            part.append(group._replace(start=group.start + first * group.length, texts=some))
    yield part


def entries_on_host(weights: Tensor) -> list[SparseRow]:
    """What is not zero in each row of ``weights`` [n, vocabulary]; row by row, which is what a CPU does fastest."""
    rows = weights.numpy()
    own = [np.flatnonzero(row) for row in rows]
    return [SparseRow(each.astype(np.int32), row[each]) for each, row in zip(own, rows, strict=True)]


def entries_on_device(weights: Tensor) -> list[SparseRow]:
    """The same, found where ``weights`` are: the host gets two hundred numbers of a text instead of its vocabulary."""
    with computed(weights.device):
        texts, tokens = weights.nonzero().unbind(1)
        values = weights[texts, tokens].cpu().numpy()
        indices = tokens.to(torch.int32).cpu().numpy()
        bounds = np.searchsorted(texts.to(torch.int32).cpu().numpy(), np.arange(1, len(weights)))
    return [SparseRow(*each) for each in zip(np.split(indices, bounds), np.split(values, bounds), strict=True)]


def _best(layers: Sequence[Linear], states: Tensor) -> Tensor:
    """[texts, length, hidden] to the largest logit over the tokens, [texts, vocabulary] float32.

    The maximum is taken first: log(1 + relu(.)) and a cap are monotone, so they need be computed of one row only.
    """
    length, hidden = states.shape[1:]
    at_once = max(1, VOCABULARY_TOKENS // length)
    parts = []
    for some in torch.split(states, at_once):
        spans = torch.split(some, VOCABULARY_TOKENS, dim=1)
        logits = [run(layers, span.reshape(-1, hidden)).view(*span.shape[:2], -1).amax(dim=1) for span in spans]
        parts.append(torch.stack(logits).amax(dim=0).float())
    return torch.cat(parts)


def _capped(logits: Tensor, cap: float | None) -> Tensor:
    """Logits over the vocabulary as Gemma bounds them, smoothly; None: as they are."""
    return logits if cap is None else cap * torch.tanh(logits / cap)


def _lexical(weights: Tensor, packed: Packed, texts: Sequence[int], special: npt.NDArray[np.int64]) -> list[SparseRow]:
    """Each token's weight under its id, the largest where an id occurs twice; special tokens have none.

    Of all texts at once: sorted by text and id, each stretch of equal ones is an entry.
    """
    bounds = packed.tokens.cu_seqlens
    ids, own = packed.tokens.ids[: bounds[-1]], fetched(weights)[: bounds[-1], 0]
    keys = np.repeat(np.arange(len(bounds) - 1) << 32, np.diff(bounds)) | ids
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    best, keys = np.maximum.reduceat(own[order], first), keys[first]
    tokens = keys & 0xFFFFFFFF
    kept = (best != 0) & ~np.isin(tokens, special)
    ends = np.searchsorted(keys[kept] >> 32, np.arange(1, len(bounds) - 1))
    split = zip(np.split(tokens[kept].astype(np.int32), ends), np.split(best[kept], ends), strict=True)
    rows = [SparseRow(*each) for each in split]
    return [rows[place] for place in packed.places[list(texts)].tolist()]


def _rows(vectors: Tensor | Floats, texts: Sequence[int]) -> Floats:
    """The rows of the texts asked for, usually all in order, as float32 [n, ...]."""
    rows: Floats = fetched(vectors.float()) if isinstance(vectors, Tensor) else vectors
    return rows if len(texts) == len(rows) else rows[list(texts)]


def _by_text(states: Tensor, packed: Packed, texts: Sequence[int]) -> list[Floats]:
    """Each text's own tokens [length, ...]; a view of one copy from the device."""
    tokens = fetched(states.float())
    return [tokens[packed.starts[text] : packed.starts[text] + packed.lengths[text]] for text in texts]
