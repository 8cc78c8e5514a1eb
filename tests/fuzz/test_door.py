"""Broken events at a bundle's own door, where the demand holder and Knative knock: an answer or a refusal comes out."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sie_broker.events.envelope import AVAILABLE_TYPE
from sie_broker.events.event_format import STRUCTURED
from sie_sdk import wire
from sie_sdk.refusals import BY_CODE
from tests.bundle.test_door import Bundle
from tests.fuzz import mutations
from tests.fuzz.conftest import share
from tests.fuzz.exchange import Request, ask
from tests.fuzz.mutations import Change, Spoil
from tests.fuzz.test_requests import RICH
from tests.ingress.conftest import MODEL

PAST = "2026-01-01T00:00:00Z"
ATTRIBUTES = {"specversion": "1.0", "id": "1", "source": "/fuzz", "type": "dev.sie.encode.v1", "model": MODEL}
ODD = st.sampled_from(
    ("", "%", "%ff", '"', '"a', "\xff", "a" * 5000, "0001-01-01T00:00:00+23:59", AVAILABLE_TYPE, "dev.sie.score.v1")
)
heads = st.lists(
    st.tuples(
        st.sampled_from(("id", "source", "type", "model", "specversion", "holduntil", "expirytime", "time", "x")), ODD
    ),
    max_size=2,
)


@share(0.05)
@given(
    st.sampled_from([*RICH.values(), {"items": [{"text": "a"}]}]),
    mutations.changes,
    mutations.spoils,
    heads,
    st.sampled_from((wire.JSON, wire.MSGPACK, STRUCTURED, "application/cloudevents-batch+json", "text/plain")),
    st.booleans(),
)
def test_whatever_knocks_is_answered(
    body: Any, changes: list[Change], spoils: list[Spoil], more: list[tuple[str, str]], media: str, hangs_up: bool
) -> None:
    attributes = {**ATTRIBUTES, "holduntil": PAST, **dict(more)}
    value = {**attributes, "data": body} if media == STRUCTURED else body
    for change in changes:
        value = mutations.mutated(value, change)
    content = mutations.encoded(value, media)
    for spoil in spoils:
        content = mutations.spoilt(content, spoil)
    said = {"content-type": media}
    if media != STRUCTURED:
        said |= {f"ce-{name}": each for name, each in attributes.items()}
    headers = tuple((name.encode(), each.encode("latin-1")) for name, each in said.items())

    async def knock() -> None:
        answer = await ask(Bundle().door.app(), Request("POST", "/", headers, [content], hangs_up))
        assert answer.status < 500 or answer.headers["x-sie-error-code"] in BY_CODE, answer
        assert answer.headers.get("x-sie-error-code") != "INTERNAL_ERROR", answer

    asyncio.run(knock())
