"""The kinds of machine: what is asked for on them is there."""

from __future__ import annotations

import pytest

from sie_config.deployment import machine_profile

# vCPUs and GiB of memory, by the clouds' own lists of machine types.
MACHINES = {
    "e2-standard-8": (8, 32),
    "n1-standard-8": (8, 30),
    "g2-standard-8": (8, 32),
    "a2-highgpu-1g": (12, 85),
    "a2-ultragpu-1g": (12, 170),
    "a3-highgpu-1g": (26, 234),
    "a3-ultragpu-8g": (224, 2952),
    "m7i.2xlarge": (8, 32),
    "g4dn.2xlarge": (8, 32),
    "g5.2xlarge": (8, 32),
    "g6.2xlarge": (8, 32),
    "p4d.24xlarge": (96, 1152),
    "p4de.24xlarge": (96, 1152),
    "p5.4xlarge": (16, 256),
    "p5en.48xlarge": (192, 2048),
}


@pytest.mark.parametrize("profile", machine_profile.load(), ids=lambda profile: profile.name)
def test_a_pod_fits_on_its_machine_beside_what_the_node_keeps_and_runs(profile: machine_profile.MachineProfile) -> None:
    """A node keeps some of its CPUs and up to a quarter of a small memory, and runs a few pods of the cluster's own."""
    asked = {name: machine_profile.amount(quantity) for name, quantity in profile.requests.items()}
    for nodes in profile.nodes.values():
        cpus, memory = MACHINES[nodes.machine_type]
        assert asked["cpu"] <= cpus - 1
        assert asked["memory"] <= 0.85 * memory * 2**30
