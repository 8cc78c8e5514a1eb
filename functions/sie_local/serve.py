"""``sie serve``: the whole system in one process, on the in-memory broker. No NATS, nothing scales, nothing survives.

Owns the wiring and its command; every part is the one that runs in production.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os

import click
import msgspec

from sie_broker import process
from sie_broker.duties import Duties
from sie_broker.events.allow_list import AllowList
from sie_broker.events.sinks import Dispatcher
from sie_broker.memory import MemoryBroker
from sie_broker.pools.pool_table import PoolTable
from sie_broker.records import Lane
from sie_bundle.bundle import Bundle, Warming
from sie_bundle.settings import Settings as BundleSettings
from sie_config import aliases, catalog
from sie_config.deployment import placement
from sie_config.registry import Registry
from sie_config.settings import Settings as ConfigSettings
from sie_ingress.app import app
from sie_ingress.dialects.speaking import absent_models
from sie_ingress.lanes import Lanes
from sie_ingress.pools import Pools
from sie_ingress.readiness import Readiness
from sie_ingress.settings import Settings as IngressSettings
from sie_local import asked, listening
from sie_local.programs import machine_settings
from sie_sdk import settings
from sie_sdk.errors import ConfigurationError

log = logging.getLogger("sie.serve")

MACHINE = ("device", "precision", "model_bytes")
"""The settings of a bundle that its machine profile gives, unless the environment does."""


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=asked.PORT, default=8080, show_default=True, help="The port to listen on; 0 for any.")
@click.option(
    "--models",
    callback=asked.models,
    default="",
    help="Model ids separated by commas, or a folder of specs. [default: all]",
)
def serve(host: str, port: int, models: str) -> None:
    """Serve the catalogue from one process, without NATS.

    \b
    Examples:
      sie serve
      sie serve --port 9000 --models sentence-transformers/all-MiniLM-L6-v2
    """
    process.run("serve", lambda: main(host, port, models))


async def main(host: str, port: int, models: str) -> None:
    """Start, serve, drain on SIGTERM."""
    warming = Warming()
    stop = process.stop_signal()
    duties = Duties(stop)
    # Without NATS nobody could listen on a subject.
    ingress = msgspec.structs.replace(settings.read(IngressSettings), reply_subjects="")
    bundle_settings = _bundle_settings(models)
    there = placement.deployment(settings.read(ConfigSettings).machine_profiles)
    registry = Registry(catalog.select(models), aliases.read(ingress.model_aliases), deployment=there)
    for alias in registry.dangling():
        raise ConfigurationError(f"{aliases.SETTING}: {alias}", field=aliases.SETTING)
    # This catalogue does not change: a name that is not in it now is a mistake.
    for field, value in (
        ("default_models", ingress.default_models),
        ("pinned_models", bundle_settings.pinned_models),
    ):
        for absent in absent_models(registry, filter(None, map(str.strip, value.split(",")))):
            raise ConfigurationError(f"{settings.variable(field)}: {absent}", field=settings.variable(field))
    broker = MemoryBroker()
    lanes, readiness = Lanes(broker, ingress.cold_start_s), Readiness()
    # One bundle per lane of the catalogue: here a lane is a set of queues, not a set of machines.
    bundles = [
        Bundle(broker, registry, _on_lane(bundle_settings, lane), stop)
        for lane in sorted({lane for lane, _ in registry.queues()})
    ]
    duties.begin(lanes.follow())
    duties.begin(Dispatcher(broker, AllowList(ingress.reply_sinks, "")).run())
    pools = Pools(registry, lanes, PoolTable(broker.pools), assigns=False)
    served = app(broker, registry, lanes, pools, ingress, readiness)
    # What was accepted can be computed by nobody else: work is pulled until the last request is answered, or cut.
    drain_s = math.ceil(bundle_settings.drain_s)
    async with process.serving(served, host, port, drain_s=drain_s, websockets=True) as bound:
        await asyncio.gather(*(bundle.start(warming) for bundle in bundles))
        readiness.begin()
        log.info("serving %s on http://%s:%d", _counted(registry), host, bound)
        if told := listening.warning(host, ingress.auth_tokens):
            log.warning("%s", told)
        await stop.wait()
        readiness.close()
        served.state.configs.changes.leave()
        await served.state.watch.leave()
    await asyncio.gather(*(bundle.drain() for bundle in bundles))
    await duties.end()
    duties.check()


def _counted(registry: Registry) -> str:
    specs = registry.specs()
    planned = sum(spec.status == "planned" for spec in specs)
    return f"{len(specs) - planned} models" + (f" ({planned} more are planned)" if planned else "")


def _on_lane(own: BundleSettings, lane: Lane) -> BundleSettings:
    machine = settings.read(BundleSettings, machine_settings(lane.profile))
    device = {name: getattr(machine, name) for name in MACHINE if settings.variable(name) not in os.environ}
    return msgspec.structs.replace(own, **msgspec.structs.asdict(lane), **device)


def _bundle_settings(models: str) -> BundleSettings:
    """As under ``sie up``: a folder of specs may hold the weights beside them."""
    read = settings.read(BundleSettings)
    beside = not read.weights_dir and catalog.folder_of(models) is not None
    return msgspec.structs.replace(read, weights_dir=models) if beside else read
