"""A deployment of real processes behind a NATS server that knows each by its user, with the rights that pods have.

Owns the server's configuration and who connects as whom. Processes and folders are ``tests.faults.deployment``'s.
"""

from __future__ import annotations

from pathlib import Path

import nats
from nats.aio.client import Client

from sie_broker.jetstream import permissions
from sie_broker.jetstream.streams import MAX_PAYLOAD_BYTES
from sie_config.deployment import component
from sie_local.ports import free_port
from sie_local.programs import nats_server
from tests.faults.deployment import Deployment

WORKER = "worker"
"""A bundle with an engine; ``bundle`` is one without."""
PASSWORDS = {f"NATS_{user.upper()}": f"p-{user}" for user in (*permissions.users(), component.ROUTE)}
PASSWORDS |= {f"ROUTE_{number}": f"nats://127.0.0.1:{number + 1}" for number in range(5)}
"""And where servers find each other; nobody is there."""


def configuration(address: str, store: Path) -> str:
    """One server on this machine, with the users that the pods' servers have."""
    users = "\n".join(component.users("    "))
    return (
        f'listen: "{address}"\nmax_payload: {MAX_PAYLOAD_BYTES}\n'
        f'jetstream {{ store_dir: "{store}", max_file_store: 16GB }}\n'
        f"accounts {{\n  SIE {{\n    jetstream: enabled\n{users}\n  }}\n}}\n"
    )


class Guarded(Deployment):
    """A `Deployment` whose processes are users with the least rights; the test itself is the operator."""

    def user_url(self, user: str) -> str:
        """The server's address for a user."""
        return self.nats_url.replace("nats://", f"nats://{user}:p-{user}@")

    def violations(self) -> list[str]:
        """What the server refused."""
        return [
            line for line in self.log("nats-1").splitlines() if "Violation" in line or "authorization" in line.lower()
        ]

    async def connected(self) -> Client:
        return await nats.connect(self.user_url("operator"), connect_timeout=5)

    def _run(self, name: str, settings: dict[str, str]) -> None:
        user = "bundle" if name == WORKER else name
        super()._run(name, {"SIE_NATS_URL": self.user_url(user), **settings})

    def _run_server(self, name: str) -> None:
        store = self.folder / name
        store.mkdir(exist_ok=True)
        http = self._ports.setdefault(f"{name} http", free_port())
        path = self.folder / f"{name}.conf"
        address = f"127.0.0.1:{self._ports[name]}"
        path.write_text(configuration(address, store) + f'http: "127.0.0.1:{http}"\n')
        self._spawn(name, [nats_server(), "-c", str(path)], PASSWORDS)
