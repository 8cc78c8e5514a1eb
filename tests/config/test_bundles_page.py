"""docs/bundles.md says what the data says: bundles, machine profiles, and where models go."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sie_config.deployment import machine_profile, placement
from sie_config.deployment.machine_profile import GIB, MachineProfile
from tests.ingress.conftest import SPEC

PAGE = (Path(__file__).parent.parent.parent / "docs" / "bundles.md").read_text()
CPU = placement.deployment("cpu")


def rows(heading: str) -> list[list[str]]:
    """The body of the table under these column names."""
    lines = PAGE[PAGE.index(heading) :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_table_of_bundles_is_that_of_the_files() -> None:
    told = [
        [f"`{each.id}`", str(each.priority), f"`{each.engine}`", ", ".join(each.tasks), each.status, each.blocked_by]
        for each in CPU.bundles
    ]
    assert rows("| bundle | priority |") == told


def row(profile: MachineProfile) -> list[str]:
    memory = f"{profile.memory_bytes / GIB:.1f} GiB" if profile.gpus else "the host's"
    room = f"{profile.model_bytes / GIB:.1f} GiB" if profile.gpus else "not counted"
    machines = (profile.nodes[cloud].machine_type if cloud in profile.nodes else "" for cloud in ("gke", "eks"))
    return [f"`{profile.name}`", profile.gpu, memory, room, profile.precision, *machines]


def test_the_table_of_machine_profiles_is_that_of_the_file() -> None:
    assert rows("| profile | GPU |") == [row(profile) for profile in CPU.machine_profiles]


@pytest.mark.parametrize("told", rows("| deployed | a model of"), ids=lambda told: told[0])
def test_models_go_where_the_table_says(told: list[str]) -> None:
    names = machine_profile.deployed(told[0].strip("`"), CPU.machine_profiles)
    there = msgspec.structs.replace(CPU, deployed=names)
    for parameters, cell in zip((33_000_000, 8_000_000_000, 30_000_000_000), told[1:], strict=True):
        spec = msgspec.structs.replace(SPEC, bundle="", parameters=parameters)
        found = placement.place(spec, there).machine_profiles
        assert (", ".join(f"`{name}`" for name in found) or "nowhere") == cell
