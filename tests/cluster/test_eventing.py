"""Brokers, Triggers and sources of Knative Eventing ask for work and get each result once; docs/eventing.md, run."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.cluster import kube, page, place
from tests.cluster.deployed import INGRESS, SERVICE, Deployed
from tests.cluster.place import NAMESPACE
from tests.cluster.shop import BROKER, SHOP, Shop
from tests.platform import MODEL

pytestmark = [pytest.mark.cluster, pytest.mark.weights, pytest.mark.timeout(400)]

log = logging.getLogger("e2e")
PAGE = "docs/eventing.md"
WAYS = {"ingress": 20, "held": 10, "bundle": 3}
"""Events of each way. Of those that are held at a bundle, two are a pod."""


@pytest.fixture(scope="module")
def shop(deployment: Deployed) -> Iterator[Shop]:
    if not place.on_kit():
        pytest.skip("a Broker's address resolves in the cluster alone")
    opened = Shop()
    opened.up()
    try:
        yield opened
    finally:
        opened.remove()


def test_every_recipe_of_the_page_does_what_it_says(deployed: Deployed, shop: Shop, tmp_path: Path) -> None:
    environment = {"KUBECONFIG": str(page.own_context(tmp_path))}
    refused = _refused()
    ids = {f"order-{number}": f"order-{number}-{uuid.uuid4()}" for number in range(1, 5)}
    # What an event sets off is looked at before the next recipe.
    effects: dict[str, Callable[[], bool]] = {
        "create answered": lambda: _subscribers() == 2,
        "create direct": lambda: _subscribers() == 4,
        ids["order-1"]: lambda: ids["order-1"] in shop.results(),
        "ping create": lambda: len([cause for cause in shop.results() if not cause.startswith("order-")]) > 1,
        ids["order-4"]: lambda: any(event.attributes["id"] == ids["order-4"] for event in shop.received("/dead")),
    }
    for recipe in page.recipes(PAGE, {"sie": NAMESPACE, "shop": SHOP} | ids):
        page.run(recipe, PAGE, tmp_path, environment)
        for word in [word for word in effects if word in recipe.command]:
            kube.until(effects.pop(word), 120)
    assert not effects
    (dead,) = shop.received("/dead")
    assert dead.attributes["knativeerrorcode"] == "400"
    assert _refused() == refused + 1, "it is not tried again"


def test_each_event_of_a_broker_is_answered_once_whichever_way_it_goes(at_zero: Deployed, shop: Shop) -> None:
    created = [_create_broker(), *map(_create_trigger, ("ingress", "held", "bundle", "result"))]
    kube.until(lambda: _subscribers() == 4)
    texts = {f"{way}-{uuid.uuid4()}": f"{number} {way}" for way, count in WAYS.items() for number in range(count)}
    with httpx.Client(timeout=60) as http, ThreadPoolExecutor(8) as sending:
        statuses = sending.map(lambda each: _send(http, *each), texts.items())
        assert set(statuses) == {202}
    kube.until(lambda: shop.results().keys() >= texts.keys(), 150)
    with at_zero.client() as client:
        wanted = [vector.dense for vector in client.encode(MODEL, list(texts.values()), wait_for_capacity=True)]
    results = shop.results()
    for cause, own in zip(texts, wanted, strict=True):
        found = np.array([event.vector for event in results[cause]])
        assert own is not None and (found @ own > 0.999).all(), cause
        assert len({(event.attributes["source"], event.attributes["id"]) for event in results[cause]}) == 1, cause
    again = sum(len(results[cause]) - 1 for cause in texts)
    log.info("%d events by a Broker: %s; each answered, %d twice", len(texts), WAYS, again)
    assert again == 0
    for kind, name in reversed(created):
        kube.kubectl("delete", kind, name, namespace=SHOP)


def test_a_clock_reaches_a_bundle_by_its_own_address(deployed: Deployed, shop: Shop) -> None:
    data = json.dumps({"items": [{"text": "tick"}]})
    overrides = ("--ce-override", "operation=encode", "--ce-override", f"model={MODEL}")
    words = ("--schedule", "*/5 * * * * *", "--data", data, *overrides, "--sink", f"ksvc:{SERVICE}:{NAMESPACE}")
    before = _computed(deployed)
    kube.kn("source", "ping", "create", "tick", *words, namespace=SHOP)
    try:
        kube.until(lambda: any(count > before.get(name, 0) for name, count in _computed(deployed).items()), 150)
    finally:
        kube.kn("source", "ping", "delete", "tick", namespace=SHOP)


def _computed(deployed: Deployed) -> dict[str, int]:
    return {worker["name"]: worker["texts_computed"] for worker in deployed.workers()}


def _send(http: httpx.Client, cause: str, text: str) -> int:
    attributes = {"specversion": "1.0", "id": cause, "source": "/shop", "type": "dev.sie.encode.v1", "model": MODEL}
    headers = {f"ce-{name}": value for name, value in (attributes | {"via": cause.partition("-")[0]}).items()}
    return http.post(BROKER, json={"items": [{"text": text}]}, headers=headers).status_code


def _create_broker() -> tuple[str, str]:
    delivery = ("--retry", "5", "--backoff-policy", "exponential", "--backoff-delay", "PT0.5S")
    kube.kn("broker", "create", "default", *delivery, namespace=SHOP)
    kube.kubectl("wait", "broker/default", "--for=condition=Ready", "--timeout=100s", namespace=SHOP)
    return "broker", "default"


def _create_trigger(way: str) -> tuple[str, str]:
    sink = {
        "ingress": f"{INGRESS}/?replyto={BROKER}",
        "held": f"ksvc:sie-ingress:{NAMESPACE}",
        "bundle": f"ksvc:{SERVICE}:{NAMESPACE}",
        "result": "ksvc:results",
    }[way]
    wanted = "type=dev.sie.result.v1" if way == "result" else f"type=dev.sie.encode.v1,via={way}"
    kube.kn("trigger", "create", way, "--filter", wanted, "--sink", sink, namespace=SHOP)
    kube.kubectl("wait", f"trigger/{way}", "--for=condition=Ready", "--timeout=100s", namespace=SHOP)
    return "trigger", way


def _subscribers() -> int:
    """How many are told of what comes to the Broker: a Trigger may be Ready a moment before it is, and miss events."""
    channels = kube.objects("inmemorychannels", namespace=SHOP)
    subscribers = [each for channel in channels for each in channel["status"].get("subscribers", [])]
    return sum(each["ready"] == "True" for each in subscribers)


def _refused() -> int:
    """How often the ingress has refused an event for its model."""
    told = httpx.get(f"{INGRESS}/metrics", timeout=10).text.splitlines()
    counted = [line for line in told if line.startswith("sie_ingress_requests_total{")]
    counts = [line for line in counted if 'operation="events"' in line and 'code="MODEL_NOT_FOUND"' in line]
    return sum(int(float(line.rpartition(" ")[2])) for line in counts)
