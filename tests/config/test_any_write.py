"""Whatever is sent to a write: it is done or refused, never half done and never an accident."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sie_config.epochs.state import State
from sie_config.model import model_spec
from sie_sdk.refusals import BY_CODE
from tests.config.served import Service, served
from tests.ingress.conftest import EVERYTHING, SPEC, TAGGER

DOCUMENTS = [model_spec.document(spec) for spec in (SPEC, EVERYTHING, TAGGER)]
NAMES = st.sampled_from(["id", "family", "tasks", "dense", "dim", "sources", "profiles", "options", "owner", "models"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS | st.sampled_from(DOCUMENTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=4), inner, max_size=4),
    max_leaves=10,
)


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """A spec of which something is another, somewhere."""
    document = copy.deepcopy(draw(st.sampled_from(DOCUMENTS)))
    for _ in range(draw(st.integers(0, 3))):
        place = document
        while True:
            name = draw(st.sampled_from(sorted(place)) | NAMES)
            if isinstance(place.get(name), dict) and place[name] and draw(st.booleans()):
                place = place[name]
                continue
            place[name] = copy.deepcopy(draw(VALUES))
            break
    return document


WANTED = st.fixed_dictionaries(
    {"models": st.lists(mutated(), max_size=3)},
    optional={"owner": VALUES, "prune": VALUES, "adopt": VALUES},
)
BODIES = st.one_of(
    st.one_of(mutated(), WANTED, VALUES).map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass")),
    st.lists(mutated() | VALUES, max_size=3).map(lambda every: yaml.safe_dump_all(every, allow_unicode=True).encode()),
    st.binary(max_size=64),
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "Content-Type": st.sampled_from(["application/yaml", "application/json", "text/plain", "text/html", ""]),
        "If-Match": st.sampled_from(["*", '"0"', f'"{model_spec.etag(SPEC)}"', "x", '"1"']),
        "If-None-Match": st.sampled_from(["*", '"0"', "x"]),
        "Idempotency-Key": st.sampled_from(["a", "b", "c" * 200]),
        "X-SIE-Actor": st.sampled_from(["ada", "b" * 200]),
    },
)
PATHS = st.sampled_from([*("models/" + each["id"] for each in DOCUMENTS), "models/org/x", "models/a:b", "models/%00"])
ROUTES = st.one_of(
    st.just(("POST", "models")),
    st.tuples(st.sampled_from(["PUT", "PATCH", "DELETE"]), PATHS),
    st.just(("POST", "apply")),
    st.tuples(
        st.just("POST"),
        st.sampled_from(["rollback/1", "rollback/2", "rollback/0", f"rollback/{'9' * 5000}", "rollback/x"]),
    ),
)
QUERIES = st.sampled_from(
    ["", "", "?dry_run=true", "?owner=a&prune=true", "?dry_run=maybe", "?note=x", "?adopt&owner=b"]
)


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[asyncio.Runner, Service]]:
    """A config service that lives for all examples."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        service = runner.run(stack.enter_async_context(served(TAGGER)))
        try:
            yield runner, service
        finally:
            runner.run(stack.aclose())


@given(ROUTES, QUERIES, HEADERS, BODIES)
def test_a_write_is_done_whole_or_refused_without_a_trace(
    running: tuple[asyncio.Runner, Service],
    route: tuple[str, str],
    query: str,
    headers: dict[str, str],
    content: bytes,
) -> None:
    runner, service = running
    before, digest = service.epoch, service.writer.state.digest
    method, path = route
    answer = runner.run(service.client.request(method, f"/v1/configs/{path}{query}", headers=headers, content=content))
    event = f"{method} {path}{query} {headers} {content[:200]!r}: {answer.status_code} {answer.text[:200]}"
    assert answer.status_code < 500, event
    if answer.status_code >= 400:
        assert answer.json()["error"]["code"] in BY_CODE, event
        assert (service.epoch, service.writer.state.digest) == (before, digest), event
    elif answer.headers.get("idempotency-replayed") or answer.json()["dry_run"]:
        assert service.epoch == before, event
    else:
        assert service.epoch == answer.json()["epoch"] == before + bool(answer.json()["changes"]), event
    again = State(service.writer.state.stored.items(), service.epoch)
    assert again.digest == service.writer.state.digest, event
    for spec in service.writer.state.specs():
        assert model_spec.parse(model_spec.document(spec), origin=spec.id) == spec
