"""A first pass of an adapter's model, held against its spec: what is wrong with it is said when it is loaded.

Owns which heads a spec's tasks need and what an output of each looks like. Our own encoders are made by the spec and
try themselves out (``model``). No torch here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sie_bundle.engine.outputs import SparseRow, first_not_finite
from sie_bundle.engine.row import Row
from sie_bundle.models.label_tokenizer import LabelTokenizer
from sie_bundle.models.tokenization import Tokenizer
from sie_config.model.model_spec import ModelSpec
from sie_config.model.tasks import Tasks
from sie_sdk.errors import ModelLoadFailedError, SIEError

if TYPE_CHECKING:
    from sie_bundle.models.model import Model  # brings torch

HINT = "docs/models.md says what a model has, and what forward gives."

MATRICES = ("dense", "pooled", "logits", "yes_no")
"""Heads with one size for all rows: one array. The others give a list."""

SCORES = {"cross_encoder": "logits", "yes_no": "yes_no", "maxsim": "multivector"}
EXTRACTS = {"classes": "logits", "entailment": "logits", "entities": "token_logits", "spans": "spans"}


def first_rows(tokenizer: Tokenizer, spec: ModelSpec, texts: Sequence[str]) -> list[Row]:
    """The rows of short texts, as a request of the model has them."""
    if isinstance(tokenizer, LabelTokenizer):
        return [row for each in tokenizer.labelled(texts, ["a"], spec.max_sequence_length, 0) for row in each.rows]
    return tokenizer.rows(texts, spec.max_sequence_length)


def needed(tasks: Tasks) -> list[str]:
    """The heads that requests for a spec's tasks ask for, whatever their options."""
    heads = [name for name in ("dense", "sparse", "multivector") if getattr(tasks, name)]
    if tasks.score:
        heads.append(SCORES[tasks.score.kind])
    if tasks.extract and tasks.extract.kind in EXTRACTS:
        heads.append(EXTRACTS[tasks.extract.kind])
    return list(dict.fromkeys(heads))


def try_out(model: Model, spec: ModelSpec, lacking: Sequence[str]) -> None:
    """Check what an adapter made of a spec.

    Args:
        lacking: the names of what it has none of that a model has.

    Raises:
        ModelLoadFailedError: it lacks something, its forward pass fails, or gives what the spec does not say.
    """
    made = f"What the adapter of {spec.family!r} made of {spec.id}"
    if lacking:
        raise ModelLoadFailedError(f"{made} has no {', '.join(lacking)}.", hint=HINT)
    heads = needed(spec.tasks)
    if absent := [head for head in heads if head not in model.heads]:
        has = ", ".join(model.heads) or "none"
        raise ModelLoadFailedError(
            f"{made} has no head {', '.join(absent)}, which the tasks of its spec need; it has: {has}.", hint=HINT
        )
    heads += [head for head in model.heads if head.partition(":")[0] in ("dense", "pooled") and head not in heads]
    rows = first_rows(model.tokenizer, spec, ["a", "b a"])
    try:
        outputs = model.forward(rows, {head: range(len(rows)) for head in heads})
    except SIEError:
        raise
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise ModelLoadFailedError(f"A first forward pass of {spec.id} failed: {told}.") from error
    for head in heads:
        if fault := _fault(model, spec.tasks, rows, head, outputs.get(head)):
            raise ModelLoadFailedError(f"{made} {fault}.", hint=HINT)


def _fault(model: Model, tasks: Tasks, rows: Sequence[Row], head: str, given: object) -> str:
    """What is wrong with a head's outputs; empty: nothing."""
    if head.partition(":")[0] in MATRICES:
        if not isinstance(given, np.ndarray) or given.ndim != 2:
            return f"gives {head} as {_seen(given)}, not as one numpy array [rows, size]"
    elif not isinstance(given, list):
        return f"gives {head} as {_seen(given)}, not as a list with one output for each row"
    if len(given) != len(rows):
        return f"gives {len(given)} {head} outputs for {len(rows)} rows"
    for row, output in zip(rows, given, strict=True):
        if fault := _fault_of_row(model, tasks, row, head, output):
            return fault
    return "" if first_not_finite({head: given}) is None else f"gives {head} that is not finite"


def _fault_of_row(model: Model, tasks: Tasks, row: Row, head: str, output: object) -> str:
    if head == "sparse" and not isinstance(output, SparseRow):
        return f"gives sparse rows as {_seen(output)}, not as SparseRow(indices, values)"
    values = output.values if isinstance(output, SparseRow) else output
    if not isinstance(values, np.ndarray) or values.dtype != np.float32:
        return f"gives {head} as {_seen(values)}, not in float32"
    if isinstance(output, SparseRow):
        most = int(output.indices.max(initial=0))
        dim = tasks.sparse.dim if tasks.sparse else most + 1
        return f"gives a sparse index of {most}, its spec says {dim} dimensions" if most >= dim else ""
    if head in ("multivector", "token_logits") and values.shape[:-1] != (len(row),):
        return f"gives {head} as {_seen(values)} for a row of {len(row)} tokens"
    size = _size(model, tasks, head)
    if size and values.shape[-1] != size:
        told = "there are labels for" if "logits" in head else "its spec says"
        return f"computes {values.shape[-1]} {head}{'' if 'logits' in head else ' dimensions'}, {told} {size}"
    return ""


def _size(model: Model, tasks: Tasks, head: str) -> int:
    """What the last axis of an output has to be; 0: that is not known."""
    name = head.partition(":")[0].replace("pooled", "dense")
    if name in ("dense", "multivector"):
        task = getattr(tasks, name)
        return int(task.dim) if task else 0  # of a head that no task of the spec asks for
    if name == "yes_no":
        return 1
    return len(model.labels) if "logits" in name and tasks.extract else 0


def _seen(given: object) -> str:
    if isinstance(given, np.ndarray):
        return f"an array {list(given.shape)} of {given.dtype}"
    if isinstance(given, list | tuple) and given:
        return f"a {type(given).__name__} of {type(given[0]).__name__}"
    return "nothing" if given is None else f"a {type(given).__name__}"
