"""The catalogue under faults: writers that race, sleep and die, a broker that dies, readers that are cut off. Every
write that was acknowledged stands once; what was refused stands nowhere; readers come to the same."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.conftest import Deploy
from tests.faults.deployment import Deployment
from tests.faults.wire import Wire
from tests.platform import wait_until

pytestmark = pytest.mark.e2e

TOKEN = "secret"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def catalogue(deploy: Deploy) -> Deployment:
    return deploy(SIE_ADMIN_TOKEN=TOKEN)


def spec(model: str, revision: str = "1") -> dict[str, Any]:
    return {
        "id": model,
        "family": "bert",
        "revision": revision,
        "tasks": {"dense": {"dim": 2}},
        "sources": [{"kind": "local", "path": "nowhere"}],
        "max_sequence_length": 16,
    }


def put(url: str, model: str, revision: str = "1", key: str = "", timeout: float = 60) -> httpx.Response:
    headers = HEADERS | ({"Idempotency-Key": key} if key else {})
    return httpx.put(f"{url}/v1/configs/models/{model}", json=spec(model, revision), headers=headers, timeout=timeout)


def epoch(url: str) -> dict[str, Any]:
    answer: dict[str, Any] = httpx.get(f"{url}/v1/configs/epoch", timeout=30).json()
    return answer


def models(url: str) -> dict[str, str]:
    """The revision of each model of ours."""
    rows = httpx.get(f"{url}/v1/configs/models", timeout=30).json()["models"]
    return {row["model_id"]: row["revision"] for row in rows if row["model_id"].startswith("acme/")}


def writes(url: str) -> list[dict[str, Any]]:
    """Every write there was, the oldest first."""
    events: list[dict[str, Any]] = []
    before: int | None = None
    while True:
        query = {"limit": "500"} | ({} if before is None else {"before": str(before)})
        page = httpx.get(f"{url}/v1/configs/history", params=query, timeout=30).json()
        events += page["events"]
        if (before := page["next_before"]) is None:
            return events[::-1]


def agree(*urls: str) -> bool:
    """Whether these servers have the same catalogue."""
    with contextlib.suppress(httpx.TransportError):
        told = [epoch(url) for url in urls]
        return len({(each["epoch"], each["hash"]) for each in told}) == 1
    return False


class Author(threading.Thread):
    """Writes model after model, each with a key, until it is told to stop; a write that fails is sent again.

    ``acknowledged``: what it was told stands there, by model.
    """

    def __init__(self, url: str, name: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._who = name
        self._ending = threading.Event()
        self.acknowledged: dict[str, str] = {}
        self.start()

    def run(self) -> None:
        number = 0
        while not self._ending.is_set():
            number += 1
            model, revision = f"acme/{self._who}-{number % 7}", str(number)
            while not self._ending.is_set():
                with contextlib.suppress(httpx.TransportError):
                    answer = put(self._url, model, revision, key=f"{self._who}-{number}")
                    if answer.is_success:
                        self.acknowledged[model] = revision
                        break
                    assert answer.status_code == 503, answer.text
                time.sleep(0.05)

    def end(self) -> dict[str, str]:
        self._ending.set()
        self.join(90)
        assert not self.is_alive()
        return self.acknowledged


def assert_once(url: str, authors: list[Author]) -> None:
    """Every acknowledged write stands, in an unbroken history in which none is there twice."""
    told: dict[str, str] = {}
    for author in authors:
        told |= author.end()
    stands = models(url)
    # The last write of an author may have been done without its author having heard of it.
    for model, revision in told.items():
        assert int(stands[model]) >= int(revision)
    history = writes(url)
    assert [each["epoch"] for each in history] == list(range(1, len(history) + 1))
    made = [(each["models"][0], each["changes"][0]["etag_after"]) for each in history if each["kind"] == "put"]
    assert len(made) == len(set(made)), "a write was done twice"


def test_a_writer_that_slept_past_its_lease_changes_nothing_when_it_wakes(catalogue: Deployment) -> None:
    catalogue.up("config-2")
    first, second, ingress = (catalogue.url(name) for name in ("config", "config-2", "ingress"))
    assert put(first, "acme/before").is_success
    catalogue.send("config", signal.SIGSTOP)
    late: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: late.append(put(first, "acme/zombie")))
    asking.start()  # it lies in the sleeper's socket, and is the first thing that it does when it wakes
    wait_until(lambda: put(second, "acme/after").is_success)
    there = epoch(second)
    catalogue.send("config", signal.SIGCONT)
    asking.join(60)
    assert late[0].status_code == 503, late[0].text
    assert epoch(second) | {"writer": None} == there | {"writer": None}
    wait_until(lambda: agree(first, second, ingress))
    assert models(ingress).keys() == {"acme/before", "acme/after"}


def test_a_writer_that_is_killed_again_and_again_loses_and_doubles_nothing(catalogue: Deployment) -> None:
    catalogue.up()
    url, ingress = catalogue.url("config"), catalogue.url("ingress")
    authors = [Author(url, name) for name in ("a", "b", "c")]
    for _ in range(5):
        before = epoch(ingress)["epoch"]
        wait_until(lambda before=before: epoch(ingress)["epoch"] > before + 10)  # type: ignore[misc]
        catalogue.kill("config")
        catalogue.start("config", SIE_REPLICA="one")
    assert_once(url, authors)
    wait_until(lambda: agree(url, ingress))


def test_a_broker_that_is_killed_under_writes_loses_and_doubles_nothing(catalogue: Deployment) -> None:
    catalogue.up()
    url, ingress = catalogue.url("config"), catalogue.url("ingress")
    authors = [Author(url, name) for name in ("a", "b")]
    for _ in range(3):
        before = epoch(ingress)["epoch"]
        wait_until(lambda before=before: epoch(ingress)["epoch"] > before + 10)  # type: ignore[misc]
        catalogue.kill("nats-1")
        catalogue.start("nats-1")
    before = epoch(ingress)["epoch"]
    wait_until(lambda: epoch(ingress)["epoch"] > before + 10)
    assert_once(url, authors)
    wait_until(lambda: agree(url, ingress))


def test_a_restart_of_everything_forgets_nothing(catalogue: Deployment) -> None:
    catalogue.up()
    url = catalogue.url("config")
    for number in range(5):
        assert put(url, f"acme/{number}").is_success
    assert httpx.delete(f"{url}/v1/configs/models/acme/3", headers=HEADERS).is_success
    before, history = epoch(url), writes(url)
    for name in ("ingress", "config"):
        catalogue.stop(name)
    catalogue.kill("nats-1")
    catalogue.up()
    wait_until(lambda: agree(url, catalogue.url("ingress")))
    after = epoch(url)
    assert (after["epoch"], after["hash"]) == (before["epoch"], before["hash"])
    assert writes(url) == history
    assert put(url, "acme/more").json()["epoch"] == before["epoch"] + 1


def test_a_reader_that_was_cut_off_catches_up(catalogue: Deployment) -> None:
    for name in ("nats-1", "config"):
        catalogue.start(name)
    url = catalogue.url("config")
    with Wire(catalogue._ports["nats-1"]) as wire:
        catalogue.start("ingress", SIE_NATS_URL=f"nats://127.0.0.1:{wire.port}")
        ingress = catalogue.url("ingress")
        wait_until(lambda: agree(url, ingress))
        # A few writes are read one by one; of many, all is read anew.
        for count in (5, 150):
            before = epoch(ingress)
            wire.cut()
            for number in range(count):
                assert put(url, f"acme/{number % 9}", f"{count}-{number}").is_success
            assert epoch(ingress) == before, "it still serves what it had"
            wire.mend()
            wait_until(lambda: agree(url, ingress))
        assert models(ingress) == models(url)


def test_a_malformed_spec_reaches_no_reader(catalogue: Deployment, tmp_path: Path) -> None:
    catalogue.up()
    url, ingress = catalogue.url("config"), catalogue.url("ingress")
    before = epoch(url)
    for broken in (
        b"id: [",
        b"{}",
        b'{"id": "acme/x", "family": 3}',
        b"\xff\xfe",
        b"id: acme/x\nfamily: bert\ncolour: red",
    ):
        answer = httpx.put(
            f"{url}/v1/configs/models/acme/x", content=broken, headers=HEADERS | {"Content-Type": "application/yaml"}
        )
        assert 400 <= answer.status_code < 500, answer.text
    assert epoch(url) == before
    assert models(ingress) == {}
