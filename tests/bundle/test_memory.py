"""How much memory there is: the machine's, or what its control group leaves."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from sie_bundle.residency import memory
from sie_bundle.residency.memory import Memory

MIB = 1 << 20


def system(root: Path, group: str = "/") -> Path:
    """A file system with 1000 MiB of memory, of which 400 are in use."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: {1000 * 1024} kB\nMemFree: 5 kB\nMemAvailable: {600 * 1024} kB\n")
    (root / "proc/self/cgroup").write_text(f"4:memory:/v1\n0::{group}\n")
    return root


def limit(folder: Path, most: str, current: int, files: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {files // 2}\nactive_file {files - files // 2}\n")


def test_without_a_limit_the_machines_memory_counts(tmp_path: Path) -> None:
    assert memory.machine(system(tmp_path)) == Memory(400 * MIB, 1000 * MIB)


def test_a_container_has_what_its_group_leaves_without_the_pages_of_files(tmp_path: Path) -> None:
    limit(system(tmp_path) / "sys/fs/cgroup", str(200 * MIB), 150 * MIB, files=100 * MIB)
    assert memory.machine(tmp_path) == Memory(50 * MIB, 200 * MIB)


def test_of_several_groups_the_one_with_the_least_left_counts(tmp_path: Path) -> None:
    top = system(tmp_path, "/pods/mine") / "sys/fs/cgroup"
    limit(top / "pods/mine", "max", 10 * MIB)
    limit(top / "pods", str(300 * MIB), 250 * MIB)
    assert memory.machine(tmp_path) == Memory(250 * MIB, 300 * MIB)


def test_a_group_with_more_than_the_machine_has_changes_nothing(tmp_path: Path) -> None:
    limit(system(tmp_path) / "sys/fs/cgroup", str(5000 * MIB), 0)
    assert memory.machine(tmp_path) == Memory(400 * MIB, 1000 * MIB)


def test_a_system_that_says_nothing_is_never_short(tmp_path: Path) -> None:
    unknown = memory.machine(tmp_path)
    assert unknown.total == 0 and unknown.over(1) < 0


@pytest.mark.parametrize(("percent", "over"), [(50, 250), (75, 0), (90, -150)])
def test_over_is_counted_from_the_threshold(percent: float, over: int) -> None:
    assert Memory(750, 1000).over(percent) == over


def test_this_machines_memory_is_read_right() -> None:
    assert 0 < memory.machine().total <= psutil.virtual_memory().total
    memory.give_back("cpu")


def test_what_torch_keeps_unused_of_a_gpu_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (50 * MIB, 1000 * MIB))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda device: 800 * MIB)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda device: 300 * MIB)
    assert memory.of("cuda:0")() == Memory(450 * MIB, 1000 * MIB)
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda device: 2000 * MIB)  # as another thread has it by then
    assert memory.of("cuda:0")().used == 0


# In a process of its own, since it sets the C library. A thread fills and frees what a pass does, 20 times over.
PASSES = """
import resource, sys, threading
import numpy as np
from sie_bundle.residency.memory import keep_freed

def passes():
    for number in range(25):
        if number == 5:
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        states = [np.ones(750_000, np.float32) for _ in range(4)]
        del states
    print(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)

if sys.argv[1] == "kept":
    keep_freed()
thread = threading.Thread(target=passes)
thread.start()
thread.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_what_a_pass_frees_is_kept_for_the_next_one() -> None:
    kept, returned = (
        int(subprocess.run([sys.executable, "-c", PASSES, how], check=True, capture_output=True, text=True).stdout)
        for how in ("kept", "returned")
    )
    pages = 20 * 4 * 750_000 * 4 // 4096
    assert kept < pages / 20
    assert kept < returned


@pytest.mark.parametrize("stat", ["", "anon\n", "anon 5\nslab\n", "inactive_file\n", "inactive_file max\n"])
def test_a_group_that_tells_it_in_another_way_stops_nobody(tmp_path: Path, stat: str) -> None:
    group = system(tmp_path) / "sys/fs/cgroup"
    limit(group, str(200 * MIB), 150 * MIB)
    (group / "memory.stat").write_text(stat)
    found = memory.machine(tmp_path)
    assert found == (Memory(400 * MIB, 1000 * MIB) if "file" in stat else Memory(150 * MIB, 200 * MIB))
    (group / "memory.max").write_text("")
    assert memory.machine(tmp_path) == Memory(400 * MIB, 1000 * MIB)


@pytest.mark.parametrize("more", ["\n", "Odd: word\n", "alone\n"])
def test_a_line_that_nobody_reads_may_be_anything(tmp_path: Path, more: str) -> None:
    told = system(tmp_path) / "proc/meminfo"
    told.write_text(more + told.read_text() + more)
    assert memory.machine(tmp_path) == Memory(400 * MIB, 1000 * MIB)
