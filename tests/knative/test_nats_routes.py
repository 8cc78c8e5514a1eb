"""NATS servers find each other as rendered, and let no other server in."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import nats
import pytest
import yaml
from nats.aio.client import Client
from nats.aio.msg import Msg

from sie_config.deployment import component, values
from sie_config.deployment.values import Nats, Values
from sie_local.ports import free_port
from sie_local.programs import nats_server
from tests.conftest import eventually
from tests.knative.guarded import PASSWORDS

GKE = Path(__file__).parents[2] / "knative/overlays/gke"
SERVERS = 3
STRANGER = """server_name: stranger
listen: "127.0.0.1:{port}"
accounts {{ SIE {{ users: [{{ user: me, password: mine }}] }} }}
cluster {{ name: sie, no_advertise: true, listen: "127.0.0.1:{own}", routes: ["nats://127.0.0.1:{route}"] }}
"""
Start = Callable[[str, str, dict[str, str]], Callable[[], str]]


def given(told: Values) -> dict[str, str]:
    """What each server's environment is given besides the base's."""
    *_, patch = yaml.safe_load(component.files(told)["kustomization.yaml"])["patches"]
    added = [step["value"] for step in yaml.safe_load(patch["patch"]) if step["path"].endswith("/env/-")]
    return {each["name"]: each.get("value", "") for each in added}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a server of this name, with this configuration and environment; gives what it says."""
    processes = []

    def start(name: str, conf: str, env: dict[str, str]) -> Callable[[], str]:
        (tmp_path / f"{name}.conf").write_text(conf)
        with (tmp_path / name).open("w") as log:
            command = [nats_server(), "-c", str(tmp_path / f"{name}.conf")]
            processes.append(subprocess.Popen(command, env=os.environ | env, stdout=log, stderr=log))
        return (tmp_path / name).read_text

    yield start
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait(60)


async def hears(client: Client) -> list[Msg]:
    """All that is said of work from now on, as far as it comes to this client."""
    heard: list[Msg] = []

    async def hear(message: Msg) -> None:
        heard.append(message)

    await client.subscribe("sie.>", cb=hear)
    await client.flush()
    return heard


async def test_a_server_that_only_reaches_the_others_does_not_become_one_of_them(start: Start, tmp_path: Path) -> None:
    """For it would have every user's rights."""
    told = msgspec.structs.replace(values.load(GKE), nats=Nats(servers=SERVERS))
    ports, routes = ([free_port() for _ in range(SERVERS + 1)] for _ in range(2))
    env = {name: password for name, password in PASSWORDS.items() if name.startswith("NATS_")}
    for number in range(SERVERS):
        where = given(told)[f"ROUTE_{number}"].replace("$(NATS_ROUTE)", env["NATS_ROUTE"])
        env[f"ROUTE_{number}"] = where.replace(f"sie-nats-{number}.sie-nats:6222", f"127.0.0.1:{routes[number]}")
    for number, (port, route) in enumerate(zip(ports[:SERVERS], routes[:SERVERS], strict=True)):
        conf = component.nats_conf(told).replace("port: 4222", f'listen: "127.0.0.1:{port}"')
        conf = conf.replace("port: 6222", f'listen: "127.0.0.1:{route}"').replace("http_port: 8222", "")
        name = f"sie-nats-{number}"
        start(name, conf.replace("/data", str(tmp_path / f"data-{number}")), env | {"POD_NAME": name})

    async def is_one() -> bool:
        try:
            client = await nats.connect(f"nats://operator:p-operator@127.0.0.1:{ports[0]}", allow_reconnect=False)
            answer = await client.request("$JS.API.INFO", b"", timeout=1)
        except (nats.errors.Error, OSError):
            return False
        await client.close()
        return b'"error"' not in answer.data

    await eventually(is_one)
    refused = start("stranger", STRANGER.format(port=ports[SERVERS], own=routes[SERVERS], route=routes[0]), {})
    await eventually(lambda: "Authorization Violation" in refused())
    outside = await nats.connect(f"nats://me:mine@127.0.0.1:{ports[SERVERS]}")
    first, last = [await nats.connect(f"nats://operator:p-operator@127.0.0.1:{ports[at]}") for at in (0, SERVERS - 1)]
    heard, heard_outside = await hears(last), await hears(outside)

    async def said() -> bool:
        await first.publish("sie.work.default.default.cpu.m", b"a customer's text")
        await first.flush()
        return bool(heard)

    await eventually(said)
    await outside.flush()
    assert not heard_outside
    for client in (outside, first, last):
        await client.close()
