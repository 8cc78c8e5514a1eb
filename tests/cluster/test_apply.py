"""What ``kubectl`` says of the manifests: valid to a real server, the same the second time, no rights for anybody."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import kube, place
from tests.cluster.deployed import Deployed
from tests.cluster.place import NAMESPACE, ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.weights, pytest.mark.timeout(400)]
log = logging.getLogger("e2e")

EMPTY = f"{NAMESPACE}-empty"
OURS = "app.kubernetes.io/part-of=sie"
KINDS = (
    "services.serving.knative.dev,statefulsets,deployments.apps,services,configmaps,serviceaccounts,networkpolicies,"
    "poddisruptionbudgets"
)
PRUNED = ("--prune", "-l", OURS, "--prune-allowlist=core/v1/ConfigMap")


@pytest.fixture(scope="module")
def empty() -> Iterator[str]:
    """A namespace with nothing in it: what is there already would be changed, and some of it cannot be."""
    kube.kubectl("create", "namespace", EMPTY, namespace=None)
    yield EMPTY
    kube.kubectl("delete", "namespace", EMPTY, "--wait=false", namespace=None)


@pytest.mark.parametrize("cloud", ["local", "gke", "eks"])
def test_a_server_accepts_every_object_of_an_overlay(cloud: str, empty: str, tmp_path: Path) -> None:
    told = yaml.safe_load((ROOT / f"knative/overlays/{cloud}/values.yaml").read_text()) | {"namespace": empty}
    overlay = place.rendered(tmp_path / cloud, told)
    # Knative makes each pod as a trial, too, under its account.
    kube.kubectl("apply", "-f", str(ROOT / "knative/base/service-accounts.yaml"), namespace=empty)
    for words in (("-f", str(overlay / "rendered/kept.yaml")), ("-k", str(overlay))):
        lines = kube.kubectl("apply", "--dry-run=server", *words, namespace=None).splitlines()
        assert lines and all(line.endswith("(server dry run)") for line in lines)
        log.info("%s %s: %d objects accepted", cloud, words[0], len(lines))


def test_a_second_apply_changes_nothing(at_zero: Deployed) -> None:
    before = generations()
    assert len(before) > 15
    revisions = generations("revisions.serving.knative.dev")
    assert kube.kubectl("diff", "-k", str(at_zero.overlay)) == ""
    told = Counter(line.rpartition(" ")[2] for line in at_zero.apply().splitlines())
    assert told.keys() <= {"unchanged", "configured"}
    assert generations() == before
    assert generations("revisions.serving.knative.dev") == revisions
    # It says `configured` of what it sends again because the server filled in a default within a list.
    log.info("a second apply: %d objects as they were; kubectl says %s", len(before), dict(told))


def test_every_service_is_ready_while_no_bundle_has_a_pod(at_zero: Deployed) -> None:
    services = kube.objects("services.serving.knative.dev", OURS)
    assert {kube.name(each) for each in services} == {"sie-ingress", "sie-config", "default-cpu"}
    assert all(kube.ready(each) for each in services)
    assert not kube.pods()


def test_a_changed_setting_is_one_new_revision_and_its_old_settings_stay_until_they_are_swept(
    deployed: Deployed, tmp_path: Path
) -> None:
    before, revisions = settings_of_ingress(), generations("revisions.serving.knative.dev").keys()
    told = yaml.safe_load((deployed.overlay / "values.yaml").read_text())
    other = told | {"settings": told["settings"] | {"ingress": {"SIE_MAX_ITEMS": "4000"}}}
    kube.kubectl("apply", "-k", str(place.rendered(tmp_path / "changed", other)))
    kube.kubectl("wait", "ksvc/sie-ingress", "--for=condition=Ready", "--timeout=120s")
    (new,) = generations("revisions.serving.knative.dev").keys() - revisions
    assert new.startswith("Revision/sie-ingress-")
    assert len(settings_of_ingress() - before) == 1
    assert before <= settings_of_ingress()  # a traffic split back to the old revision finds what it ran with
    deployed.apply()
    kube.kubectl("wait", "ksvc/sie-ingress", "--for=condition=Ready", "--timeout=120s")
    swept = [
        line for line in kube.kubectl("apply", "-k", str(deployed.overlay), *PRUNED).splitlines() if "pruned" in line
    ]
    assert swept and all(line.startswith("configmap/sie-") for line in swept)
    assert len(settings_of_ingress()) == 1
    kube.until(deployed.accepts)


@pytest.mark.parametrize("account", ["sie-bundle", "sie-ingress", "sie-config", "sie-demand", "sie-nats"])
def test_an_account_may_do_no_more_than_anybody(account: str, deployed: Deployed) -> None:
    own, nobody = (rights(f"system:serviceaccount:{NAMESPACE}:{name}") for name in (account, "nobody-has-this-name"))
    assert own == nobody


def rights(who: str) -> set[str]:
    """What ``kubectl auth can-i`` lists for a user."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated")
    acting = [f"--as={who}", *(f"--as-group={group}" for group in groups)]
    return set(kube.kubectl("auth", "can-i", "--list", *acting).splitlines())


def generations(kinds: str = KINDS) -> dict[str, Any]:
    """Each object of ours, and which version of it there is."""
    listed = kube.objects(kinds, OURS)
    return {
        f"{each['kind']}/{kube.name(each)}": (each["metadata"]["uid"], each["metadata"].get("generation"))
        for each in listed
    }


def settings_of_ingress() -> set[str]:
    """The names of the ConfigMaps that hold its settings, or held them."""
    return {
        name
        for each in kube.objects("configmaps", OURS)
        if (name := kube.name(each)).startswith("sie-ingress-settings-")
    }
