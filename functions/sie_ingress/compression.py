"""Compressed bodies, both ways: ``Content-Encoding`` of requests, ``Accept-Encoding`` of answers; gzip and zstd.

Owns what is worth compressing and the bounds of what is unpacked. Measured (bench/README.md: bytes left and MB/s of one
core): JSON 0.15 to 0.44 at 290 to 1090 MB/s with zstd, 0.18 to 0.50 at 87 to 350 with gzip; msgpack of scores, entities
and bits 0.18 to 0.40; of float vectors 0.88, float16 0.84, int8 0.76, sparse 0.71. Higher levels take up to ten times
as long for nothing. So text is compressed, and msgpack if a sample of it shrinks; never what fits into the first flight
of a connection anyway; and nothing large on the event loop.
"""

from __future__ import annotations

import asyncio
import io
import sys
import zlib
from functools import lru_cache, partial
from typing import Final, Literal, cast, get_args

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sie_ingress.beside import one_at_a_time
from sie_sdk import wire
from sie_sdk.errors import InvalidInputError, PayloadTooLargeError, UnsupportedMediaTypeError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Encoding = Literal["zstd", "gzip"]
ENCODINGS: Final[tuple[Encoding, ...]] = get_args(Encoding)
"""Of those that a caller likes equally well, the first is taken."""

SMALLEST_BYTES = 14_600
"""Ten segments: what a server sends before it waits for the first acknowledgement (RFC 6928)."""
ON_LOOP_BYTES = 64 * 1024
"""What is compressed without a thread: a quarter of a millisecond."""
SAMPLE_BYTES = 8 * 1024
WORTH = 0.6
"""Msgpack is compressed if its sample shrinks to less than this; no array of numbers does."""

MOST_FRAMES = 4096
"""Gzip members or zstd frames of one request body; what writes them in parallel makes them of 64 KiB or more."""

LEVEL = 1
_GZIP = 16 + zlib.MAX_WBITS
_PIECE_BYTES = 64 * 1024
_WINDOW_LOG = 23
"""8 MiB, the most that is asked of a decoder (RFC 9659)."""


# -- requests ----------------------------------------------------------------------------------------------------------


def encoding_of(content_encoding: str) -> Encoding | None:
    """How a body with this ``Content-Encoding`` is to be unpacked; None: it is as it is.

    Raises:
        UnsupportedMediaTypeError: not at all.
    """
    name = content_encoding.strip().lower()
    if name in ("", "identity"):
        return None
    for encoding in ENCODINGS:
        if name in (encoding, f"x-{encoding}"):
            return encoding
    raise UnsupportedMediaTypeError(
        f"Bodies with the encoding {name[:40]} are not read.",
        field="Content-Encoding",
        limit=", ".join(ENCODINGS),
        hint=f"Send {' or '.join(ENCODINGS)}, or the body as it is.",
        accept_encoding=list(ENCODINGS),
    )


async def unpacked(body: bytes, encoding: Encoding, limit: int) -> bytes:
    """The body a packed one stands for; never more than ``limit`` bytes of it are made.

    Raises:
        PayloadTooLargeError: it is larger.
        InvalidInputError: it is broken, or ends too early.
    """
    return await one_at_a_time(partial(unpack, body, encoding, limit))


def unpack(body: bytes, encoding: Encoding, limit: int) -> bytes:
    """As `unpacked`, here and now. A body may be of several gzip members or zstd frames one after the other."""
    whole, frames, opened = io.BytesIO(), 0, None
    try:
        for start in range(0, len(body), _PIECE_BYTES):  # what a frame leaves over is copied: of a piece, not of it all
            piece = body[start : start + _PIECE_BYTES]
            while piece:
                if opened is None:
                    opened, frames = _decompressor(encoding), frames + 1
                    if frames > MOST_FRAMES:
                        raise InvalidInputError("The body has too many frames.", field="body", limit=MOST_FRAMES)
                whole.write(opened.decompress(piece, limit + 1 - whole.tell()))
                if whole.tell() > limit:
                    raise _too_large(limit)
                piece, opened = (opened.unused_data, None) if opened.eof else (b"", opened)
    except (zlib.error, zstd.ZstdError) as error:
        raise InvalidInputError(f"The body is not valid {encoding}: {error}.", field="body") from None
    if opened is not None:
        raise InvalidInputError(f"The {encoding} body ends too early.", field="body")
    return whole.getvalue()


def _too_large(limit: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(
        f"The request body unpacks to over {limit} bytes.",
        field="body",
        limit=limit,
        hint="Send fewer items per request.",
    )


def _decompressor(encoding: Encoding) -> zstd.ZstdDecompressor:
    if encoding == "gzip":
        return cast("zstd.ZstdDecompressor", zlib.decompressobj(_GZIP))  # of both the same three names are used
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})


# -- answers -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def chosen(accept_encoding: str) -> Encoding | None:
    """The encoding a caller with this ``Accept-Encoding`` is to get; None: it wants none, or none that is here."""
    weights: dict[str, float] = {}
    for part in accept_encoding.lower().split(","):
        name, _, parameters = part.partition(";")
        key, _, value = parameters.replace(" ", "").partition("=")
        try:
            weights[name.strip()] = float(value) if key == "q" else 1.0
        except ValueError:
            weights[name.strip()] = 0.0
    liked = {encoding: weights.get(encoding, weights.get("*", 0.0)) for encoding in ENCODINGS}
    best = max(ENCODINGS, key=lambda encoding: liked[encoding])
    return best if liked[best] > 0 else None


def is_text(content_type: str) -> bool:
    """Whether bodies of this type are text, which always shrinks."""
    essence = content_type.partition(";")[0].strip().lower()
    return essence.startswith("text/") or essence == wire.JSON or essence.endswith("+json")


def pack(body: bytes, encoding: Encoding, content_type: str) -> bytes | None:
    """The body compressed; None where that is not worth it."""
    if not is_text(content_type):
        middle = max(0, len(body) - SAMPLE_BYTES) // 2
        sample = body[middle : middle + SAMPLE_BYTES]
        if len(zstd.compress(sample, LEVEL)) > WORTH * len(sample):
            return None
    if encoding == "zstd":
        return zstd.compress(body, LEVEL)
    return zlib.compress(body, LEVEL, wbits=_GZIP)


class Compressed:
    """ASGI middleware: an answer that is large enough and shrinks is sent compressed to callers that accept it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        held: tuple[Message, str, Encoding] | None = None

        async def compressed(message: Message) -> None:
            nonlocal held
            if message["type"] == "http.response.start":
                if kind := _worth_a_look(message):
                    message["headers"] = [*message["headers"], (b"vary", b"Accept-Encoding")]
                    if encoding := _accepted(scope):
                        held = message, kind, encoding
                        return  # its headers depend on the body
            elif held is not None:
                (start, kind, encoding), held = held, None
                await send(await _packed(start, message, kind, encoding))
            await send(message)

        return await self._app(scope, receive, compressed)


def _worth_a_look(start: Message) -> str:
    """The content type of an answer that may be compressed; empty for all others."""
    kind = ""
    for name, value in reversed(start["headers"]):  # where starlette adds these two, so that small answers cost nothing
        if name == b"content-length":
            if int(value) < SMALLEST_BYTES:
                return ""
        elif name == b"content-type":
            kind = value.decode("latin-1")
        elif name == b"content-encoding":
            return ""
    return kind if is_text(kind) or kind == wire.MSGPACK else ""


def _accepted(scope: Scope) -> Encoding | None:
    values = [value.decode("latin-1") for name, value in scope["headers"] if name == b"accept-encoding"]
    return chosen(",".join(values))


async def _packed(start: Message, message: Message, kind: str, encoding: Encoding) -> Message:
    """The start of the answer, once ``message`` has its body compressed, if that is the whole of it."""
    body: bytes = message.get("body", b"")
    if message.get("more_body") or len(body) < SMALLEST_BYTES:
        return start
    large = len(body) > ON_LOOP_BYTES
    packed = await asyncio.to_thread(pack, body, encoding, kind) if large else pack(body, encoding, kind)
    if packed is None:
        return start
    message["body"] = packed
    kept = [(name, value) for name, value in start["headers"] if name != b"content-length"]
    told = [(b"content-encoding", encoding.encode()), (b"content-length", str(len(packed)).encode())]
    return {**start, "headers": [*kept, *told]}
