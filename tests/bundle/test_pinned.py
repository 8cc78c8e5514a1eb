"""Checkpoints in pinned memory: what they take there, what is counted, and when it is returned. Without a GPU."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.models.model import EncoderModel
from sie_bundle.residency import pinned
from sie_bundle.residency.host import Host
from sie_bundle.residency.loading import Loader, Opened
from sie_bundle.residency.memory import Memory
from sie_bundle.residency.pinned import LEAST, MOST, Pinned, pin, size_of_slab
from tests import tiny_model
from tests.bundle.residencies import ROOMY, Clock, specs
from tests.bundle.test_families import load
from tests.conftest import eventually

MIB = 1 << 20


@pytest.fixture(autouse=True)
def pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The sizes of the pieces of pinned memory, which takes a CUDA device; here it is any."""
    sizes = list[int]()

    def plain(size: int) -> Tensor:
        sizes.append(size)
        return torch.empty(size, dtype=torch.uint8)

    monkeypatch.setattr(pinned, "_pages", plain)
    yield sizes


def bert(words: int, hidden: int, layers: int) -> dict[str, Tensor]:
    """An encoder's tensors without their numbers, in the order in which a file has them."""
    layer = [(hidden, hidden), (hidden,)] * 4 + [(hidden,)] * 4
    layer += [(4 * hidden, hidden), (4 * hidden,), (hidden, 4 * hidden), (hidden,)]
    shapes = [(words, hidden), (512, hidden), (2, hidden), (hidden,), (hidden,), *layer * layers]
    return {str(number): torch.empty(shape, device="meta") for number, shape in enumerate(shapes)}


@pytest.mark.parametrize(("words", "hidden", "layers"), [(30_522, 384, 6), (30_522, 768, 12), (250_002, 1024, 24)])
def test_a_checkpoint_takes_little_more_pinned_than_its_tensors(
    monkeypatch: pytest.MonkeyPatch, words: int, hidden: int, layers: int
) -> None:
    monkeypatch.setattr(pinned, "_pages", lambda size: torch.empty(size, dtype=torch.uint8, device="meta"))
    tensors = bert(words, hidden, layers)
    stored = sum(tensor.nbytes for tensor in tensors.values())
    assert stored <= Pinned(tensors, stored).bytes < 1.08 * stored


def test_sums_that_are_wider_than_what_is_stored_take_little_more_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "_pages", lambda size: torch.empty(size, dtype=torch.uint8, device="meta"))
    tensors = bert(30_522, 768, 12)
    wide = sum(tensor.nbytes for tensor in tensors.values())
    assert Pinned(tensors, wide // 2).bytes < 1.2 * wide


@given(st.integers(0, 1 << 31), st.integers(-(1 << 31), 1 << 33))
def test_a_slab_is_a_power_of_two_that_holds_what_it_is_for(least: int, left: int) -> None:
    size = size_of_slab(least, left)
    assert size.bit_count() == 1 and max(least, LEAST) <= size <= max(2 * least, MOST)


def test_tensors_of_any_type_and_shape_are_copied_each_to_a_place_of_its_own(pages: list[int]) -> None:
    kinds = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool)
    shapes = ((), (0,), (3, 0), (1,), (7, 5), (1000, 100))
    given = {
        f"{kind} {shape}": (torch.rand(shape) * 9).to(kind) if math.prod(shape) else torch.empty(shape, dtype=kind)
        for kind in kinds
        for shape in shapes
    }
    given["turned"] = torch.rand(40, 30).T
    copies = Pinned(given, sum(tensor.nbytes for tensor in given.values()))
    for name, tensor in given.items():
        copy = copies[name]
        assert copy.dtype is tensor.dtype and torch.equal(copy, tensor) and copy.is_contiguous(), name
        assert copy.data_ptr() != tensor.data_ptr() or not tensor.numel()
    assert copies.bytes == sum(pages) and len(pages) < 8


def test_a_pinned_checkpoint_holds_on_to_no_file_and_is_pinned_once(tmp_path: Path, pages: list[int]) -> None:
    checkpoint = Checkpoint(tiny_model.spec(tiny_model.make(tmp_path)), tmp_path)
    files, names = weakref.ref(checkpoint.tensors), [*checkpoint.tensors]
    gc.disable()
    try:
        size = pin(checkpoint)
        assert files() is None
    finally:
        gc.enable()
    checkpoint.let_go(names[0])
    assert [*checkpoint.tensors] == names
    assert pin(checkpoint) == size == sum(pages)


class Kept:
    """The host's memory beside a device whose checkpoints are copied."""

    def __init__(self, folder: Path, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.used = ROOMY
        self.returned = list[int]()
        self.loader = Loader(None, folder / "cache", "cpu", "float32")
        self.loader.pins = True
        self.host = host = Host(self.loader, limit, 90.0, (), lambda: self.used, Clock())
        monkeypatch.setattr(self.loader, "unpin", lambda: self.returned.append(host.kept.bytes))

    async def keep(self, opened: Opened) -> None:
        self.host.keep(opened, await self.loader.make(opened, behind=False))
        await eventually(lambda: not self.host.busy)


async def test_what_a_checkpoint_takes_with_what_is_left_over_is_counted(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(tmp_path, 2 * MIB, monkeypatch)
    opened = [await kept.loader.open(spec) for spec in specs(tiny_folder, 3)]
    assert all(each.bytes < MIB / 2 for each in opened)
    for each in opened:
        await kept.keep(each)
        assert kept.host.kept.bytes <= 2 * MIB
    assert len(kept.host.kept.names()) == 2 and kept.host.kept.bytes == 2 * MIB
    kept.loader.close()


async def test_one_that_turns_out_to_take_more_than_the_limit_is_not_kept(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(tmp_path, MIB - 1, monkeypatch)
    await kept.keep(await kept.loader.open(specs(tiny_folder, 1)[0]))
    assert kept.host.kept.names() == () and kept.host.kept.bytes == 0
    kept.host.ease()
    assert kept.returned == [0]
    kept.loader.close()


async def test_what_was_let_go_is_returned_once_when_nobody_loads_from_it_any_more(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(tmp_path, 10 * MIB, monkeypatch)
    for spec in specs(tiny_folder, 2):
        await kept.keep(await kept.loader.open(spec))
    kept.host.ease()
    assert kept.returned == []
    first, second = kept.host.kept.names()
    in_use = kept.host.kept.find(first)
    kept.host.kept.let_go(first)
    kept.host.ease()
    assert kept.returned == []
    del in_use
    for _ in range(2):
        kept.host.ease()
    assert kept.returned == [MIB]
    kept.used = Memory(99, 100)
    kept.host.ease()
    assert kept.host.kept.names() == () and kept.returned == [MIB, 0], second
    kept.loader.close()


async def test_what_was_copied_of_a_checkpoint_before_memory_ran_out_is_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinned, "LEAST", 1 << 10)
    monkeypatch.setattr(pinned, "MOST", 1 << 14)
    copied = list[int]()

    def pages(size: int) -> Tensor:
        if copied:
            raise RuntimeError("CUDA error: out of memory")
        copied.append(size)
        return torch.empty(size, dtype=torch.uint8)

    monkeypatch.setattr(pinned, "_pages", pages)
    kept = Kept(tmp_path, 10 * MIB, monkeypatch)
    await kept.keep(await kept.loader.open(specs(tiny_model.make(tmp_path / "tiny"), 1)[0]))
    assert copied and kept.host.kept.names() == ()
    for _ in range(2):
        kept.host.ease()
    assert kept.returned == [0]
    kept.loader.close()


async def test_a_model_makes_way_while_its_checkpoint_is_copied(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def pages(size: int) -> Tensor:
        begun.set()
        assert go_on.wait(60)
        return torch.empty(size, dtype=torch.uint8)

    monkeypatch.setattr(pinned, "_pages", pages)
    kept = Kept(tmp_path, 10 * MIB, monkeypatch)
    opened = await kept.loader.open(specs(tiny_folder, 1)[0])
    model = await kept.loader.make(opened, behind=False)
    kept.host.keep(opened, model)
    await asyncio.to_thread(begun.wait, 60)
    in_use = weakref.ref(model)
    del model
    assert in_use() is None
    go_on.set()
    await eventually(lambda: not kept.host.busy)
    assert len(kept.host.kept.names()) == 1
    kept.loader.close()


@pytest.mark.parametrize(("kind", "copied"), [("bert", 1), ("deberta-v2", 0)])
async def test_what_transformers_reads_from_its_folder_all_the_same_is_not_copied(
    kind: str, copied: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = load(kind, tmp_path / "model").spec
    kept = Kept(tmp_path, 10 * MIB, monkeypatch)
    await kept.keep(await kept.loader.open(spec))
    assert len(kept.host.kept.names()) == copied
    kept.loader.close()


class Moves(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What is moved to another device: its type there, and whether the host waits for it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.to = list[tuple[torch.dtype, bool]]()

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        done = operation(*args, **(kwargs or {}))
        if operation.overloadpacket is torch.ops.aten.to and args[0].device != done.device:
            told = [*args, *(kwargs or {}).values()]
            self.to.append((done.dtype, any(each is True for each in told)))
        return done


def test_pinned_tensors_go_to_the_device_as_they_are_stored_and_nobody_waits(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sie_bundle.models.parameters.PIECE", 100)

    def moved(is_pinned: Callable[[Tensor], bool]) -> set[tuple[torch.dtype, bool]]:
        monkeypatch.setattr(Tensor, "is_pinned", is_pinned)
        with Moves() as moves:
            model = EncoderModel(Checkpoint(tiny_model.spec(tiny_folder), tiny_folder), "meta", "bfloat16")
        assert model.bytes == 2 * sum(tensor.numel() for tensor in model_tensors(tiny_folder))
        return set(moves.to)

    assert moved(lambda tensor: False) == {(torch.bfloat16, False)}
    assert moved(lambda tensor: tensor.device.type == "cpu") == {(torch.float32, True)}


def model_tensors(folder: Path) -> list[Tensor]:
    """Those that the model takes."""
    return [*Checkpoint(tiny_model.spec(folder), folder).tensors.values()]
