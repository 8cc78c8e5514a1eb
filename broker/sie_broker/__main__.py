"""``python -m sie_broker``: the process that holds demand, assigns workers to pools and buries work nobody finished.

Any number may run. The one that has the lease does all this; the others stand by for it. Each also sends results to
their sinks. It has no port: it is up once it says "holding demand", which it does whatever the log's level is.
"""

from __future__ import annotations

import asyncio
import logging
import uuid

from sie_broker import process
from sie_broker.contract import Broker
from sie_broker.demand import sessions
from sie_broker.demand.holder import Holder
from sie_broker.demand.pods import Policy
from sie_broker.demand.sessions import Sessions
from sie_broker.duties import Duties
from sie_broker.events.allow_list import AllowList
from sie_broker.events.sinks import Dispatcher
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.lease import Lease
from sie_broker.pools.assigner import Assigner
from sie_broker.pools.pool_table import PoolTable
from sie_broker.settings import Settings
from sie_sdk import settings

log = logging.getLogger("sie.broker.demand")
log.setLevel(logging.INFO)  # whoever starts it waits for what it says here

LEASE = "demand"


async def main() -> None:
    """Lead whenever the lease is ours, until SIGTERM; then close the sessions and let others have it."""
    setting = settings.read(Settings)
    sessions.check(setting.demand_url)
    allowed = AllowList(setting.reply_sinks, setting.reply_subjects)
    stop = process.stop_signal()
    duties = Duties(stop)
    broker = NatsBroker(setting.nats_url, name=f"demand-{uuid.uuid4().hex[:8]}", stop=stop)
    await process.connect(broker)
    # Patient: where nobody can reach NATS, nobody else can take the lease, and without sessions all pods would go.
    lease = Lease(broker.leases, LEASE, setting.replica, patience_s=setting.frozen_s)
    duties.begin(lease.lead(lambda: lead(broker, setting)))
    duties.begin(Dispatcher(broker, allowed).run())
    await stop.wait()
    await duties.end()  # the lease is given up, and told
    await broker.close()
    duties.check()


async def lead(broker: Broker, setting: Settings) -> None:
    """Hold demand, assign workers to pools and bury until cancelled; when this has ended, no session is open."""
    async with Sessions(setting.demand_url, setting.session_s) as held:
        log.info("holding demand at %s", setting.demand_url)
        policy = Policy(setting.max_scale, setting.quiet_s, setting.objective_s, setting.pod_rate)
        table = PoolTable(broker.pools)
        holder = Holder(broker, table, held, policy, setting.look_s, provision_s=setting.provision_s)
        assigner = Assigner(broker, table, lambda: holder.pods, lambda: holder.working, look_s=setting.look_s)

        def changed() -> None:
            holder.look()
            assigner.look()

        async def assign() -> None:
            await holder.began.wait()  # without what is wanted, everybody would be sent home
            await assigner.run()

        await asyncio.gather(holder.run(), assign(), table.follow(changed), broker.bury())


if __name__ == "__main__":
    process.run("demand", main)
