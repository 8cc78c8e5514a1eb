"""``python -m sie_broker``: the demand holder as a process. SIGTERM or SIGINT closes the sessions and ends it with 0.

It listens on no port: it is up once its log says "holding demand".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys

from sie_broker.demand import Policy
from sie_broker.holder import Holder
from sie_broker.nats_broker import NatsBroker
from sie_broker.sessions import Sessions
from sie_broker.settings import Settings
from sie_sdk import settings
from sie_sdk.errors import SIEError

log = logging.getLogger("sie.broker")


async def run(config: Settings) -> None:
    """Hold demand until this task is cancelled."""
    broker = NatsBroker(config.nats_url, name="demand")
    await broker.connect()
    try:
        async with Sessions(config.demand_url, config.session_s) as sessions:
            policy = Policy(config.max_scale, config.quiet_s, config.objective_s, config.pod_rate)
            log.info("holding demand at %s", config.demand_url)
            await Holder(broker, sessions, policy, config.look_s).run()
    finally:
        await broker.close()


async def until_signalled(config: Settings) -> None:
    """`run` until SIGTERM or SIGINT."""
    running = asyncio.ensure_future(run(config))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running


def main() -> int:
    """The process; returns its exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
    try:
        asyncio.run(until_signalled(settings.read(Settings)))
    except SIEError as error:
        log.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
