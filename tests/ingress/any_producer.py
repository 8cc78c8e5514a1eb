"""Events as anybody sends them, and an ingress with a sink server behind it; for the tests of both ways in."""

from __future__ import annotations

import asyncio
import json
import re
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from sie_broker.contract import Broker
from sie_broker.events.allow_list import AllowList
from sie_broker.events.event_format import BATCH, STRUCTURED
from sie_broker.events.sinks import Dispatcher
from sie_sdk import wire
from sie_sdk.types import EncodeRequest, Item
from tests.broker.sink_double import Received, SinkServer
from tests.ingress.conftest import MODEL, Desk, opened

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ROUTE = "/v1/events"


def event(event_id: str = "e 1", *texts: str, **attributes: Any) -> dict[str, Any]:
    """An encode event in structured mode; attributes that are None are left out."""
    made: dict[str, Any] = {
        "specversion": "1.0",
        "id": event_id,
        "source": "/producer",
        "type": "dev.sie.encode.v1",
        "model": MODEL,
        "datacontenttype": wire.JSON,
        "data": {"items": [{"text": text} for text in texts or ("four",)]},
    } | attributes
    return {name: value for name, value in made.items() if value is not None}


def packed(*texts: str) -> dict[str, str]:
    """Data in msgpack, as the attributes of an event in structured mode."""
    data = wire.request_body(EncodeRequest([Item(text=text) for text in texts]))
    return {"datacontenttype": wire.MSGPACK, "data_base64": b64encode(data).decode()}


def binary(structured: Mapping[str, Any]) -> tuple[dict[str, str], bytes]:
    """The same event in binary mode over HTTP, written out by hand."""
    held = dict(structured)
    headers = {"Content-Type": held.pop("datacontenttype")} if "datacontenttype" in held else {}
    body = json.dumps(held.pop("data")).encode() if "data" in held else b""
    return headers | {f"ce-{name}": str(value).replace(" ", "%20") for name, value in held.items()}, body


class Office:
    """A desk, a sink server that its ingress may send to, and the dispatcher between them."""

    def __init__(self, desk: Desk, sink: SinkServer) -> None:
        self.desk = desk
        self.sink = sink

    async def post(self, sent: Mapping[str, Any], **headers: str) -> httpx.Response:
        """In binary mode."""
        own, body = binary(sent)
        return await self.desk.client.post(ROUTE, content=body, headers=own | _named(headers))

    async def structured(self, sent: object, **headers: str) -> httpx.Response:
        """In structured mode."""
        own = {"Content-Type": f"{STRUCTURED}; charset=utf-8"}
        return await self.desk.client.post(ROUTE, content=json.dumps(sent), headers=own | _named(headers))

    async def batch(self, *sent: object, **headers: str) -> httpx.Response:
        """In a batch."""
        own = {"Content-Type": BATCH}
        return await self.desk.client.post(ROUTE, content=json.dumps(sent), headers=own | _named(headers))

    async def job(self, answer: httpx.Response) -> httpx.Response:
        """The result of the job that a 202 names."""
        assert answer.status_code == 202, answer.text
        return await self.desk.client.get(answer.headers["location"], headers={"Prefer": "wait=10"})

    async def queued(self) -> int:
        """Work that waits."""
        return sum((await self.desk.broker.backlog()).values())


def _named(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@asynccontextmanager
async def office(broker: Broker, **settings: Any) -> AsyncIterator[Office]:
    """Open one; its dispatcher runs."""
    sink = SinkServer()
    async with sink.running() as url, opened(broker, reply_sinks=url, **settings) as desk:
        dispatching = asyncio.create_task(Dispatcher(broker, AllowList(url, "_INBOX.")).run())
        try:
            yield Office(desk, sink)
        finally:
            dispatching.cancel()
            with suppress(asyncio.CancelledError):
                await dispatching


def lengths(received: Received | httpx.Response) -> list[float]:
    """What the stand-in for encode says of the texts."""
    body = received.body if isinstance(received, Received) else received.content
    return [item["dense"]["values"][0] for item in json.loads(body)["items"]]


async def until_queued(at: Office, count: int = 1) -> None:
    """Return when so much work waits."""
    end = time.monotonic() + 10
    while await at.queued() != count:
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


def examples(beginning: str) -> list[str]:
    """The commands of docs/events.md that begin like this, with a model of ours."""
    page = (Path(__file__).parent.parent.parent / "docs" / "events.md").read_text()
    found = re.findall(rf"(?ms)^```\n({re.escape(beginning)}.*?)^```", page)
    return [re.sub(r"(sentence-transformers/)?all-MiniLM-L6-v2", MODEL, command) for command in found]


async def shell(command: str) -> str:
    """What it prints."""
    run = await asyncio.create_subprocess_exec(
        "bash", "-c", command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    printed, _ = await run.communicate()
    assert run.returncode == 0
    return printed.decode()
