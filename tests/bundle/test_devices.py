"""A pass where the model is on another device than the host: no operation takes tensors of both, and types fit.

Without such a device: torch's meta device computes shapes and types alone. What the numbers are is for ``tests/gpu``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx.experimental import _config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sie_bundle.engine import attention
from sie_bundle.engine.row import Row, row
from sie_bundle.models import packed_encoder
from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.models.model import EncoderModel
from sie_bundle.models.packed_encoder import PackedEncoder
from tests.bundle import test_jina_bert
from tests.bundle.test_families import PACKED, rows_of
from tests.bundle.test_families import load as on_cpu

ELSEWHERE = torch.device("meta")
MOVES = (torch.ops.aten._to_copy, torch.ops.aten.copy_)


class OneDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses what a GPU refuses, and the meta device does not: an operation on tensors of two devices."""

    def __torch_dispatch__(
        self, operation: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor) and each.dim()]
        if len({tensor.device for tensor in given}) > 1 and operation.overloadpacket not in MOVES:
            raise RuntimeError(f"{operation} of tensors on two devices")
        return operation(*args, **kwargs or {})


@pytest.fixture(autouse=True, params=[attention.varlen, attention.padded], ids=["varlen", "padded"])
def as_on_a_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A GPU's kernel; and what is brought back to the host, where there are no numbers, is zeros."""
    bring: Callable[[Tensor], Tensor] = Tensor.cpu

    def brought(tensor: Tensor) -> Tensor:
        return bring(torch.zeros_like(tensor, device="cpu") if tensor.device == ELSEWHERE else tensor)

    monkeypatch.setattr(Tensor, "cpu", brought)
    monkeypatch.setattr(packed_encoder, "kernel", lambda device, dtype: request.param)
    with OneDevice(), _config.patch(meta_nonzero_assume_all_nonzero=True):  # type: ignore[no-untyped-call, attr-defined]
        yield


def elsewhere(beside: EncoderModel, folder: Path) -> EncoderModel:
    """The same checkpoint on the other device, in a type that the heads do not have."""
    return EncoderModel(Checkpoint(beside.spec, folder), str(ELSEWHERE), "bfloat16")


def same_shapes(beside: EncoderModel, model: EncoderModel, rows: list[Row]) -> None:
    """Every head gives what the CPU's gives, but for the numbers."""
    wanted = {head: range(len(rows)) for head in beside.heads}
    expected, found = beside.forward(rows, wanted), model.forward(rows, wanted)
    for head in wanted.keys() - {"sparse"}:  # which of a sparse row's numbers are not zero, only numbers say
        for one, other in zip(found[head], expected[head], strict=True):
            assert isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
            assert (one.shape, one.dtype) == (other.shape, other.dtype), head


@pytest.mark.parametrize("kind", PACKED)
def test_every_head_of_every_family_runs_where_the_model_is(kind: str, tmp_path: Path) -> None:
    beside = on_cpu(kind, tmp_path)
    same_shapes(beside, elsewhere(beside, tmp_path), rows_of(kind, tmp_path))


def test_pairs_and_queries_filled_up_run_there(tmp_path: Path) -> None:
    beside = on_cpu("bert", tmp_path)
    rows = rows_of("bert", tmp_path)
    pairs = [Row(row.ids, len(row) // 2, len(row)) for row in rows]
    filled = [Row(row.ids, len(row), max(1, len(row) - 2)) for row in rows]
    for some in (pairs, filled, [*pairs, *filled]):
        same_shapes(beside, elsewhere(beside, tmp_path), some)


def test_the_paddings_id_inside_a_text_runs_there(tmp_path: Path) -> None:
    beside = on_cpu("xlm-roberta", tmp_path)
    rows = rows_of("xlm-roberta", tmp_path)
    rows[2].ids[3] = 1
    same_shapes(beside, elsewhere(beside, tmp_path), rows)


@pytest.mark.parametrize("family", ["jina_bert", "jina_bert_qk"])
def test_slopes_run_there(family: str, tmp_path: Path) -> None:
    spec = test_jina_bert.spec(test_jina_bert.make(tmp_path, 4, family == "jina_bert_qk"), family)
    beside = EncoderModel(Checkpoint(spec, tmp_path), precision_wanted="float32")
    rows = [row([4] * length) for length in (3, 40, 40, 1)]
    same_shapes(beside, elsewhere(beside, tmp_path), rows)


def test_a_tensor_left_on_the_host_is_noticed_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = elsewhere(on_cpu("bert", tmp_path), tmp_path)
    assert isinstance(model._encoder, PackedEncoder) and model._encoder.device == ELSEWHERE
    on_the_host = torch.zeros(2, 32, dtype=torch.bfloat16)
    monkeypatch.setattr(model._encoder, "_embedding", model._encoder._embedding._replace(types=on_the_host))
    with pytest.raises(RuntimeError, match="two devices"):
        model.forward(rows_of("bert", tmp_path), {"dense": [0]})
