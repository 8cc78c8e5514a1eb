"""``python -m sie_broker``: the process that holds demand, and that buries work which no worker finished.

It has no port: it is up once it says "holding demand".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from sie_broker import process
from sie_broker.demand import Policy
from sie_broker.holder import Holder
from sie_broker.nats_broker import NatsBroker
from sie_broker.sessions import Sessions
from sie_broker.settings import Settings
from sie_sdk import settings

log = logging.getLogger("sie.broker")


async def _both(*runs: Awaitable[None]) -> None:
    await asyncio.gather(*runs)


async def main() -> None:
    """Hold demand until SIGTERM, then close the sessions."""
    setting = settings.read(Settings)
    stop = process.stop_signal()
    broker = NatsBroker(setting.nats_url, name="demand")
    await process.connect(broker)
    async with Sessions(setting.demand_url, setting.session_s) as sessions:
        policy = Policy(setting.max_scale, setting.quiet_s, setting.objective_s, setting.pod_rate)
        holding = asyncio.create_task(_both(Holder(broker, sessions, policy, setting.look_s).run(), broker.bury()))
        stopping = asyncio.create_task(stop.wait())
        log.info("holding demand at %s", setting.demand_url)
        await asyncio.wait({holding, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if holding.done():
            holding.result()
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
    await broker.close()


if __name__ == "__main__":
    process.run("demand", main)
