"""One candidate of ``stack``: a server that reads a small encode body and answers with ready-made bytes.

Runs in an environment of its own, where all candidates are installed: ``python stack_server.py SERVER FRAMEWORK PORT``.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path
from typing import Any

REPLY = (Path(__file__).parent / "stack_server.py").read_bytes()[:1700]
"""As many bytes as the answer to one text of 384 float32 dimensions has."""

HEADERS = [(b"content-type", b"application/msgpack"), (b"content-length", str(len(REPLY)).encode())]


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """The least that ASGI asks for."""
    if scope["type"] != "http":
        return
    more = True
    while more:
        message = await receive()
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": REPLY})


def starlette() -> Any:
    """One route of Starlette."""
    applications, responses = (
        importlib.import_module("starlette.applications"),
        importlib.import_module("starlette.responses"),
    )
    routing = importlib.import_module("starlette.routing")

    async def encode(request: Any) -> Any:
        await request.body()
        return responses.Response(REPLY, media_type="application/msgpack")

    async def ready(request: Any) -> Any:
        return responses.Response(b"ok")

    return applications.Starlette(
        routes=[routing.Route("/v1/encode/{model:path}", encode, methods=["POST"]), routing.Route("/readyz", ready)]
    )


def fastapi() -> Any:
    """The same route of FastAPI; the body is not validated, which would cost more."""
    module, responses = importlib.import_module("fastapi"), importlib.import_module("starlette.responses")
    app = module.FastAPI()

    async def encode(model: str, request: Any) -> Any:
        await request.body()
        return responses.Response(REPLY, media_type="application/msgpack")

    async def ready() -> Any:
        return responses.Response(b"ok")

    encode.__annotations__ = {"model": str, "request": module.Request}
    app.post("/v1/encode/{model:path}", response_model=None)(encode)
    app.get("/readyz", response_model=None)(ready)
    return app


def serve_uvicorn(app: Any, port: int, http: Any, loop: str) -> None:
    """uvicorn as ``sie_broker.process`` sets it up."""
    uvicorn = importlib.import_module("uvicorn")
    config = uvicorn.Config(
        app,
        port=port,
        http=http,
        loop=loop,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        date_header=False,
        proxy_headers=False,
    )
    uvicorn.Server(config).run()


def serve_hypercorn(app: Any, port: int) -> None:
    """hypercorn on uvloop."""
    importlib.import_module("uvloop").install()
    config = importlib.import_module("hypercorn.config").Config()
    config.bind, config.accesslog = [f"127.0.0.1:{port}"], None
    asyncio.run(importlib.import_module("hypercorn.asyncio").serve(app, config))


def serve_granian(app: Any, port: int) -> None:
    """granian, whose HTTP is Rust's hyper; in this process, one worker."""
    embed = importlib.import_module("granian.server.embed")
    server = embed.Server(app, address="127.0.0.1", port=port, interface="asginl")
    importlib.import_module("uvloop").install()
    asyncio.run(server.serve())


def main() -> None:
    """Serve until a signal comes."""
    server, framework, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    app = {"bare": lambda: bare, "starlette": starlette, "fastapi": fastapi}[framework]()
    match server:
        case "hypercorn":
            serve_hypercorn(app, port)
        case "granian":
            serve_granian(app, port)
        case "ours":
            serve_uvicorn(app, port, importlib.import_module("sie_broker.http_protocol").Protocol, "uvloop")
        case _:
            http, _, loop = server.partition("+")
            serve_uvicorn(app, port, http, loop)


if __name__ == "__main__":
    main()
