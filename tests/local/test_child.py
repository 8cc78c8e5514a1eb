"""A child process for real: readiness, death and restart, drain and kill, and its end with the supervisor."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from sie_local import child as child_module
from sie_local.child import Child, Program, greets, is_well, says, serves
from sie_local.ports import free_port
from tests.conftest import eventually

STAND_IN = (sys.executable, str(Path(__file__).with_name("stand_in_bundle.py")))
Start = Callable[..., Child]


class Account:
    """What a child told its owner."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.deaths: list[str] = []


@pytest.fixture
def account() -> Account:
    return Account()


@pytest.fixture
async def start(tmp_path: Path, account: Account) -> AsyncIterator[Start]:
    """Starts children and leaves none behind."""
    children = []

    def started(command: tuple[str, ...] = STAND_IN, ready: str = "up", grace_s: float = 5, **env: str) -> Child:
        port = free_port()
        probe = serves(port) if ready == "http" else says(ready)
        program = Program("bundle", command, {"PORT": str(port), **env}, probe, grace_s)
        child = Child(program, tmp_path, lambda child: account.states.append(child.state), account.deaths.append)
        child.start()
        children.append(child)
        return child

    yield started
    for child in children:
        child.kill()
        await child.stop()


def alive(pid: int | None) -> bool:
    assert pid is not None
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False


async def test_a_child_is_ready_when_it_says_so(start: Start, account: Account) -> None:
    child = start(ready="http", START_S="0.2")
    await child.until_ready()
    assert account.states == ["starting", "ready"]
    assert child.ready_s > 0.2
    assert "up" in child.last_lines()
    await child.stop()
    assert account.states == ["starting", "ready", "stopped"]
    assert not alive(child.pid)


async def test_a_child_that_cannot_start_is_reported_with_its_status_and_last_words(
    start: Start, account: Account
) -> None:
    child = start(CRASH="1")
    with pytest.raises(RuntimeError, match="exited with status 3") as died:
        await child.until_ready()
    assert str(died.value).splitlines()[1:] == ["  | first words", "  | last words"]
    assert account.deaths == [str(died.value)]


async def test_a_command_that_does_not_exist_is_reported(start: Start) -> None:
    with pytest.raises(RuntimeError, match=r"cannot be started.*no-such-program"):
        await start(command=("/no-such-program",)).until_ready()


async def test_a_killed_child_is_reported_and_started_again(start: Start, account: Account) -> None:
    child = start()
    await child.until_ready()
    assert child.pid is not None
    killed = child.pid
    os.kill(killed, signal.SIGKILL)
    await eventually(lambda: child.restarts == 1 and child.state == "ready")
    assert child.pid != killed
    assert "was killed by SIGKILL" in account.deaths[0]
    assert account.states == ["starting", "ready", "dead", "starting", "ready"]


async def test_a_child_that_ignores_sigterm_is_killed_after_its_grace(start: Start) -> None:
    stubborn = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(60)"
    child = start(command=(sys.executable, "-c", stubborn), grace_s=0.2)
    await child.until_ready()
    async with asyncio.timeout(5):
        await child.stop()
    assert not alive(child.pid)


async def test_a_child_started_again_keeps_the_log_of_the_run_before(start: Start) -> None:
    for _ in range(2):
        child = start()
        await child.until_ready()
        await child.stop()
    assert child.last_lines() == ["up"]
    assert child.log.with_suffix(".log.old").read_text() == "up\n"


async def test_a_nats_server_is_known_by_its_greeting(nats_url: str, start: Start) -> None:
    port = int(nats_url.rsplit(":", 1)[1])
    assert await greets(port, b"INFO")(start())
    assert not await greets(free_port(), b"INFO")(start())


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
async def test_a_killed_supervisor_leaves_no_child_behind(tmp_path: Path) -> None:
    supervisor = textwrap.dedent("""
        import asyncio, sys
        from pathlib import Path
        from sie_local.child import Child, Program, says
        async def main():
            sleeper = (sys.executable, "-c", "import time; print('up'); time.sleep(60)")
            program = Program("sleeper", sleeper, {}, says("up"))
            child = Child(program, Path(sys.argv[1]), lambda child: None, print)
            child.start()
            await child.until_ready()
            print(child.pid, flush=True)
            await asyncio.sleep(60)
        asyncio.run(main())
    """)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", supervisor, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(20):
        pid = int(await process.stdout.readline())
    assert alive(pid)
    process.kill()
    await process.wait()
    await eventually(lambda: not alive(pid))


async def test_a_child_that_says_that_it_is_unwell_is_started_anew_if_it_stays_so(
    tmp_path: Path, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As nats-server after a moment of full disk: its health says so, and only a start mends it."""
    says_unwell = tmp_path / "unwell"
    program = f"""
        import http.server, pathlib
        class Health(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(503 if pathlib.Path({str(says_unwell)!r}).exists() else 200)
                self.end_headers()
        http.server.HTTPServer(("127.0.0.1", {(port := free_port())}), Health).serve_forever()"""
    monkeypatch.setattr(child_module, "LOOK_S", 0.02)
    command = (sys.executable, "-c", textwrap.dedent(program))
    well = is_well(port)
    child = Child(
        Program("nats", command, {}, serves(port), well=well),
        tmp_path,
        lambda child: account.states.append(child.state),
        account.deaths.append,
    )
    child.start()
    await child.until_ready()
    first = child.pid
    says_unwell.touch()
    await eventually(lambda: child.state == "unwell")
    says_unwell.unlink()
    await eventually(lambda: child.state == "ready")  # a moment of it is not answered with an end
    assert (child.pid, child.restarts) == (first, 0)
    monkeypatch.setattr(child_module, "UNWELL_S", 0.1)
    says_unwell.touch()
    await eventually(lambda: child.state == "dead")
    says_unwell.unlink()
    await eventually(lambda: child.restarts == 1 and child.state == "ready")
    assert "did its work no more and was ended" in account.deaths[0]
    assert account.states == ["starting", "ready", "unwell", "ready", "unwell", "dead", "starting", "ready"]
    await child.stop()
    assert await well(child), "who does not answer is not unwell"
