"""docs/config.md tells the truth: its requests are sent in their order, and are answered as it shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from sie_config.deployment import placement
from sie_ingress.settings import Settings
from sie_sdk.refusals import BY_CODE
from tests.config.served import served
from tests.ingress.conftest import TAGGER

PAGE = (Path(__file__).parents[2] / "docs/config.md").read_text()
SHOWN = re.compile(r"```http\n(.*?)```\n\n```json (\d+)\n(.*?)```", re.DOTALL)


class Exchange(NamedTuple):
    """A request of the page, and what is shown of its answer."""

    method: str
    target: str
    headers: dict[str, str]
    body: str
    status: int
    answer: Any


def exchange(sent: str, status: str, shown: str) -> Exchange:
    head, _, body = sent.partition("\n\n")
    first, *lines = head.strip().splitlines()
    method, target = first.split()
    headers = dict(line.split(": ", 1) for line in lines)
    return Exchange(method, target, headers, body, int(status), msgspec.json.decode(shown))


EXCHANGES = [exchange(*found) for found in SHOWN.findall(PAGE)]


def missing(shown: Any, answer: Any, path: str = "$") -> list[str]:
    """What of what is shown the answer has not; a field that is not shown may be anything."""
    if isinstance(shown, dict) and isinstance(answer, dict):
        return [
            each for name, value in shown.items() for each in missing(value, answer.get(name, ...), f"{path}.{name}")
        ]
    if isinstance(shown, list) and isinstance(answer, list) and len(shown) == len(answer):
        return [
            each for n, pair in enumerate(zip(shown, answer, strict=True)) for each in missing(*pair, f"{path}[{n}]")
        ]
    return [] if shown == answer else [f"{path}: {shown!r}, and not {answer!r}"]


def test_every_request_of_the_page_has_its_answer() -> None:
    assert len(EXCHANGES) == PAGE.count("```http") > 12


async def test_every_request_is_answered_as_shown() -> None:
    async with served(TAGGER, deployment=placement.deployment("cpu")) as service:
        for each in EXCHANGES:
            answer = await service.client.request(each.method, each.target, headers=each.headers, content=each.body)
            assert answer.status_code == each.status, f"{each.target}: {answer.text}"
            assert missing(each.answer, answer.json()) == [], each.target


def test_every_write_route_has_an_example() -> None:
    shown = {(each.method, each.target.partition("?")[0]) for each in EXCHANGES}
    for method, path in re.findall(r"\| `(POST|PUT|PATCH|DELETE) (/v1/configs/[^`]*)` \|", PAGE):
        if not path.endswith("resolve"):
            form = re.escape(path).replace(r"\{model\}", ".+").replace(r"\{epoch\}", r"\d+")
            assert any(method == sent and re.fullmatch(form, target) for sent, target in shown), (method, path)


@pytest.mark.parametrize("code", re.findall(r"`([A-Z]+_[A-Z_]+)`", PAGE))
def test_every_code_and_setting_of_the_page_is_one(code: str) -> None:
    settings = {f"SIE_{name.upper()}" for name in Settings.__struct_fields__} | {"SIE_MODELS"}
    assert code in BY_CODE or code in settings
