"""What ``sie up`` runs: the command, environment and readiness of each process. Starts none of them.

Everything a process needs reaches it through its environment, as on Knative. Each listens on ``PORT`` and answers
``GET /readyz``; the demand holder has no port and says "holding demand".
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from sie_bundle.settings import Settings as BundleSettings
from sie_config import catalog
from sie_config.deployment import machine_profile
from sie_local.child import Program, greets, is_well, says, serves
from sie_local.ports import free_port, is_free, owner_of
from sie_local.state import StateFolder
from sie_sdk import extras, settings
from sie_sdk.errors import ConfigurationError

LOOPBACK = "127.0.0.1"
NATS_MEMORY = "160MiB"
"""From where the server's collector works harder (Go's own setting ``GOMEMLIMIT``): left alone, it lets garbage double
what a long queue takes."""
AFTER_DRAIN_S = 20.0
"""What a bundle may take for all else at its end, a forward pass that is under way among it."""
INSTALL = extras.install("local")
NEEDS = ("nats", "uvicorn", "starlette", "websockets", "yaml", "torch", "tokenizers", "safetensors")

Commands = Mapping[str, Sequence[str]]


class Options(msgspec.Struct, frozen=True):
    """What the user asked for. A port of 0 is chosen freely; ``models`` is a list of ids or a folder of specs."""

    state: Path
    host: str = LOOPBACK
    port: int = 8080
    nats_port: int = 0
    models: str = ""
    quiet_s: float = 60.0
    max_scale: int = 4


def own_commands() -> dict[str, tuple[str, ...]]:
    """How each process is started in earnest.

    Raises:
        ConfigurationError: the NATS server or a package of the local extra is not installed.
    """
    absent = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if absent:
        raise ConfigurationError(f"Not installed: {', '.join(absent)}.", hint=INSTALL)
    modules = {"config": "sie_config", "ingress": "sie_ingress", "demand": "sie_broker", "bundle": "sie_bundle"}
    own = {name: (sys.executable, "-m", module) for name, module in modules.items()}
    return {"nats": (nats_server(),), **own}


def nats_server(scripts: str | None = None) -> str:
    """The NATS server's program: beside this Python, or on the PATH.

    Raises:
        ConfigurationError: there is none.
    """
    own = Path(scripts or sysconfig.get_path("scripts")) / "nats-server"
    found = str(own) if own.is_file() else shutil.which("nats-server")
    if found is None:
        raise ConfigurationError("The program nats-server is not installed.", hint=INSTALL)
    return found


class Programs:
    """The programs of one run, with their ports chosen.

    Raises:
        ConfigurationError: a port that was asked for is taken, or a setting of bundles is wrong.
    """

    def __init__(self, options: Options, folder: StateFolder, commands: Commands) -> None:
        self._options = options
        self._folder = folder
        self._commands = commands
        self._port = _port(options.host, options.port, "--port")
        self._nats_port = _port(LOOPBACK, options.nats_port, "--nats-port")
        self._monitor_port = free_port()
        self._config_port = free_port()
        self._reached = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(options.host, options.host)
        self.url = f"http://{f'[{self._reached}]' if ':' in self._reached else self._reached}:{self._port}"
        self.nats_url = f"nats://{LOOPBACK}:{self._nats_port}"
        self.monitor_url = f"http://{LOOPBACK}:{self._monitor_port}"
        self.config_url = f"http://{LOOPBACK}:{self._config_port}"
        self.bundle_grace_s = settings.read(BundleSettings).drain_s + AFTER_DRAIN_S

    def nats(self) -> Program:
        """The NATS server, with JetStream on files in the state folder; nobody but this machine reaches it."""
        config = self._folder.path / "nats.conf"
        store = json.dumps(str(self._folder.nats), ensure_ascii=False)  # in quotes as the server reads them
        config.write_text(
            f'listen: "{LOOPBACK}:{self._nats_port}"\nhttp: "{LOOPBACK}:{self._monitor_port}"\n'
            "max_payload: 8MB\n"
            f"jetstream {{ store_dir: {store}, max_file_store: 32GB, max_memory_store: 256MB }}\n"
        )
        command = (*self._commands["nats"], "-c", str(config))
        env = {"GOMEMLIMIT": os.environ.get("GOMEMLIMIT", NATS_MEMORY)}
        # After a full disk it refuses all writes until it is started anew, and only its health says so.
        ready, well = greets(self._nats_port, b"INFO"), is_well(self._monitor_port)
        return Program("nats", command, env, ready, well=well)

    def config(self) -> Program:
        """The config service."""
        env = self._env(self._config_port) | {"SIE_REPLICA": "local", "SIE_ADMIN_TOKEN": self._admin_token()}
        env |= {"SIE_MODELS": self._options.models} if self._options.models else {}
        return Program("config", self._commands["config"], env, serves(self._config_port))

    def ingress(self) -> Program:
        """The ingress, on the port that users call. Its grace lets requests in flight be answered."""
        env = self._env(self._port) | {"SIE_HOST": self._options.host, "SIE_CONFIG_URL": self.config_url}
        env |= {"SIE_ADMIN_TOKEN": self._admin_token()}  # `sie config` asks there first, where the config service is
        ready = serves(self._port, host=self._reached)
        return Program("ingress", self._commands["ingress"], env, ready, grace_s=15.0)

    def demand(self, scaler_port: int) -> Program:
        """The demand holder, which drives the local scaler."""
        env = {
            "SIE_NATS_URL": self.nats_url,
            "SIE_DEMAND_URL": demand_url(scaler_port),
            "SIE_QUIET_S": str(self._options.quiet_s),
            "SIE_MAX_SCALE": str(self._options.max_scale),
            "SIE_REPLICA": "local",
        }
        return Program("demand", self._commands["demand"], env, says("holding demand"))

    def bundle(self, name: str, service: str, port: int) -> Program:
        """One process of a lane's bundle; ``service`` is ``{bundle}/{profile}/{pool}``."""
        bundle, profile, pool = service.split("/")
        env = self._env(port) | machine_settings(profile)
        env |= {"SIE_BUNDLE": bundle, "SIE_PROFILE": profile, "SIE_POOL": pool}
        folder = catalog.folder_of(self._options.models)
        if folder is not None and not os.environ.get("SIE_WEIGHTS_DIR"):
            env["SIE_WEIGHTS_DIR"] = str(folder.resolve())
        return Program(name, self._commands["bundle"], env, serves(port), self.bundle_grace_s)

    def _admin_token(self) -> str:
        return os.environ.get("SIE_ADMIN_TOKEN") or self._folder.admin_token()

    def _env(self, port: int) -> dict[str, str]:
        return {"SIE_NATS_URL": self.nats_url, "SIE_HOST": LOOPBACK, "PORT": str(port)}


def machine_settings(profile: str) -> dict[str, str]:
    """The settings of workers on a machine profile, but for those that the environment says otherwise."""
    known = (each.environment for each in machine_profile.load() if each.name == profile)
    return {name: value for told in known for name, value in told.items() if name not in os.environ}


def demand_url(scaler_port: int) -> str:
    """Where the local scaler takes demand: a template, filled in per lane. A name may have dots, but no slash."""
    return f"http://{LOOPBACK}:{scaler_port}/{{bundle}}/{{profile}}/{{pool}}"


def _port(host: str, asked: int, option: str) -> int:
    if asked == 0:
        return free_port(LOOPBACK)
    if is_free(host, asked):
        return asked
    owner = owner_of(asked)
    raise ConfigurationError(
        f"Port {asked} is taken{f' by {owner}' if owner else ''}.",
        field=option,
        hint=f"Stop it, or choose another with {option}.",
    )
