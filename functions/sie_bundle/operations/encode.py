"""Encode: texts become dense, sparse or multivector embeddings. What to tokenize, which heads, and the last steps.

Owns ColBERT's marker and mask tokens, Matryoshka truncation, and which vectors a text keeps. The way around it
is ``operation``; the arithmetic of the number formats is ``quantize``, of fixed dimensional encodings ``muvera``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np
import numpy.typing as npt

from sie_bundle.engine.outputs import Floats, Outputs, SparseRow
from sie_bundle.engine.row import Row
from sie_bundle.models.tokenization import ITEM, Name
from sie_bundle.operations import prompts
from sie_bundle.operations.operation import Plan
from sie_bundle.operations.options import Options
from sie_bundle.operations.tokens import augmented, kept, marked
from sie_config.model import runtime_options
from sie_config.model.model_spec import ModelSpec
from sie_config.model.tasks import Multivector, Pooling
from sie_sdk import outputs as wire_outputs
from sie_sdk import replies, wire
from sie_sdk.outputs import DenseOutput, MultivectorOutput, SparseOutput
from sie_sdk.quantize import quantize
from sie_sdk.types import EncodeRequest, OutputDtype, OutputType, Timing, Usage, asks_for_muvera

if TYPE_CHECKING:
    from sie_bundle.models.model import Model  # brings torch
    from sie_bundle.operations.muvera import Muvera

POOLINGS = get_args(Pooling)

SHORTEST = np.float32(1e-12)
"""A vector shorter than this is not brought to length 1, as torch's ``normalize`` has it."""


def parse(body: bytes) -> EncodeRequest:
    """The body as the ingress passed it on, checked again."""
    return wire.parse_encode(body, wire.MSGPACK)


def plan(model: Model, spec: ModelSpec, request: EncodeRequest) -> Plan:
    """See `operation.Planner`.

    Raises:
        InvalidInputError: an output or option the model does not have, a text without tokens.
        InputTooLongError: a text over the limit with ``overflow_policy="error"``.
    """
    params = request.params
    wanted = wire_outputs.wanted(request, spec.id, spec.outputs)
    options = Options(params.options, runtime_options.encode(spec.tasks), "params.options")
    is_query = options.flag("is_query")
    encoding = _muvera(spec, options)
    fde = encoding if "dense" in wanted else None
    dims, dense, unit = _dense(model, spec, options)
    heads = list(dict.fromkeys(name if name != "dense" else "multivector" if fde else dense for name in wanted))
    texts = [item.text or "" for item in request.items]
    texts = prompts.prompted(texts, spec.tasks, options, params.instruction, is_query=is_query)
    rows = encode_rows(model, spec, texts, options, heads, is_query)
    dtype: OutputDtype = params.output_dtype or "float32"
    ids = [item.id for item in request.items]

    def finish(computed: Mapping[str, Outputs], timing: Timing, usage: Usage) -> bytes:
        made: dict[OutputType, wire_outputs.Output] = {}
        if "multivector" in heads:
            task = cast("Multivector", spec.tasks.multivector)
            vectors = kept(cast("list[Floats]", computed["multivector"]), rows, model.tokenizer, task, is_query)
            if "multivector" in wanted:
                made["multivector"] = multivector_output(vectors, dtype)
            if fde:
                made["dense"] = dense_output(
                    fde.encode_queries(vectors) if is_query else fde.encode_documents(vectors), dtype
                )
        if "dense" in wanted and not fde:
            made["dense"] = dense_output(shortened(cast("Floats", computed[dense]), dims, unit), dtype)
        if "sparse" in heads:
            assert spec.tasks.sparse is not None
            made["sparse"] = sparse_output(cast("list[SparseRow]", computed["sparse"]), spec.tasks.sparse.dim, dtype)
        return replies.encode(spec.id, ids, made, timing, usage)

    return Plan(rows, heads, finish, long=fde is not None)


def repeated(spec: ModelSpec, request: EncodeRequest) -> int:
    """See `operation.Repeated`."""
    params = request.params
    return prompts.repeated([item.text or "" for item in request.items], spec.tasks, params.options, params.instruction)


def encode_rows(
    model: Model,
    spec: ModelSpec,
    texts: Sequence[str],
    options: Options,
    heads: Sequence[str],
    is_query: bool,
    name: Name = ITEM,
) -> list[Row]:
    """The texts' rows, with the marker and the augmentation a multivector model was trained with.

    Args:
        name: what errors call the text of that number.
    """
    task = spec.tasks.multivector if "multivector" in heads else None
    longest = options.longest(spec.max_sequence_length)
    queries = options.count("query_max_length", spec.max_sequence_length, spec.max_sequence_length)
    longest = min(longest, queries) if is_query else longest
    if task is None:
        return model.tokenizer.rows(texts, longest, options.overflow(), name)
    if is_query and task.query_length:
        longest = min(longest, task.query_length)
    if not is_query and task.document_length:
        longest = min(longest, task.document_length)
    marker = task.query_marker if is_query else task.document_marker
    rows = model.tokenizer.rows(texts, longest - bool(marker), options.overflow(), name)
    if marker:
        rows = [marked(row, model.tokenizer.id(marker)) for row in rows]
    if is_query and task.query_length:
        rows = [augmented(row, model.tokenizer.id(task.mask), longest, seen=task.attend_to_mask) for row in rows]
    return rows


def shortened(vectors: Floats, dims: int, unit: bool) -> Floats:
    """The first ``dims`` dimensions (Matryoshka, 2205.13147), brought to length 1 where ``unit`` says so."""
    shorter = vectors[:, :dims]
    if not unit:
        return shorter
    lengths = np.maximum(np.linalg.norm(shorter, axis=1, keepdims=True), SHORTEST)
    return cast("Floats", shorter / lengths)


def dense_output(vectors: Floats, dtype: OutputDtype) -> DenseOutput:
    """Vectors [n, dims] in the number format asked for."""
    rows, scale, offset = quantize(vectors, dtype)
    return DenseOutput(rows, vectors.shape[1], dtype, scale, offset)


def sparse_output(rows: Sequence[SparseRow], dims: int, dtype: OutputDtype) -> SparseOutput:
    """Sparse rows, their values in the number format asked for."""
    if dtype == "float16":  # which refuses what it cannot hold, in whichever row
        quantize(np.array([[np.abs(row.values).max(initial=0)] for row in rows], np.float32).reshape(-1, 1), dtype)
    kind = wire_outputs.WIRE_DTYPES[dtype]
    return SparseOutput([(row.indices, row.values.astype(kind, copy=False)) for row in rows], dims, dtype)


def multivector_output(vectors: Sequence[Floats], dtype: OutputDtype) -> MultivectorOutput:
    """Each text's vectors [tokens, dims] in the number format asked for, all texts at once."""
    rows, scale, offset = quantize(np.concatenate(vectors), dtype)
    cuts = np.cumsum([len(own) for own in vectors])[:-1]

    def by_text(column: npt.NDArray[Any] | None) -> list[npt.NDArray[Any]] | None:
        return None if column is None else np.split(column, cuts)

    return MultivectorOutput(np.split(rows, cuts), vectors[0].shape[1], dtype, by_text(scale), by_text(offset))


def _dense(model: Model, spec: ModelSpec, options: Options) -> tuple[int, str, bool]:
    """How many dimensions, of which head, and whether they are still to be brought to length 1."""
    if (dense := spec.tasks.dense) is None:
        return 0, "dense", False
    dims = options.count("dimensions", dense.dim, dense.dim)
    if dims != dense.dim and dims not in dense.dims:
        allowed = ", ".join(map(str, (*dense.dims, dense.dim)))
        raise options.wrong("dimensions", f"a length that {spec.id} has: {allowed}", limit=allowed)
    unit = options.flag("normalize", default=dense.normalize)
    head = "pooled" if dense.normalize and not unit else "dense"
    if (pooling := options.choice("pooling", dense.pooling, POOLINGS)) != dense.pooling:
        head = f"{head}:{pooling}"
    if head not in model.heads:  # an adapter's
        name, own = ("normalize", "true") if pooling == dense.pooling else ("pooling", dense.pooling)
        raise options.wrong(name, f"what {spec.id} does: {own}", limit=own)
    return dims, head, unit and not (dense.normalize and dims == dense.dim)


def _muvera(spec: ModelSpec, options: Options) -> Muvera | None:
    """The encoding ``options.muvera`` describes; None and false: none."""
    given = options.given("muvera")
    if (task := spec.tasks.multivector) is None or not asks_for_muvera(given):
        return None
    from sie_bundle.operations.muvera import of_option

    return of_option(given, task.dim)
