"""Answers that become JSON: refused above a size, and below it made in less memory than the ingress's pod has."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sie_broker.contract import Broker
from sie_config.deployment.machine_profile import amount
from sie_ingress.settings import Settings
from sie_sdk import wire
from tests.congruence.test_payloads import MIB
from tests.ingress.conftest import opened
from tests.ingress.test_large import LIMITS, Large, lengths, post

BASE = Path(__file__).parents[2] / "knative/base/ingress.yaml"
WRITES = """
import asyncio, sys
from pathlib import Path
import numpy as np
import sie_ingress.__main__
from sie_broker import merge
from sie_broker.records import Reply
from sie_ingress import events
from sie_ingress.answer import Answers
from sie_ingress.dialects import cohere_embed, openai, vectors
from sie_sdk import replies
from sie_sdk.outputs import DenseOutput
from sie_sdk.types import Timing, Usage

LIMIT, ITEMS, DIMS = int(sys.argv[2]), 256, 1024
PARTS = LIMIT // (ITEMS * (4 * DIMS + 80))
TEXTS = ["text"] * ITEMS * PARTS
WRITE = {
    "ours": replies.to_json,
    "openai": lambda data: openai.written(data, vectors.in_numbers),
    "openai base64": lambda data: openai.written(data, vectors.in_base64),
    "cohere": lambda data: cohere_embed._written(data, "0" * 32, TEXTS, cohere_embed.TYPES, 2, False),
    "event": lambda data: events._written(Reply("j", data), "application/json", "/v1/jobs/j", 0, None, structured=True),
}[sys.argv[1]]

def part(number):
    rows = np.random.default_rng(number).standard_normal((ITEMS, DIMS), dtype=np.float32)
    output = {"dense": DenseOutput(rows, DIMS, "float32")}
    return Reply(f"j-{number}", replies.encode("m", [None] * ITEMS, output, Timing(), Usage()))

parts = [part(number) for number in range(PARTS)]
whole = merge.merge("j", parts, [ITEMS] * PARTS)
assert 0.9 * LIMIT < len(whole.data) <= LIMIT
asyncio.run(Answers(None, None, LIMIT).in_json(whole.data, WRITE))
print(Path("/proc/self/status").read_text())
"""
"""One answer as large as may be, in parts and whole, made JSON as its route does it."""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell it elsewhere")
@pytest.mark.parametrize("dialect", ["ours", "openai", "openai base64", "cohere", "event"])
def test_the_largest_answer_becomes_json_in_the_memory_that_the_pod_has(dialect: str) -> None:
    (container,) = yaml.safe_load(BASE.read_text())["spec"]["template"]["spec"]["containers"]
    command = [sys.executable, "-c", WRITES, dialect, str(Settings().max_json_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = re.search(r"VmHWM:\s+(\d+) kB", done.stdout)  # what getrusage tells begins with that of whoever started it
    assert found is not None
    assert int(found[1]) * 1024 < 0.8 * amount(container["resources"]["limits"]["memory"])


async def test_an_answer_too_large_for_json_says_so_and_is_there_in_msgpack(broker: Broker) -> None:
    operation = Large(30_000)
    async with opened(broker, **LIMITS | {"max_json_bytes": MIB}) as desk, desk.worker(operation):
        refused = await post(desk, ["a", "bb", "ccc"], Accept=wire.JSON, Idempotency_Key="k")
        again = await post(desk, ["a", "bb", "ccc"], Accept=wire.MSGPACK, Idempotency_Key="k")
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (413, "PAYLOAD_TOO_LARGE")
    assert (error["param"], error["limit"]) == ("items", MIB)
    assert "Accept: application/msgpack" in error["hint"]
    assert lengths(again) == [1, 2, 3]
    assert len(operation.computed) == 1, "it is not computed again"
