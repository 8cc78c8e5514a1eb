"""``python -m bench.noop_server PORT``: answers an encode request with a vector for each text, made beforehand.

As little as HTTP allows, so that what is measured is who asks.
"""

from __future__ import annotations

import asyncio
import re
import sys
from functools import cache
from typing import cast

import msgspec
import numpy as np
import uvloop

from sie_sdk import replies
from sie_sdk.outputs import DenseOutput
from sie_sdk.types import Timing, Usage

DIMS = 384

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_body = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_items = msgspec.msgpack.Decoder(list[msgspec.Raw])


@cache
def answer(count: int) -> bytes:
    """The whole reply of so many vectors."""
    rows = np.random.default_rng(count).standard_normal((count, DIMS), np.float32)
    body = replies.encode("noop", [None] * count, {"dense": DenseOutput(rows, DIMS, "float32")}, Timing(), Usage())
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/msgpack\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


class Connection(asyncio.Protocol):
    """One keep-alive connection."""

    def __init__(self) -> None:
        self._data = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self._data, 0, end + 2)
            total = end + 4 + (int(length[1]) if length else 0)
            if len(self._data) < total:
                return
            body = bytes(self._data[end + 4 : total])
            del self._data[:total]
            count = len(_items.decode(_body.decode(body)["items"])) if body else 0
            self._transport.write(answer(count))


async def main() -> None:
    """Serve until the process is ended."""
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
