"""``sie up``: starts the processes in order, keeps them alive, tells what happens, and drains them in order.

Order of the start: NATS, then config, ingress and demand holder together; bundles come and go with demand. Order of the
end: ingress, demand, bundles, config, NATS, so that work in flight is answered or stays queued. What each process is
stands in ``programs``, how one is kept alive in ``child``, how bundles scale in ``scaler``.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from sie_broker import process
from sie_local.autoscaling import Policy
from sie_local.child import Child, Program
from sie_local.ports import free_port
from sie_local.programs import LOOPBACK, Commands, Options, Programs
from sie_local.scaler import Process, Scaler
from sie_local.state import ProcessRecord, Record, StateFolder
from sie_sdk.errors import StartFailedError

START_S = 30.0
"""How long the processes may take to be ready before the start is given up."""


class Supervisor:
    """One run of the platform on this machine. ``say`` prints one line or block of text.

    Raises:
        ConfigurationError: a port that was asked for is taken.
    """

    def __init__(self, options: Options, folder: StateFolder, commands: Commands, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._programs = Programs(options, folder, commands)
        self._scaler = Scaler(self._spawn_bundle, is_bundle, Policy(max_scale=options.max_scale), self._unheld)
        self._core: dict[str, Child] = {}
        self._bundles: dict[str, tuple[str, Child]] = {}  # name -> (service, child)
        self._started = time.time()
        self._demand_url = ""
        self._ready = False
        self._draining = False
        self._last_words = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Start, serve until ``stop`` is set, drain.

        Raises:
            StartFailedError: a process could not be started; nothing is left running.
        """
        async with process.serving(self._scaler, LOOPBACK, 0, drain_s=0) as port:
            self._demand_url = f"http://127.0.0.1:{port}"
            try:
                if await process.unless(stop, self._start(port)):
                    self._ready = True
                    self._record()
                    self._say(f"Ready in {time.time() - self._started:.1f} s: {self._programs.url}")
                    await stop.wait()
            except StartFailedError:
                self.kill()  # nothing is in flight yet
                raise
            finally:
                await self._drain()

    def kill(self) -> None:
        """Do not wait for the drain: SIGKILL what is left."""
        self._scaler.kill()
        for child in self._core.values():
            child.kill()

    async def _start(self, scaler_port: int) -> None:
        await self._ready_child(self._programs.nats())
        await asyncio.gather(
            self._ready_child(self._programs.config()),
            self._ready_child(self._programs.ingress()),
            self._ready_child(self._programs.demand(scaler_port)),
        )

    async def _ready_child(self, program: Program) -> None:
        """Start it and wait until it is ready."""
        child = self._core[program.name] = Child(program, self._folder.logs, self._changed, self._report)
        child.start()
        try:
            async with asyncio.timeout(START_S):
                await child.until_ready()
        except TimeoutError:
            said = "\n".join(f"  | {line}" for line in child.last_lines())
            raise StartFailedError(f"{program.name} was not ready after {START_S:.0f} s\n{said}") from None
        except RuntimeError as died:
            raise StartFailedError(str(died)) from None

    async def _drain(self) -> None:
        self._draining = True
        started = time.monotonic()
        for name in ("ingress", "demand", "bundles", "config", "nats"):
            if name == "bundles":
                await self._scaler.close()
            elif name in self._core:
                await self._core[name].stop()
        self._say(f"Stopped in {time.monotonic() - started:.1f} s")

    def _spawn_bundle(self, service: str) -> Process:
        shown = service.replace("/", ".")  # its log has the name, too
        number = next(n for n in range(1, 1_000) if f"{shown}-{n}" not in self._bundles)
        name, port = f"{shown}-{number}", free_port()
        child = Child(self._programs.bundle(name, service, port), self._folder.logs, self._changed, self._report)
        self._bundles[name] = (shown, child)
        child.start()
        return Process(child, f"http://127.0.0.1:{port}")

    def _unheld(self) -> bool:
        """Whether the demand holder is away, so that nobody asks for bundles."""
        return "demand" in self._core and self._core["demand"].state != "ready"

    def _changed(self, child: Child) -> None:
        """A child changed its state: tell the scaler, the reader of ``up.json``, and the user."""
        name = child.program.name
        if child.state == "stopped":
            self._bundles.pop(name, None)
        self._scaler.changed()
        self._record()
        match child.state:
            case "ready":
                self._say(f"  {name:<24} ready in {child.ready_s:.2f} s")
            case "unwell":
                self._say(f"  {name:<24} does its work no more; it is started anew if it stays so")
            case "starting" if name in self._bundles:
                self._say(f"  {name:<24} starting")
            case "stopped" if not self._draining:
                self._say(f"  {name:<24} stopped")

    def _report(self, account: str) -> None:
        if not self._ready or self._draining:
            return  # a death at the start ends the start, which tells it; one in the drain is wanted
        head, _, words = account.partition("\n")
        self._say(f"{head}, as before" if words == self._last_words else account)
        self._last_words = words

    def _record(self) -> None:
        services = {name: service for name, (service, _) in self._bundles.items()}
        children = [*self._core.values(), *(child for _, child in self._bundles.values())]
        self._folder.write(
            Record(
                pid=os.getpid(),
                url=self._programs.url,
                started=self._started,
                ready=self._ready,
                nats_url=self._programs.nats_url,
                monitor_url=self._programs.monitor_url,
                config_url=self._programs.config_url,
                demand_url=self._demand_url,
                grace_s=self._programs.bundle_grace_s + sum(child.program.grace_s for child in self._core.values()),
                processes=tuple(
                    ProcessRecord(
                        name=child.program.name,
                        pid=child.pid,
                        state=child.state,
                        since=child.spawned_at,
                        restarts=child.restarts,
                        service=services.get(child.program.name, ""),
                    )
                    for child in children
                    if child.pid is not None
                ),
            )
        )


def is_bundle(service: str) -> bool:
    """Whether the name is that of a lane's bundle: ``bundle/profile/pool``."""
    return service.count("/") == 2 and all(service.split("/"))
