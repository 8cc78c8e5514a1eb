"""The OpenAPI document and its page: they tell of every route, of nothing else, and the truth."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from openapi_spec_validator import validate

from sie_broker.memory import MemoryBroker
from sie_config.deployment import placement
from sie_ingress.openapi import document
from sie_ingress.openapi.described import DESCRIBED
from sie_ingress.openapi.headers import CODE, RETRY
from sie_ingress.openapi.operation import MODEL
from sie_ingress.openapi.routes import served
from sie_ingress.settings import Settings
from sie_sdk.errors import PoolsUnsupportedError
from sie_sdk.refusals import MAY_PASS
from tests.ingress.conftest import SPEC, SPECS, Desk, opened
from tests.openapi_examples import Sent, examples_of, failures


@pytest.fixture
async def here() -> AsyncIterator[Desk]:
    """A desk on the in-memory broker: nothing here depends on the broker."""
    async with opened(MemoryBroker()) as desk:
        desk.registry.deploy(placement.deployment("cpu"))
        yield desk


async def read(desk: Desk) -> dict[str, Any]:
    answer = await desk.client.get("/openapi.json")
    assert answer.status_code == 200
    read: dict[str, Any] = answer.json()
    return read


async def test_every_route_of_the_application_is_described_and_every_description_has_its_route(here: Desk) -> None:
    assert sorted(served(here.ingress.routes)) == sorted(DESCRIBED)


async def test_the_document_is_valid_openapi(here: Desk) -> None:
    described = await read(here)
    validate(described)
    assert described["openapi"].startswith("3.1")


async def test_every_operation_has_an_id_of_its_own_a_summary_and_a_tag_that_is_told_of(here: Desk) -> None:
    described = await read(here)
    operations = [operation for methods in described["paths"].values() for operation in methods.values()]
    ids = [operation["operationId"] for operation in operations]
    assert len(set(ids)) == len(ids)
    told_of = {tag["name"] for tag in described["tags"]}
    for operation in operations:
        assert operation["summary"]
        assert set(operation["tags"]) <= told_of


async def test_every_example_is_answered_with_the_status_and_the_body_that_it_promises(here: Desk) -> None:
    described = await read(here)

    async def send(sent: Sent) -> httpx.Response:
        return await here.client.request(
            sent.method, sent.target, params=sent.query, headers=sent.headers, content=sent.content
        )

    async with here.worker():
        wrong = [each for sent in examples_of(described) for each in failures(described, sent, await send(sent))]
    assert wrong == []


async def test_an_example_names_a_model_that_is_served_and_offers_what_it_asks_for(here: Desk) -> None:
    described = await read(here)
    for sent in examples_of(described):
        assert MODEL not in f"{sent.target} {sent.headers} {sent.content!r}"
    encode = described["paths"]["/v1/encode/{model}"]["post"]
    assert encode["x-examples"][0]["path"]["model"] == SPEC.id


async def test_every_error_that_may_pass_may_say_when(here: Desk) -> None:
    described = await read(here)
    statuses = set()
    for methods in described["paths"].values():
        for operation in methods.values():
            for status, reply in operation["responses"].items():
                if int(status) in MAY_PASS and CODE.name in reply.get("headers", ()):
                    statuses.add(int(status))
                    assert RETRY.name in reply["headers"], (operation["operationId"], status)
    assert 502 in statuses


def test_without_a_model_for_it_an_example_is_left_out() -> None:
    routes = document.Routes(list(DESCRIBED), DESCRIBED)
    described = msgspec.json.decode(msgspec.json.encode(document.build(routes, Settings(), [SPEC])))
    validate(described)
    score = described["paths"]["/v1/score/{model}"]["post"]
    assert "x-examples" not in score


def test_what_an_application_has_nothing_to_do_with_is_refused_in_its_examples_too() -> None:
    routes = document.Routes(list(DESCRIBED), DESCRIBED, (PoolsUnsupportedError,))
    paths = document.build(routes, Settings(), SPECS)["paths"]
    assert [each["status"] for each in paths["/v1/pools"]["post"]["x-examples"]] == [501]
    assert [each["status"] for each in paths["/v1/pools"]["get"]["x-examples"]] == [200]


def test_the_limits_of_the_settings_in_force_are_in_the_document() -> None:
    routes = document.Routes(list(DESCRIBED), DESCRIBED)
    settings = Settings(max_items=17, max_text_bytes=99)
    schemas = document.build(routes, settings, SPECS)["components"]["schemas"]
    assert schemas["EncodeRequest"]["properties"]["items"]["maxItems"] == 17
    assert schemas["ScoreRequest"]["properties"]["items"]["maxItems"] == 17
    assert schemas["Item"]["properties"]["text"]["anyOf"][0]["maxLength"] == 99


@pytest.mark.parametrize("route", ["/openapi.json", "/docs"])
async def test_who_has_the_document_or_the_page_is_not_sent_it_again(here: Desk, route: str) -> None:
    first = await here.client.get(route)
    again = await here.client.get(route, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert (await here.client.get(route, headers={"If-None-Match": '"other"'})).content == first.content


async def test_the_document_changes_with_the_catalogue(here: Desk) -> None:
    before = await here.client.get("/openapi.json")
    here.registry.remove(SPEC.id)
    after = await here.client.get("/openapi.json", headers={"If-None-Match": before.headers["etag"]})
    assert after.status_code == 200
    assert SPEC.id in before.text
    assert SPEC.id not in after.text


async def test_the_page_needs_nothing_from_elsewhere_and_only_its_own_script_may_run(here: Desk) -> None:
    page = await here.client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert not re.findall(r"(?:src|href)=\"(?:https?:)?//", page.text)
    assert not re.findall(r"@import|\burl\(", page.text)
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    for kind in ("script", "style"):
        (text,) = re.findall(rf"<{kind}>(.*?)</{kind}>", page.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert not re.findall(r"<[^>]+\s(?:style|on\w+)=", page.text.split("<script>")[0])


async def test_the_status_page_leads_to_the_docs(here: Desk) -> None:
    assert 'href="docs"' in (await here.client.get("/")).text
