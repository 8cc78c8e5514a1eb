"""What the published sie-sdk's two clients read of models, capacity and status: ``capacity.py URL MODEL``."""

import asyncio
import itertools
import json
import sys
import time

from sie_sdk import SIEAsyncClient, SIEClient

URL, MODEL = sys.argv[1:]
SPELLINGS = (MODEL, MODEL.upper(), f"default:/{MODEL}:default", MODEL.replace("/", "%2F"), MODEL.split("/")[1], "house")
MODES = ("auto", "cluster", "worker")


def refused(call):
    try:
        call()
    except Exception as error:
        return {"class": type(error).__name__, "code": error.code, "status": error.status_code, "message": str(error)}
    return None


def loaded(client):
    """What is there once the model is loaded, too: capacity is there before it."""
    end = time.monotonic() + 60
    while not all(model["loaded"] for model in client.list_models()) and time.monotonic() < end:
        time.sleep(0.05)
    return client.wait_for_capacity("cpu", timeout_s=30, poll_interval_s=0.2)


def blocking():
    with SIEClient(URL) as client:
        return {
            "capacity_for_a_model": client.wait_for_capacity("cpu", model=MODEL, timeout_s=60),
            "waited": loaded(client),
            "models": client.list_models(),
            "spellings": [client.get_model(name) for name in SPELLINGS],
            "unknown": refused(lambda: client.get_model("org/nothing")),
            "capacity": client.get_capacity(),
            "of_cpu": client.get_capacity(gpu="CPU"),
            "of_l4": client.get_capacity(gpu="l4"),
            "frames": {mode: list(itertools.islice(client.watch(mode=mode), 2)) for mode in MODES},
        }


async def frames(client, mode):
    seen = []
    async for frame in client.watch(mode=mode):
        seen.append(frame)
        if len(seen) == 2:
            break
    return seen


async def awaited():
    async with SIEAsyncClient(URL) as client:
        return {
            "capacity_for_a_model": await client.wait_for_capacity("cpu", model=MODEL, timeout_s=60),
            "waited": await client.wait_for_capacity("cpu", timeout_s=30, poll_interval_s=0.2),
            "models": await client.list_models(),
            "spellings": [await client.get_model(name) for name in SPELLINGS],
            "unknown": None,
            "capacity": await client.get_capacity(),
            "of_cpu": await client.get_capacity(gpu="CPU"),
            "of_l4": await client.get_capacity(gpu="l4"),
            "frames": {mode: await frames(client, mode) for mode in MODES},
        }


print(json.dumps({"blocking": blocking(), "awaited": asyncio.run(awaited())}))
