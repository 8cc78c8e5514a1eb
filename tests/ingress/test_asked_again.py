"""Published clients whose requests take longer than they are held: asked again, they get the answer of the first."""

from __future__ import annotations

import pytest

from sie_broker.records import Lane, Work
from sie_ingress import published
from sie_ingress.asked_again import REMEMBERED, REMEMBERED_S, AskedAgain
from tests.conftest import eventually
from tests.ingress.conftest import EVERYTHING, Desk

SDK = {"X_SIE_SDK_Version": "0.10.1"}
LANE = Lane("default", "default", "cpu")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held for a moment only."""
    monkeypatch.setattr(published, "HELD_S", 0.2)


@pytest.mark.parametrize("count", [1, 300])
async def test_a_request_that_was_let_go_is_computed_once_and_its_repeat_is_answered(
    desk: Desk, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["a" * (place % 9) for place in range(count)]
    async with desk.worker():
        desk.hold.clear()
        late = await desk.encode(*texts, **SDK)
        assert (late.status_code, late.headers["x-sie-error-code"]) == (504, "DEADLINE_EXCEEDED")
        assert float(late.headers["retry-after"]) == 1
        again = await desk.encode(*texts, **SDK)
        assert again.status_code == 504
        monkeypatch.setattr(published, "HELD_S", 30.0)  # as long as it takes
        desk.hold.set()
        works = 1 if count == 1 else 2
        await eventually(lambda: len(desk.computed) == works)
        answered = await desk.encode(*texts, **SDK)
        assert [item["dense"]["values"][0] for item in answered.json()["items"]] == [len(text) for text in texts]
        assert len(desk.computed) == works
        assert (await desk.encode(*texts, **SDK)).status_code == 200
        assert len(desk.computed) == 2 * works, "a new request is computed anew"


async def test_another_request_is_another_job(desk: Desk) -> None:
    async with desk.worker():
        desk.hold.clear()
        assert (await desk.encode("a", **SDK)).status_code == 504
        for different in (
            await desk.encode("b", **SDK),
            await desk.encode("a", X_SIE_Tenant="shop", **SDK),
            await desk.post(f"/v1/encode/{EVERYTHING.id}", {"items": [{"text": "a"}]}, **SDK),
        ):
            assert different.status_code == 504
        await eventually(lambda: len(desk.computed) == 4)


async def test_nobody_is_held_for_longer_than_a_published_client_reads(desk: Desk) -> None:
    async with desk.worker():
        desk.hold.clear()
        answer = await desk.encode("a", Prefer="wait=9", **SDK)
    assert answer.status_code == 504


def test_what_was_let_go_is_forgotten_in_time_and_when_there_is_too_much() -> None:
    now = 0.0
    memory = AskedAgain(lambda: now)

    def work(data: bytes) -> Work:
        return Work(id=f"job-{data!r}", op="encode", lane=LANE, model="m", data=data, time=0.0)

    first = work(b"0")
    memory.let_go(first, [first])
    now = REMEMBERED_S + 1
    assert memory.before(first, [first]) is None
    for number in range(REMEMBERED + 1):
        each = work(str(number).encode())
        memory.let_go(each, [each])
    assert memory.before(first, [first]) is None
    last = work(str(REMEMBERED).encode())
    for _ in range(2):  # it may be refused again for another reason
        found = memory.before(last, [last])
        assert found is not None and found[0].id == last.id
    memory.answered(last, [last])
    assert memory.before(last, [last]) is None
