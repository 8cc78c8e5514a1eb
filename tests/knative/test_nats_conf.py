"""The configuration of the NATS servers as it is rendered: read by a real server, with TLS on request."""

from __future__ import annotations

import os
import subprocess
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest
import trustme

from sie_broker.jetstream.nats_broker import NatsBroker
from sie_config.deployment import component, values
from sie_config.deployment.values import Nats, Values
from sie_local.ports import free_port
from sie_local.programs import nats_server
from sie_sdk.errors import ConfigurationError
from tests.conftest import eventually
from tests.faults.deployment import LANE, MODEL
from tests.knative.guarded import PASSWORDS
from tests.platform import wait_until

OVERLAYS = sorted(path.parent for path in (Path(__file__).parents[2] / "knative/overlays").glob("*/values.yaml"))
POD = {"POD_NAME": "sie-nats-0"}


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_a_real_server_reads_it(overlay: Path) -> None:
    path = overlay / component.FOLDER / "nats.conf"
    command = [nats_server(), "-t", "-c", str(path)]
    done = subprocess.run(command, env=os.environ | PASSWORDS | POD, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("missing", ["NATS_INGRESS", "NATS_ROUTE"])
def test_a_password_that_is_not_there_stops_the_server(missing: str) -> None:
    path = OVERLAYS[0] / component.FOLDER / "nats.conf"
    command = [nats_server(), "-t", "-c", str(path)]
    env = {name: value for name, value in (PASSWORDS | POD).items() if name != missing}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and missing in done.stderr


def test_a_server_that_is_told_to_leave_does_that_and_not_what_sigterm_says(tmp_path: Path) -> None:
    (tmp_path / "nats.conf").write_text('listen: "127.0.0.1:-1"\nlame_duck_grace_period: 1ms\n')
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([nats_server(), "-c", str(tmp_path / "nats.conf")], stdout=log, stderr=log)
    said = (tmp_path / "log").read_text
    wait_until(lambda: "Server is ready" in said())
    program, *words = component.LEAVE
    assert program == "/nats-server"  # as the base starts it, and so the first process of its container
    command = [nats_server(), *(word.replace("=1", f"={process.pid}") for word in words)]
    subprocess.run(command, env={"PATH": ""}, check=True)  # the image has nothing else
    # Two signals at once come in any order; Kubernetes sends its own when the command has come back to it.
    wait_until(lambda: "Entering lame duck mode" in said())
    process.terminate()
    assert process.wait(60) == 0


async def test_with_tls_processes_trust_whom_they_are_told_to_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, port = trustme.CA(), free_port()
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    own = authority.issue_cert("localhost")
    own.private_key_pem.write_to_path(tmp_path / "tls.key")
    for number, part in enumerate(own.cert_chain_pems):
        part.write_to_path(tmp_path / "tls.crt", append=number > 0)
    told = with_tls(values.load(OVERLAYS[0]), servers=1)
    (tmp_path / "nats.conf").write_text(on_this_machine(component.nats_conf(told), port, tmp_path))
    with (tmp_path / "log").open("w") as log:
        command = [nats_server(), "-c", str(tmp_path / "nats.conf")]
        process = subprocess.Popen(  # noqa: ASYNC220 - it starts in a moment, and nothing else waits here
            command, env=os.environ | PASSWORDS | POD, stdout=log, stderr=log
        )
    try:
        await eventually(lambda: "Server is ready" in (tmp_path / "log").read_text())
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
        broker = NatsBroker(f"tls://config:p-config@localhost:{port}", name="config")
        await broker.connect()
        await broker.provision([(LANE, MODEL)])  # asked and answered, both ways
        await broker.close()
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize(("storage", "starts"), [("13Gi", True), ("12Gi", False)])
async def test_what_is_rendered_has_room_for_the_streams_and_with_less_none_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str, starts: bool
) -> None:
    port = free_port()
    told = msgspec.structs.replace(values.load(OVERLAYS[0]), nats=Nats(storage=storage))
    conf = component.nats_conf(told)
    (tmp_path / "nats.conf").write_text(
        conf.replace("port: 4222", f'listen: "127.0.0.1:{port}"')
        .replace("http_port: 8222", "")
        .replace("/data", str(tmp_path / "data"))
    )
    (tmp_path / "values.yaml").write_text(
        f"cloud: local\nregistry: r\ntag: t\nmachine_profiles: {{cpu: {{}}}}\nnats: {{storage: {storage}}}\n"
    )
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(  # noqa: ASYNC220 - it starts in a moment, and nothing else waits here
            [nats_server(), "-c", str(tmp_path / "nats.conf")], env=os.environ | PASSWORDS | POD, stdout=log, stderr=log
        )
    broker = NatsBroker(f"nats://config:p-config@127.0.0.1:{port}", name="config")
    try:
        await eventually(lambda: "Server is ready" in (tmp_path / "log").read_text())
        await broker.connect()
        with nullcontext() if starts else pytest.raises(ConfigurationError, match="insufficient storage"):
            await broker.provision([])
    finally:
        await broker.close()
        process.terminate()
        process.wait(60)
    with nullcontext() if starts else pytest.raises(ConfigurationError, match=r"12Gi is not at least 13Gi"):
        values.load(tmp_path)


def with_tls(told: Values, servers: int) -> Values:
    return msgspec.structs.replace(told, nats=Nats(servers=servers, tls=True))


def on_this_machine(conf: str, port: int, folder: Path) -> str:
    """The same with free ports and folders of the test's own."""
    own = {
        "port: 4222": f'listen: "127.0.0.1:{port}"',
        "http_port: 8222": "",
        "/data": str(folder / "data"),
        component.TLS: str(folder),
    }
    for pods, here in own.items():
        assert pods in conf
        conf = conf.replace(pods, here)
    return conf
