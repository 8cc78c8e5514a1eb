"""The representations of an encode request: which ones it asks of a model, and each as a bundle hands it over.

Owns the defaults of asking, the records and the arrays' dtypes on the wire. Computing the representations is the
bundle's; their bytes are ``replies``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from sie_sdk.errors import InvalidInputError
from sie_sdk.types import SPARSE_DTYPES as SPARSE_DTYPES
from sie_sdk.types import EncodeRequest, OutputDtype, OutputType, asks_for_muvera

Array: TypeAlias = npt.NDArray[Any]

WIRE_DTYPES: Final[dict[OutputDtype, np.dtype[Any]]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "int8": np.dtype("i1"),
    "uint8": np.dtype("u1"),
    "binary": np.dtype("u1"),
    "ubinary": np.dtype("u1"),
}
"""Each output dtype as arrays hold it; binary and ubinary are bits of ``x > 0``, eight to a byte, first bit high."""

OUTPUT_TYPES: Final[tuple[OutputType, ...]] = get_args(OutputType)


class DenseOutput(NamedTuple):
    """One vector per text.

    ``rows``: ``[n, width]`` in the wire dtype, ``width`` being ``dims`` (``dims / 8`` for bits). ``scale`` and
    ``offset``: float32 ``[n]``, one per text; None where the dtype needs none.
    """

    rows: Array
    dims: int
    dtype: OutputDtype
    scale: npt.NDArray[np.float32] | None = None
    offset: npt.NDArray[np.float32] | None = None


class SparseOutput(NamedTuple):
    """The non-zero places of one vector per text: ``(indices int32 [k], values [k])`` of ``dims`` in all."""

    rows: Sequence[tuple[npt.NDArray[np.int32], Array]]
    dims: int
    dtype: OutputDtype


class MultivectorOutput(NamedTuple):
    """One vector per token: ``rows`` are arrays ``[tokens, width]``, ``scale`` and ``offset`` arrays ``[tokens]``."""

    rows: Sequence[Array]
    dims: int
    dtype: OutputDtype
    scale: Sequence[npt.NDArray[np.float32]] | None = None
    offset: Sequence[npt.NDArray[np.float32]] | None = None


Output: TypeAlias = DenseOutput | SparseOutput | MultivectorOutput
Outputs: TypeAlias = Mapping[OutputType, Output]


def wanted(request: EncodeRequest, model: str, offered: Sequence[str]) -> list[OutputType]:
    """The representations to compute: those asked for, each once; by default dense, or all the model has without it.

    As in the published protocol, ``options.output_types`` goes before ``params.output_types``, and ``options.muvera``
    gives a model with multivectors a dense output: a fixed dimensional encoding of them.

    Args:
        request: the request as it was parsed.
        model: the model's name, for the errors.
        offered: what the model can do; names that are no output types are not looked at.

    Raises:
        InvalidInputError: an output type the model does not offer, no output at all, or a dtype sparse vectors lack.
    """
    options = request.params.options or {}
    encoded = ["dense"] if asks_for_muvera(options.get("muvera")) and "multivector" in offered else []
    has = [name for name in OUTPUT_TYPES if name in (*offered, *encoded)]
    by_default = ["dense"] if "dense" in has else has
    in_options = options.get("output_types")
    field = "params.output_types" if in_options is None else "params.options.output_types"
    given = (request.params.output_types if in_options is None else in_options) or by_default or "any"
    asked = given if isinstance(given, list) else [given]
    for name in asked:
        if name not in has:
            raise InvalidInputError(
                f"{model} does not compute {name} outputs.",
                field=field,
                limit=(offer := ", ".join(has) or "none"),
                hint=f"Its output types: {offer}.",
            )
    dtype = request.params.output_dtype or "float32"
    if "sparse" in asked and dtype not in SPARSE_DTYPES:
        raise InvalidInputError(
            f"Sparse vectors do not come as {dtype}.",
            field="params.output_dtype",
            limit=", ".join(SPARSE_DTYPES),
            hint=f"Use one of {', '.join(SPARSE_DTYPES)}, or ask for sparse in a request of its own.",
        )
    return list(dict.fromkeys(asked))
