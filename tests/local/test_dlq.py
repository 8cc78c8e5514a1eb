"""``sie dlq`` against a real nats-server, run as a user runs it: what it shows, what it does, what it says is wrong."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from sie_broker import jobs, subjects
from sie_broker.deadletters import Place
from sie_broker.events import envelope
from sie_broker.jetstream.exhausted import Burial
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.records import Lane, Queue, Work
from sie_local.dlq import dlq
from sie_local.state import ProcessRecord, Record, StateFolder
from sie_sdk import cli
from tests.conftest import running_nats
from tests.congruence.test_broker import pulling, take

LANE = Lane("default", "default", "cpu")
BODY = msgspec.msgpack.encode({"items": [{"text": "x" * 500}] * 20, "raw": b"\x00" * 70})


@pytest.fixture
async def broker(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NatsBroker]:
    """A server with three dead letters: two of org/model and one that is no work event."""
    monkeypatch.setenv("SIE_NATS_URL", nats_url)
    broker = NatsBroker(nats_url, name="test")
    await broker.connect()
    await broker.provision([(LANE, "org/model"), (LANE, "org/other")])
    burial = Burial(broker.nc, broker.dead, broker.jobs, broker.payloads)
    for work_id in ("first", "second"):
        receipt = await broker.submit(work(work_id))
        await burial.bury(Place("WORK_default", receipt.sequence, 5))
    headers, body = envelope.from_work(work("third"), source="/somebody")
    headers["ce-time"] = "yesterday"
    ack = await broker.nc.jetstream().publish(subjects.work(Queue(LANE, "org/model")), body, headers=headers)
    await burial.bury(Place("WORK_default", ack.seq, 1))
    yield broker
    await broker.close()


def work(work_id: str) -> Work:
    now = round(time.time(), 6)
    return Work(
        work_id, "encode", LANE, "org/model", BODY, now, reply_to="sie.reply.gone.x", deadline=now, tenant="acme"
    )


async def sie(*words: str, stdin: str | None = None) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, cli.main, ["dlq", *words], stdin)


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_it_is_found_as_an_installed_command() -> None:
    assert cli.main.get_command(None, "dlq") is dlq  # type: ignore[arg-type]


@pytest.mark.usefixtures("broker")
async def test_the_list_names_everything_in_whole_oldest_first() -> None:
    shown = await sie("list")
    assert shown.exit_code == 0, shown.output
    head, first, *_, third = shown.stdout.splitlines()
    assert head.split() == ["id", "model", "op", "lane", "reason", "when", "size"]
    assert first.split()[:5] == ["first", "org/model", "encode", "default/default/cpu", "exhausted"]
    assert (third.split()[0], third.split()[4]) == ("third", "malformed")
    listed = rows(await sie("list", "--json"))
    assert [(row["id"], row["reason"], row["tenant"], row["size"]) for row in listed] == [
        ("first", "exhausted", "acme", len(BODY)),
        ("second", "exhausted", "acme", len(BODY)),
        ("third", "malformed", "acme", len(BODY)),
    ]
    assert "yesterday" in listed[2]["fault"]
    assert rows(await sie("--json")) == listed, "a noun without a verb lists"


@pytest.mark.usefixtures("broker")
async def test_a_model_is_named_with_or_without_its_organisation() -> None:
    for name in ("org/model", "MODEL"):
        assert len(rows(await sie("list", "--json", "--model", name))) == 3
    assert "no dead letters of org/other" in (await sie("list", "--model", "org/other")).stdout


@pytest.mark.usefixtures("broker")
async def test_one_is_shown_with_headers_and_payload_cut_for_people_and_whole_for_programs() -> None:
    shown = (await sie("show", "first")).stdout
    assert "after 5 deliveries" in shown
    assert "ce-replyto: sie.reply.gone.x" in shown
    assert "... (500 characters)" in shown and "... 12 more" in shown and "<70 bytes>" in shown
    assert "x" * 201 not in shown
    (whole,) = rows(await sie("show", "first", "--json"))
    assert whole["payload"]["items"] == [{"text": "x" * 500}] * 20
    assert whole["headers"]["ce-replyto"] == "sie.reply.gone.x"
    assert "yesterday" in (await sie("show", "third")).stdout


async def test_a_replay_queues_the_same_work_and_opens_its_job_again(broker: NatsBroker) -> None:
    assert await jobs.result(broker.jobs, "first") is not None
    done = await sie("replay", "first")
    assert done.exit_code == 0, done.output
    assert done.stdout == "Queued first.\n"
    assert await jobs.result(broker.jobs, "first") is None
    assert await jobs.find(broker.jobs, "first") is not None
    async with pulling(broker, "org/model") as taken:
        again = await take(taken)
        assert (again.work.id, again.work.data, again.work.reply_to) == ("first", BODY, "sie.reply.gone.x")
    assert [row["id"] for row in rows(await sie("list", "--json"))] == ["second", "third"]


async def test_a_replay_of_all_goes_on_after_a_failure_and_says_which(broker: NatsBroker) -> None:
    done = await sie("replay", "first", "nowhere", "second")
    assert done.exit_code == 1
    assert "There is no dead letter 'nowhere'" in done.stderr
    assert "first" in done.stdout and "second" in done.stdout
    done = await sie("replay", "--all")
    assert done.exit_code == 0, done.output
    assert (await sie("list")).stdout == "There are no dead letters.\n"


async def test_a_drop_asks_first(broker: NatsBroker) -> None:
    kept = await sie("drop", "--all", "--model", "model", stdin="n\n")
    assert kept.exit_code == 1
    assert "Throw away 3 dead letters for good?" in kept.output
    assert len(await broker.dead.entries()) == 3
    assert (await sie("drop", "second", "--yes")).stdout == "Dropped second.\n"
    assert (await sie("drop", "--all", stdin="y\n")).exit_code == 0
    assert await broker.dead.entries() == []
    assert (await sie("drop", "--all")).stdout == "There are no dead letters.\n"


@pytest.mark.parametrize("verb", ["replay", "drop"])
async def test_without_saying_which_nothing_is_done(verb: str) -> None:
    for words in ([], ["x", "--all"]):
        result = await sie(verb, *words)
        assert result.exit_code == 2
        assert "`sie dlq list` shows them" in result.stderr
    assert (await sie(verb, "x", "--model", "m")).exit_code == 2


@pytest.mark.usefixtures("broker")
async def test_the_server_of_a_running_sie_up_is_found(
    nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SIE_NATS_URL")
    folder = StateFolder(tmp_path / "state")
    with folder.locked():
        record = Record(os.getpid(), "http://x", 1.0, True, nats_url, processes=(ProcessRecord("nats", 1, "ready", 1),))
        folder.write(record)
        assert len(rows(await sie("list", "--json", "--state", str(folder.path)))) == 3


async def test_a_missing_server_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIE_NATS_URL", raising=False)
    nothing = await sie("list", "--state", str(tmp_path))
    assert (nothing.exit_code, "--nats-url" in nothing.stderr, str(tmp_path) in nothing.stderr) == (2, True, True)
    unreachable = await sie("list", "--nats-url", "nats://127.0.0.1:1")
    assert (unreachable.exit_code, "No NATS server answers at nats://127.0.0.1:1" in unreachable.stderr) == (3, True)


async def test_a_password_is_not_printed_and_a_wrong_one_is_told_from_a_missing_server(tmp_path: Path) -> None:
    with running_nats(tmp_path, more="authorization { user: me, password: right }") as nats_url:
        address = nats_url.removeprefix("nats://")
        refused = await sie("list", "--nats-url", f"nats://me:wrong@{address}, nats://me:wrong@127.0.0.1:1")
        assert refused.exit_code == 3
        assert f"NATS at nats://{address},nats://127.0.0.1:1 refuses the user or the password" in refused.stderr
        assert (await sie("list", "--nats-url", f"nats://me:right@{address}")).exit_code == 0
    missing = await sie("list", "--nats-url", "nats://me:wrong@127.0.0.1:1")
    assert (missing.exit_code, "No NATS server answers at nats://127.0.0.1:1" in missing.stderr) == (3, True)
    assert "wrong" not in refused.output + missing.output


async def test_a_server_that_was_never_provisioned_has_no_dead_letters(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIE_NATS_URL", nats_url)
    assert (await sie("list")).stdout == "There are no dead letters.\n"
    assert (await sie("show", "x")).exit_code == 1
