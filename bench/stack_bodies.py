"""How long reading and checking the body of an encode takes, by library; prints JSON for ``stack``, where it runs.

"Checked" means the same everywhere: items is a list of maps whose text is a str, params a map; unknown keys ignored.
"""

from __future__ import annotations

import importlib
import json
import timeit
from collections.abc import Callable
from functools import partial
from typing import Any

from sie_sdk import wire

TEXT = "A short sentence to embed, of some twelve tokens."


def checked(unpack: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """What one writes by hand behind an untyped decoder."""

    def read(body: bytes) -> Any:
        request = unpack(body)
        if not isinstance(request, dict) or not isinstance(request.get("items"), list):
            raise ValueError("items")
        for item in request["items"]:
            if not isinstance(item, dict) or not isinstance(item.get("text"), str):
                raise ValueError("text")
        if not isinstance(request.get("params", {}), dict):
            raise ValueError("params")
        return request

    return read


def pydantic_json() -> Callable[[bytes], Any]:
    """What a FastAPI route with a model does with JSON; it has no msgpack."""
    pydantic = importlib.import_module("pydantic")
    item: Any = pydantic.create_model("Item", text=(str, ...), id=(str | None, None))
    fields = {"items": (list.__class_getitem__(item), ...), "params": (dict[str, Any] | None, None)}
    request = pydantic.create_model("Request", **fields)
    read: Callable[[bytes], Any] = request.model_validate_json
    return read


def main() -> None:
    """Time every library and print the rows."""
    msgpack, ormsgpack = importlib.import_module("msgpack"), importlib.import_module("ormsgpack")
    readers: list[tuple[str, str, Callable[[bytes], Any]]] = [
        ("msgspec, typed, all limits checked (in use)", "msgpack", lambda body: wire.parse_encode(body, wire.MSGPACK)),
        ("msgpack and checks by hand", "msgpack", checked(msgpack.unpackb)),
        ("ormsgpack and checks by hand", "msgpack", checked(ormsgpack.unpackb)),
        ("JSON: msgspec, typed, all limits checked (in use)", "json", lambda body: wire.parse_encode(body, wire.JSON)),
        ("JSON: pydantic, typed", "json", pydantic_json()),
        ("JSON: json and checks by hand", "json", checked(json.loads)),
    ]
    rows = []
    for name, form, read in readers:
        row = [name]
        for texts in (1, 256):
            request = {"items": [{"text": TEXT} for _ in range(texts)], "params": {"output_types": ["dense"]}}
            body = msgpack.packb(request) if form == "msgpack" else json.dumps(request).encode()
            number = 20_000 // texts
            best = min(timeit.repeat(partial(read, body), number=number, repeat=5))
            row.append(f"{best / number * 1e6:.1f}")
        rows.append(row)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
