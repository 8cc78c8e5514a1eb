"""A write to the catalogue of a cluster: it wakes the config service, reaches who runs and who starts later."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import pytest
import yaml

from sie_sdk.types import EncodeResult
from tests.cluster import catalogue, kube
from tests.cluster.deployed import Deployed
from tests.platform import MODEL

pytestmark = [pytest.mark.cluster, pytest.mark.weights, pytest.mark.timeout(400)]
log = logging.getLogger("e2e")

CONFIG_PODS = "app.kubernetes.io/name=sie-config"
POSTED, APPLIED = "acme/posted", "acme/applied"


def test_a_write_wakes_the_config_service_and_reaches_pods_that_run_and_the_next_cold_one(at_zero: Deployed) -> None:
    kube.until(lambda: not kube.pods(CONFIG_PODS), 150)
    with catalogue.without_afterwards(at_zero, POSTED), at_zero.client() as client:
        warm = client.encode(MODEL, "passage: a cat", wait_for_capacity=True)
        (pod,) = kube.pods()
        began = time.monotonic()
        written = catalogue.write(at_zero, POSTED)
        assert written.is_success, written.text
        answered = time.monotonic() - began
        kube.until(lambda: catalogue.everywhere(at_zero, POSTED))
        log.info(
            "a write from zero: %.1f s until it was answered, %.1f s until all had it",
            answered,
            time.monotonic() - began,
        )
        assert close(warm, client.encode(POSTED, "a cat", wait_for_capacity=True))
        assert [kube.name(each) for each in kube.pods()] == [kube.name(pod)]
        at_zero.to_zero()
        kube.until(lambda: not kube.pods(CONFIG_PODS), 150)
        assert close(warm, client.encode(POSTED, "a cat", wait_for_capacity=True))
        assert not kube.pods(CONFIG_PODS)


def test_the_command_line_applies_a_folder_by_the_clusters_names_and_tells_the_history(
    deployed: Deployed, tmp_path: Path
) -> None:
    (tmp_path / "applied.yaml").write_text(yaml.safe_dump(catalogue.spec(APPLIED)))
    with catalogue.without_afterwards(deployed, APPLIED):
        applied = deployed.sie("config", "apply", str(tmp_path), "--owner", "e2e", "--yes", "--wait", "60")
        assert APPLIED in applied
        newest = json.loads(deployed.sie("config", "history", "--json").splitlines()[0])
        log.info("history: epoch %s, %s by %s: %s", *(newest[name] for name in ("epoch", "kind", "actor", "models")))
        assert newest["epoch"] == catalogue.epoch(deployed)
        assert APPLIED in json.dumps(newest)
        assert APPLIED in deployed.sie("config", "status", APPLIED)
        deployed.sie("config", "rollback", str(newest["epoch"] - 1), "--yes", "--note", "as it was")
        kube.until(lambda: catalogue.epoch(deployed) == newest["epoch"] + 1)
        with deployed.client() as client:
            assert APPLIED not in {model.name for model in client.list_models()}


def close(one: EncodeResult, other: EncodeResult) -> bool:
    """Whether both are the same vector, but for what batches differ by."""
    assert one.dense is not None and other.dense is not None
    return float(one.dense @ other.dense) > 0.9999
