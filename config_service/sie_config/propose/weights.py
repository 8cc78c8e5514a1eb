"""The weights as far as a proposal looks at them: which files, how large, how many parameters. Pure.

Owns the header of a safetensors file (https://huggingface.co/docs/safetensors). Loading is the engine's.
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Final

import msgspec

from sie_config.propose import gliner
from sie_config.propose.draft import Draft
from sie_config.propose.folder import TOKENIZER_JSON, Folder, Tensor, fault, record
from sie_config.propose.papers import Papers

WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
PICKLED: Final = "pytorch_model.bin"
_WEIGHTS: Final = (".safetensors", ".bin", ".onnx", ".gguf", ".pt", ".pth", ".h5", ".ckpt")
_PLAIN: Final = ("F64", "F32", "F16", "BF16")
"""What a weight is stored as where its numbers stand for themselves."""
LONGEST_HEADER: Final = 100_000_000
"""Bytes; what safetensors itself reads at most."""


Size = Annotated[int, msgspec.Meta(ge=0)]


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[Size, ...]
    data_offsets: tuple[Size, Size]


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]
    """By tensor, the file."""


def files(folder: Folder) -> list[str]:
    """The files that hold the tensors, in the layout the engine takes (``sie_bundle.weights.layout``).

    Empty: none do, or some of several are missing.

    Raises:
        ConfigurationError: the index of several files cannot be read.
    """
    if WEIGHTS in folder.names:
        return [WEIGHTS]
    if (index := record(folder, INDEX, _Index)) is not None:
        parts = sorted(set(index.weight_map.values()))
        own = all("/" not in name and name.endswith(".safetensors") for name in parts)
        return parts if own and folder.names.issuperset(parts) else []
    return [PICKLED] if PICKLED in folder.names else []


def header_length(first: bytes, name: str = WEIGHTS) -> int:
    """How many bytes of header follow the first eight of the file ``name``.

    Raises:
        ConfigurationError: this is no safetensors file.
    """
    length = int.from_bytes(first[:8], "little")
    if len(first) < 8 or not 2 <= length <= LONGEST_HEADER:
        raise fault(name, "", "it does not begin as a safetensors file does")
    return length


def tensors(header: bytes, size: int, name: str = WEIGHTS) -> dict[str, Tensor]:
    """The tensors that the header of the file ``name`` lists, by name. ``size``: of the whole file.

    Raises:
        ConfigurationError: it is no header, or the data of its tensors is not all there.
    """
    try:
        found = json.loads(header, object_pairs_hook=_once)
        entries = {tensor: own for tensor, own in found.items() if tensor != "__metadata__"}
        read = msgspec.convert(entries, dict[str, _Entry])
    except (ValueError, AttributeError, RecursionError) as error:
        raise fault(name, "header", str(error)[:120]) from None
    wanted = 8 + len(header) + max((own.data_offsets[1] for own in read.values()), default=0)
    if size < wanted:
        raise fault(name, "", f"it ends after {size} of its {wanted} bytes")
    return {tensor: Tensor(own.dtype, own.shape) for tensor, own in read.items()}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a name is there twice")
    return made


def propose(papers: Papers, draft: Draft) -> None:
    """Propose ``parameters`` and ``bytes``, and block what has no weights the engine reads."""
    folder = papers.folder
    found = files(folder)
    if folder.files.keys() & {"config.json", gliner.FILE}:
        if not found:
            others = sorted(name for name in folder.names if name.endswith(_WEIGHTS))
            more = f" and {len(others) - 3} more" if len(others) > 3 else ""
            there = f"there is {', '.join(others[:3]) or 'nothing'}{more}"
            what = f"all files that {INDEX} names" if INDEX in folder.names else f"weights as {WEIGHTS}"
            draft.block(f"{what} ({there})")
        if TOKENIZER_JSON not in folder.names:
            draft.block("a tokenizer.json, which the folder lacks")
    counted = [own for own in (folder.tensors or {}).values() if not own.dtype.startswith(("I", "U", "BOOL"))]
    if said := _quantised(papers):
        draft.block(f"quantised weights ({said})")
    elif counted:
        draft.put("parameters", sum(math.prod(own.shape) for own in counted), f"the weights: {_types(counted)}")
    wanted = dict.fromkeys((*found, *draft.document.get("files", [])))
    if size := sum(folder.sizes.get(name, 0) for name in wanted):
        draft.put("bytes", size, "the weights' files")


def _quantised(papers: Papers) -> str:
    """What says that numbers of the weights stand for others; empty: nothing does."""
    for field in ("quantization_config", "quantization"):
        if getattr(papers.config, field):
            return f"config.json: {field}"
    tensors = (papers.folder.tensors or {}).items()
    odd = (f"{name} of {own.dtype}" for name, own in tensors if name.endswith("weight") and own.dtype not in _PLAIN)
    return next(odd, "")


def _types(counted: list[Tensor]) -> str:
    return ", ".join(sorted({own.dtype for own in counted}))
