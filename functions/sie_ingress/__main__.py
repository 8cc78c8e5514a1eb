"""``python -m sie_ingress``: the ingress function's process."""

from __future__ import annotations

import logging
import socket
import uuid

from sie_broker import process
from sie_broker.duties import Duties
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.pools.pool_table import PoolTable
from sie_config import aliases
from sie_config.epochs.mirror import Mirror
from sie_config.registry import Registry
from sie_ingress.app import app
from sie_ingress.applied import AppliedEverywhere
from sie_ingress.config_wake import ConfigWake
from sie_ingress.dialects.speaking import absent_models, named_models
from sie_ingress.intake import Intake
from sie_ingress.lanes import Lanes
from sie_ingress.pools import Pools
from sie_ingress.readiness import Readiness
from sie_ingress.settings import Settings
from sie_sdk import settings

log = logging.getLogger("sie.ingress")


async def main() -> None:
    """Start, serve, drain on SIGTERM."""
    setting = settings.read(Settings)
    registry = Registry(aliases=aliases.read(setting.model_aliases))
    stop = process.stop_signal()
    duties = Duties(stop)
    name = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    broker = NatsBroker(setting.nats_url, name=f"ingress-{name}", stop=stop)
    await process.connect(broker)
    mirror = Mirror(broker.config, registry)
    broker.on_back.append(mirror.look_soon)
    lanes, readiness = Lanes(broker, setting.cold_start_s), Readiness()
    pools = Pools(registry, lanes, table := PoolTable(broker.pools))
    applied = AppliedEverywhere(broker.lanes, name, mirror)
    ingress = app(broker, registry, lanes, pools, setting, readiness, lambda: mirror.state, applied.ingresses)
    ingress.state.configs.changes.follow(mirror)
    async with process.serving(ingress, setting.host, process.port(), websockets=True):
        if not await process.unless(stop, mirror.first()):
            readiness.leave()
            await broker.close()
            return
        for duty in (mirror.follow(), applied.run(), lanes.follow(), pools.follow()):
            duties.begin(duty)
        duties.begin(ingress.state.configs.reads.keep_ready())
        duties.begin(Intake(broker, broker.arrivals, ingress.state.event_requests).run())
        if setting.config_url:
            duties.begin(ConfigWake(table, setting.config_url).run())
        process.collect_less()
        for alias in registry.dangling():
            log.warning("%s: %s", aliases.SETTING, alias)  # its model may come, or have gone; the others are served
        for absent in absent_models(registry, named_models(setting.default_models)):
            log.warning("SIE_DEFAULT_MODELS: %s", absent)  # likewise
        readiness.begin()
        log.info("accepting requests for %d models", len(registry.specs()))
        await stop.wait()
        readiness.leave()
        ingress.state.configs.changes.leave()
        await ingress.state.watch.leave()
    await duties.end()  # what was taken in is placed, or left to others
    await broker.close()
    duties.check()


if __name__ == "__main__":
    process.run("ingress", main)
