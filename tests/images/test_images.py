"""The images, built and run for real: small enough, nobody's root, nothing writable, and they answer.

Skipped where images cannot be built. The cluster kit, where it is, brings the base image and the builder.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from sie_bundle.engine.native import variant
from sie_bundle.settings import Settings
from sie_bundle.weights import weights
from sie_config import catalog
from sie_local.ports import free_port
from sie_sdk import settings
from tests.golden import golden
from tests.images import containers
from tests.images.containers import Container
from tests.platform import MODEL, wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(containers.absent()), reason=containers.absent()),
]
USER = 65532
MB = 10**6
TAG = "test"
SMALL = ("sie-ingress", "sie-config", "sie-demand")
LIMIT = {"sie-ingress": 150 * MB, "sie-config": 150 * MB, "sie-demand": 150 * MB, "sie-bundle": 900 * MB}

Run = Callable[..., Container]


@pytest.fixture(scope="session")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The table that the build prints."""
    containers.base_image(tmp_path_factory.mktemp("base"))
    # torch comes from a folder of wheels where there is one: from an index it could take longer than all other tests.
    bundle = ("sie-bundle",) if _wheels() else ()
    return containers.build(TAG, *SMALL, *bundle)


@pytest.fixture
def run(sizes: str, nats_url: str, tmp_path: Path) -> Iterator[Run]:
    """Starts an image's process; all are ended after the test."""
    cache = tmp_path / "cache"
    cache.mkdir()
    shutil.chown(cache, USER, USER)
    with contextlib.ExitStack() as stack:

        def start(image: str, *command: str, **env: str) -> Container:
            root, config = stack.enter_context(containers.mounted(f"dev.local/{image}:{TAG}"))
            env = {"SIE_NATS_URL": nats_url.replace("127.0.0.1", "localhost"), "PORT": str(free_port())} | env
            container = Container(root, config, env, cache, tmp_path / f"{image}.log", command)
            stack.callback(container.kill)
            return container

        yield start


def test_each_image_is_small_and_the_small_ones_share_their_layers(sizes: str) -> None:
    totals = dict.fromkeys(LIMIT, 0.0)
    for total, name in re.findall(rf"([\d.]+) MB  dev\.local/([\w-]+):{TAG}", sizes):
        totals[name] = float(total) * MB
    built = {name: total for name, total in totals.items() if total}
    assert set(SMALL) <= set(built)
    for name, total in built.items():
        assert total < LIMIT[name], sizes
    assert len({built[name] for name in SMALL}) == 1


@pytest.mark.parametrize("image", SMALL)
def test_nobody_in_it_is_root_nothing_is_writable_and_it_has_no_tools(image: str, run: Run) -> None:
    container = run(image)
    wait_until(lambda: f"Uid:\t{USER}\t{USER}" in Path(f"/proc/{container.process_id}/status").read_text())
    mounts = Path(f"/proc/{container.process_id}/mountinfo").read_text().splitlines()
    options = {line.split()[4]: line.split()[5].split(",") for line in mounts}
    root = next(options[path] for path in options if path == "/")
    assert "ro" in root
    within = Path(f"/proc/{container.process_id}/root")
    for tool in ("sh", "bash", "gcc", "cc", "apt-get", "pip", "pip3", "ldd"):
        assert not (within / "usr/bin" / tool).exists()
        assert not (within / "usr/local/bin" / tool).exists()
    assert not list(within.glob("opt/sie/**/tests"))


def test_config_and_ingress_become_ready_on_their_port_and_leave_when_they_are_told(run: Run) -> None:
    config, ingress = run("sie-config"), run("sie-ingress")
    for container in (config, ingress):
        container.ready()
    answer = ingress.get("/v1/models")
    assert answer is not None and MODEL in answer.text
    for container in (ingress, config):
        assert container.stop() == 0, container.log.read_text()
        assert "Traceback" not in container.log.read_text()


def test_a_process_that_still_imports_leaves_when_it_is_told(run: Run) -> None:
    # As an import does, it comes back to its bytecode all the time: a signal in the moment before one long sleep is
    # heard by Python only after it.
    busy = "print('importing')\nimport time\nwhile True: time.sleep(0.01)"
    importing = run("sie-config", "python", "-c", busy)
    wait_until(lambda: "importing" in importing.log.read_text())
    assert importing.stop() == 128 + signal.SIGTERM


def test_the_demand_holder_leads_and_leaves_when_it_is_told(run: Run) -> None:
    config, demand = run("sie-config"), run("sie-demand")
    config.ready()
    wait_until(lambda: "holding demand" in demand.log.read_text())
    assert demand.stop() == 0, demand.log.read_text()


def test_a_bundle_answers_from_the_cache_it_is_given_with_the_models_vector(run: Run, tmp_path: Path) -> None:
    if not _wheels():
        pytest.skip("no folder of wheels (PIP_FIND_LINKS) holds torch: its image is not built here")
    _weights_into(tmp_path / "cache")
    config, ingress = run("sie-config"), run("sie-ingress")
    config.ready()
    ingress.ready()
    name, text = next(iter(golden.texts().items()))
    answers: list[httpx.Response] = []
    url = f"http://127.0.0.1:{ingress.port}/v1/encode/{MODEL}"
    asking = threading.Thread(
        target=lambda: answers.append(
            httpx.post(url, json={"items": [{"text": text}]}, headers={"Prefer": "wait=100"}, timeout=120)
        )
    )
    asking.start()
    bundle = run("sie-bundle")
    asking.join()
    told = f"{time.monotonic() - bundle.began:.2f} s from the bundle's start to its first vector"
    assert answers and answers[0].status_code == 200, (told, bundle.log.read_text())
    vector = np.array(answers[0].json()["items"][0]["dense"]["values"])
    known = golden.arrays("minilm")
    expected = known["vectors"][list(known["names"]).index(name)]
    assert vector @ expected / np.linalg.norm(vector) / np.linalg.norm(expected) > 0.9999
    assert f"Uid:\t{USER}" in Path(f"/proc/{bundle.process_id}/status").read_text()
    if variant(torch.float32) is not None:
        assert "compiled code: /opt/sie/sie_bundle/engine/kernels/pass-" in bundle.log.read_text()
    assert bundle.stop() == 0, bundle.log.read_text()


def _wheels() -> bool:
    folder = os.environ.get("PIP_FIND_LINKS", "")
    return bool(folder) and any(Path(folder).glob("torch-*.whl"))


def _weights_into(cache: Path) -> None:
    """The weights as a cache volume of the cluster holds them: its user's."""
    setting = settings.read(Settings)
    weights.resolve(catalog.load()[MODEL], None, Path(setting.cache_dir))
    target = cache / "weights"
    shutil.copytree(Path(setting.cache_dir) / "weights", target)
    for path in (target, *target.rglob("*")):
        shutil.chown(path, USER, USER)
