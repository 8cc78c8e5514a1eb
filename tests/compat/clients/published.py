"""Makes the published sie-sdk do what it is told: a line of JSON in, a line of JSON out, until the input ends.

    {"flavour": "sync", "url": ..., "client": {...}, "calls": [["encode", [...], {...}], ...]}

Owns nothing of what is right: it hands back what each call returned or raised, and what was logged meanwhile. Bytes
come as ``{"$bytes": <base64>}``, long texts as ``{"$text", "$times"}``, arrays as ``{"$array", "dtype"}``; arrays go as
``{"dtype", "shape", "values"}``.
"""

import asyncio
import base64
import inspect
import json
import logging
import sys
import time

import numpy as np

import sie_sdk
from sie_sdk.client import async_, sync


class Kept(logging.Handler):
    """Everything the client tells its user."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


class Waits:
    """How long the client means to wait between its tries, in seconds; it waits, too."""

    def __init__(self):
        self.seconds = []
        slept, slept_async = time.sleep, asyncio.sleep

        def sleep(delay):
            self.seconds.append(delay)
            slept(delay)

        async def sleep_async(delay, result=None):
            self.seconds.append(delay)
            return await slept_async(delay, result)

        time.sleep, asyncio.sleep = sleep, sleep_async


def read(value):
    if isinstance(value, dict):
        if "$bytes" in value:
            return base64.b64decode(value["$bytes"])
        if "$times" in value:
            return value["$text"] * value["$times"]
        if "$array" in value:
            return np.array(value["$array"], value["dtype"])
        return {key: read(inner) for key, inner in value.items()}
    return [read(inner) for inner in value] if isinstance(value, list) else value


def told(value):
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "shape": list(value.shape), "values": value.tolist()}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(key): told(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [told(inner) for inner in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)


def raised(error):
    known = {name: told(inner) for name, inner in vars(error).items()}
    return {"class": type(error).__name__, "message": str(error), **known}


async def outcome(client, method, args, kwargs, waits):
    waits.seconds.clear()
    try:
        value = getattr(client, method)(*read(args), **read(kwargs))
        result = {"value": told(await value if inspect.isawaitable(value) else value)}
    except Exception as error:
        result = {"raised": raised(error)}
    result["waits"] = list(waits.seconds)
    result["retries"] = client.last_retry_count
    result["revision"] = getattr(client, "last_model_revision", None)  # the async client has none
    return result


async def run(program, kept, waits):
    kept.lines.clear()
    for module in (sync, async_):
        module.DEFAULT_LEASE_RENEWAL_INTERVAL_S = program.get("renewal_s", 60.0)
    sie_sdk.SIEClient._version_warning_logged = sie_sdk.SIEAsyncClient._version_warning_logged = False
    try:
        make = sie_sdk.SIEClient if program["flavour"] == "sync" else sie_sdk.SIEAsyncClient
        client = make(program["url"], **program.get("client", {}))
    except Exception as error:
        return {"refused": raised(error)}
    outcomes = []
    for method, args, kwargs in program["calls"]:
        if method == "sleep":
            await asyncio.sleep(*args)
            continue
        outcomes.append(await outcome(client, method, args, kwargs, waits))
    closing = client.close()
    if inspect.isawaitable(closing):
        await closing
    return {"outcomes": outcomes, "log": list(kept.lines)}


def main():
    kept, waits = Kept(), Waits()
    logging.getLogger("sie_sdk").addHandler(kept)
    print(json.dumps({"version": sie_sdk.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(asyncio.run(run(json.loads(line), kept, waits))), flush=True)


if __name__ == "__main__":
    main()
