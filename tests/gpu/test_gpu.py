"""The engine on a GPU against the same model on the CPU: every kernel, family and head. Skipped where there is none.

make test ARGS="-m gpu"
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import torch

from sie_bundle.engine import attention
from sie_bundle.engine.attention import Attend
from sie_bundle.engine.attention_mask import AttentionMask
from sie_bundle.engine.cpu_attention import attend
from sie_bundle.engine.packing import pack
from sie_bundle.engine.precision import precision
from sie_bundle.engine.row import Row, row
from sie_bundle.engine.transfer import computed, fetched
from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.models.model import EncoderModel
from tests.bundle.test_families import PACKED, numbers, rows_of, tasks_of
from tests.bundle.test_families import load as on_cpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

GPU, CPU = torch.device("cuda"), torch.device("cpu")
MASKS = {
    "full": AttentionMask(),
    "causal": AttentionMask(causal=True),
    "window": AttentionMask(window=4),
    "causal window": AttentionMask(causal=True, window=4),
}


def kernels() -> list[Attend]:
    there: list[Attend] = [attention.padded]
    if attention.kernel(GPU, torch.float16) is attention.varlen:
        there.append(attention.varlen)
    if find_spec("flash_attn"):
        there.append(attention.flash)
    return there


def some_rows(augmented: bool = False) -> list[Row]:
    random = np.random.default_rng(0)
    made = [row(random.integers(5, 60, size=length)) for length in (1, 7, 64, 64, 200, 3)]
    return [Row(each.ids, len(each), max(1, len(each) - 3)) for each in made] if augmented else made


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("heads", [(8, 8), (8, 2)])
def test_every_kernel_attends_as_the_cpus(mask: AttentionMask, heads: tuple[int, int]) -> None:
    random = torch.Generator().manual_seed(0)
    for augmented in (False, True):
        rows = some_rows(augmented)
        packed, tokens = pack(rows, CPU), sum(map(len, rows))
        q = torch.randn(tokens, heads[0], 64, generator=random)
        k, v = (torch.randn(tokens, heads[1], 64, generator=random) for _ in range(2))
        expected = attend(q, k, v, packed, mask)
        for kernel in kernels():
            on_gpu = [x.to(GPU, torch.float16) for x in (q, k, v)]
            found = kernel(on_gpu[0], on_gpu[1], on_gpu[2], pack(rows, GPU), mask).float().cpu()
            assert (found - expected).abs().max() < 5e-3


def test_a_bias_is_added_to_the_scores() -> None:
    rows = some_rows()
    tokens = sum(map(len, rows))
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(tokens, 4, 32, generator=random) for _ in range(3))
    bias = torch.randn(4, 200, 200, generator=random)
    expected = attend(q, k, v, pack(rows, CPU), AttentionMask(bias=bias))
    on_gpu = [x.to(GPU, torch.float16) for x in (q, k, v)]
    found = attention.kernel(GPU, torch.float16)(
        on_gpu[0], on_gpu[1], on_gpu[2], pack(rows, GPU), AttentionMask(bias=bias.to(GPU))
    )
    assert (found.float().cpu() - expected).abs().max() < 5e-3


@pytest.mark.parametrize("kind", PACKED)
def test_every_family_gives_what_it_gives_on_the_cpu(kind: str, tmp_path: Path) -> None:
    expected = on_cpu(kind, tmp_path)
    model = EncoderModel(Checkpoint(expected.spec, tmp_path), device="cuda")
    rows = rows_of(kind, tmp_path)
    wanted = {head: range(len(rows)) for head in expected.heads}
    ours, theirs = model.forward(rows, wanted), expected.forward(rows, wanted)
    assert tasks_of(kind).dense is not None
    for head in wanted:
        for i in range(len(rows)):
            assert near(head, numbers(ours[head], i, model), numbers(theirs[head], i, expected)), (head, i)


def near(head: str, found: np.ndarray, reference: np.ndarray) -> bool:
    """Whether numbers in bfloat16 are those in float32. Random weights are harsher than trained ones: rounding does not
    average out, and the scores of few of them are near zero."""
    if head in ("logits", "yes_no"):
        return bool(np.abs(found - reference).max() < 0.1 * max(1.0, np.abs(reference).max()))
    if head == "dense":  # of length 1, for which that is a cosine of 0.995
        return bool(np.linalg.norm(found - reference) < 0.1)
    lengths = np.linalg.norm(found) * np.linalg.norm(reference)
    if not lengths:  # of a text that has no entry; what was never written is zero, too
        return not found.any() and not reference.any()
    return bool(np.vdot(found, reference) > 0.99 * lengths)


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_a_model_computes_in_float32_where_its_spec_wants_that(kind: str, tmp_path: Path) -> None:
    expected = on_cpu(kind, tmp_path)
    model = EncoderModel(Checkpoint(expected.spec, tmp_path), "cuda", "float32")
    rows = rows_of(kind, tmp_path)
    ours, theirs = (each.forward(rows, {"dense": range(len(rows))})["dense"] for each in (model, expected))
    for found, reference in zip(ours, theirs, strict=True):
        assert isinstance(found, np.ndarray) and isinstance(reference, np.ndarray)
        assert float(found @ reference) > 0.9999


def test_a_gpu_computes_in_its_own_precision() -> None:
    assert precision(GPU) in (torch.bfloat16, torch.float16)


def test_what_is_computed_is_fetched_while_the_gpu_works_on_what_another_thread_asked_for() -> None:
    done, asked = torch.arange(1_000, device=GPU), Event()
    assert (fetched(done) == np.arange(1_000)).all()  # whatever is made at a first call is there
    busy = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def fetch() -> bool:
        with computed(GPU):
            asked.set()
            another.result(60)
            mine = done.cpu().numpy()
            return not busy.query() and bool((mine == np.arange(1_000)).all())  # type: ignore[no-untyped-call]

    def keep_busy() -> None:
        assert asked.wait(60)
        # About a second of the stream that all passes are asked of.
        torch.cuda._sleep(2_000_000_000)  # type: ignore[no-untyped-call]
        busy.record()

    with ThreadPoolExecutor(2) as threads:
        another = threads.submit(keep_busy)
        assert threads.submit(fetch).result(60), "it waited for the other one's work"
