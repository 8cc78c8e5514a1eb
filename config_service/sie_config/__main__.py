"""``python -m sie_config``: the config service. Writes the catalogue, provisions its queues, answers who asks."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack
from functools import partial

from sie_broker import process
from sie_broker.duties import Duties
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.pools.pool_table import PoolTable
from sie_config import catalog
from sie_config.api.app import NAME, app
from sie_config.api.auth import Access
from sie_config.api.watch import Watch
from sie_config.deployment import placement
from sie_config.epochs import relay
from sie_config.epochs.mirror import Mirror
from sie_config.epochs.relay import Relay
from sie_config.epochs.writer import Writer
from sie_config.groundwork import Groundwork
from sie_config.pool_queues import PoolQueues
from sie_config.registry import Registry
from sie_config.settings import Settings
from sie_sdk import settings


async def main() -> None:
    """Start, serve, leave on SIGTERM."""
    setting = settings.read(Settings)
    baseline = {spec.id: spec for spec in catalog.select(setting.models)}
    registry = Registry(deployment=placement.deployment(setting.machine_profiles, pools=setting.pools))
    stop = process.stop_signal()
    duties = Duties(stop)
    broker = NatsBroker(setting.nats_url, name="config", limits=setting, stop=stop)
    if not await process.unless(stop, process.connect(broker)):
        return
    queues = PoolQueues(broker, registry, PoolTable(broker.pools))
    mirror = Mirror(broker.config, registry, baseline=baseline)
    broker.on_back.append(mirror.look_soon)
    if not await process.unless(stop, _read(broker, mirror)):
        await broker.close()
        return
    groundwork = Groundwork(broker, registry, queues)
    mirror.resets.append(groundwork.forget)
    writer = Writer(broker.config, mirror, groundwork.lay, setting.replica)
    access = Access(setting.admin_token, setting.config_read_token)
    watch = Watch(lambda: mirror.state, access)
    watch.follow(mirror)
    name = f"{NAME}-{setting.replica or socket.gethostname()}"
    service = app(registry, writer, access, name, watch.routes())
    async with AsyncExitStack() as stack:
        relays = [Relay(broker.config, writer, "nats", relay.on_nats(broker))]
        if setting.config_sink:
            send = await stack.enter_async_context(relay.to_sink(setting.config_sink))
            relays.append(Relay(broker.config, writer, "sink", send))
        await stack.enter_async_context(process.serving(service, setting.host, process.port()))
        mirror.listeners += [each.heard for each in relays]
        for duty in (mirror.follow(), writer.run(), groundwork.keep(lambda: writer.leading), queues.run()):
            duties.begin(duty)
        duties.begin(service.state.reads.keep_ready())
        for each in relays:
            duties.begin(each.run())
        await stop.wait()
        watch.leave()
        await duties.end()
    await broker.close()
    duties.check()


async def _read(broker: NatsBroker, mirror: Mirror) -> None:
    """Make what the catalogue stands in, and read it. Both wait for a while: a cluster elects its leaders first."""
    await process.patiently(partial(broker.provision, []))
    await process.patiently(mirror.snapshot)


if __name__ == "__main__":
    process.run("config", main)
