"""The one way into the catalogue: what a write does, whose counts, and what history can bring back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sie_broker.contract import Broker, Bucket
from sie_broker.jetstream import atomic
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.memory import MemoryBucket
from sie_broker.records import Put
from sie_config.epochs import store
from sie_config.epochs.mirror import Mirror
from sie_config.epochs.store import Event, Recorded, Stored
from sie_config.epochs.writer import MOST_CHANGES, Request, Writer
from sie_config.model.model_spec import ModelSpec
from sie_config.registry import Registry
from sie_sdk.errors import (
    ConfigurationError,
    ConfigWriterBusyError,
    InvalidInputError,
    NotFoundError,
    QueueUnavailableError,
)
from tests.config.writing import writing
from tests.conftest import eventually
from tests.ingress.conftest import SPEC

OTHER = msgspec.structs.replace(SPEC, id="org/other")
CHANGED = msgspec.structs.replace(SPEC, max_sequence_length=8)


async def put(
    writer: Writer,
    *specs: ModelSpec | Mapping[str, ModelSpec | None],
    gone: tuple[str, ...] = (),
    dry_run: bool = False,
) -> Event | None:
    wanted: dict[str, ModelSpec | None] = dict.fromkeys(gone)
    for each in specs:
        wanted |= {each.id: each} if isinstance(each, ModelSpec) else each
    event = await writer.write(lambda _: wanted, actor="a test", kind="put", dry_run=dry_run)
    assert not isinstance(event, Recorded)
    return event


async def as_stored(bucket: Bucket) -> Mirror:
    """What a reader that starts now sees."""
    mirror = Mirror(bucket, Registry())
    await mirror.snapshot()
    return mirror


async def test_a_write_is_one_epoch_with_what_it_changed(broker: Broker) -> None:
    async with writing(broker, SPEC) as writer:
        event = await put(writer, CHANGED, OTHER)
        assert event is not None and event.epoch == 2
        assert [
            (each.model, each.before and each.before.spec, each.after and each.after.spec) for each in event.changes
        ] == [
            (SPEC.id, SPEC, CHANGED),
            (OTHER.id, None, OTHER),
        ]
        assert await writer.event(2) == event
        assert [each.epoch for each in await writer.history()] == [2, 1]
        assert (await as_stored(broker.config)).state.mark == writer.state.mark


async def test_what_changes_nothing_is_no_epoch(broker: Broker) -> None:
    async with writing(broker, SPEC) as writer:
        assert await put(writer, SPEC) is None
        assert await put(writer, gone=("org/absent",)) is None
        assert writer.state.epoch == 1


async def test_a_dry_run_tells_the_event_and_writes_nothing(broker: Broker) -> None:
    async with writing(broker, SPEC) as writer:
        before = await broker.config.entries(store.MODELS)
        event = await put(writer, OTHER, dry_run=True)
        assert event is not None and event.epoch == 2
        assert await broker.config.entries(store.MODELS) == before
        assert writer.state.epoch == 1


async def test_a_model_of_the_baseline_that_is_deleted_stays_so_over_a_start(broker: Broker) -> None:
    async with writing(broker, SPEC, OTHER) as writer:
        await put(writer, gone=(SPEC.id,))
        assert writer.state.specs() == [OTHER]
    async with writing(broker, SPEC, OTHER) as writer:
        assert writer.state.specs() == [OTHER]
        await put(writer, SPEC)
        assert writer.state.specs() == [SPEC, OTHER]


async def test_an_upgrade_changes_the_baseline_and_never_what_was_written(broker: Broker) -> None:
    newer = msgspec.structs.replace(SPEC, max_sequence_length=99)
    async with writing(broker, SPEC, OTHER) as writer:
        await put(writer, msgspec.structs.replace(OTHER, max_sequence_length=7))
    async with writing(broker, newer, msgspec.structs.replace(OTHER, max_sequence_length=5)) as writer:
        assert [spec.max_sequence_length for spec in writer.state.specs()] == [99, 7]
    async with writing(broker, newer) as writer:
        assert [spec.max_sequence_length for spec in writer.state.specs()] == [99, 7]


async def test_a_large_baseline_is_seeded_in_several_epochs(broker: Broker) -> None:
    many = [msgspec.structs.replace(SPEC, id=f"org/model-{number:04}") for number in range(1000)]
    async with writing(broker, *many) as writer:
        assert writer.state.epoch == 5
        reader = await as_stored(broker.config)
        assert reader.state.specs() == many
        assert reader.state.mark == writer.state.mark


async def test_more_than_one_write_may_hold_is_refused(broker: Broker) -> None:
    many = [msgspec.structs.replace(SPEC, id=f"org/model-{number:04}") for number in range(MOST_CHANGES + 1)]
    async with writing(broker) as writer:
        with pytest.raises(InvalidInputError) as caught:
            await put(writer, *many)
        assert caught.value.limit == MOST_CHANGES
        assert writer.state.epoch == 0
        assert await put(writer, *many[1:]) is not None


async def test_queues_come_before_the_entries_that_need_them(broker: Broker) -> None:
    async with writing(broker) as writer:
        seen: list[tuple[str, int]] = []

        async def provision(specs: object) -> None:
            assert isinstance(specs, list)
            entries = await broker.config.entries(store.MODELS)
            seen.extend((spec.id, len(entries)) for spec in specs)

        writer._provision = provision
        await put(writer, SPEC)
        assert seen == [(SPEC.id, 0)]


async def test_a_writer_whose_queues_are_refused_leads_once_they_are_not(broker: Broker) -> None:
    refusals = [ConfigurationError("The broker refuses CONSUMER.CREATE."), None]

    async def provision(specs: object) -> None:
        if refusals and (refusal := refusals.pop(0)) is not None:
            raise refusal

    await broker.provision([])
    mirror = Mirror(broker.config, Registry(), baseline={SPEC.id: SPEC})
    writer = Writer(broker.config, mirror, provision)
    leading = asyncio.create_task(writer.run())
    await eventually(lambda: writer.leading)
    assert writer.state.specs() == [SPEC] and not refusals
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


async def test_an_answer_is_known_by_its_idempotency_key(broker: Broker) -> None:
    async with writing(broker) as writer:
        request = Request("key/1 *", "digest", lambda event: (201, f"epoch {event and event.epoch}".encode()))
        await writer.write(lambda _: {SPEC.id: SPEC}, actor="", kind="put", request=request)
        assert await writer.request("key/1 *") == Recorded("digest", 201, b"epoch 1", 1)
        assert await writer.request("another") is None


async def test_edits_at_the_same_time_are_each_done_on_the_state_before_them(broker: Broker) -> None:
    async with writing(broker, SPEC) as writer:

        def longer(state: object) -> Mapping[str, ModelSpec]:
            stored = writer.state.get(SPEC.id)
            assert stored is not None and stored.spec is not None
            length = stored.spec.max_sequence_length + 1
            return {SPEC.id: msgspec.structs.replace(stored.spec, max_sequence_length=length)}

        await asyncio.gather(*(writer.write(longer, actor="", kind="patch") for _ in range(20)))
        assert writer.state.epoch == 21
        assert writer.state.specs()[0].max_sequence_length == SPEC.max_sequence_length + 20


async def test_the_state_of_any_epoch_can_be_read_back(broker: Broker) -> None:
    async with writing(broker, SPEC) as writer:
        states = {1: dict(writer.state.stored)}
        for specs, gone in [((OTHER,), ()), ((CHANGED,), ()), ((), (OTHER.id,)), ((), (SPEC.id,)), ((SPEC, OTHER), ())]:
            await put(writer, *specs, gone=gone)
            states[writer.state.epoch] = dict(writer.state.stored)
        for epoch, stored in states.items():
            assert await writer.at(epoch) == stored
        for epoch in (0, 7):
            with pytest.raises(NotFoundError):
                await writer.at(epoch)
        await broker.config.delete(store.event_key(3))
        assert await writer.at(4) == states[4]
        with pytest.raises(NotFoundError, match="does not reach back"):
            await writer.at(2)


async def test_a_write_that_was_not_answered_is_found_done(broker: Broker) -> None:
    async with writing(broker, SPEC) as writer:
        commit = writer._bucket.commit

        async def unheard(puts: list[Put], checks: Mapping[str, int]) -> list[int] | None:
            await commit(puts, checks)
            raise QueueUnavailableError("The broker does not answer.")

        writer._bucket.commit = unheard  # type: ignore[method-assign, assignment]
        event = await put(writer, OTHER)
        assert event is not None and writer.state.specs() == [SPEC, OTHER]
        writer._bucket.commit = commit  # type: ignore[method-assign]
        assert (await put(writer, CHANGED) or event).epoch == 3


async def test_a_write_that_was_lost_is_said_to_be(broker: Broker) -> None:
    async with writing(broker, SPEC) as writer:
        commit = writer._bucket.commit

        async def lost(puts: list[Put], checks: Mapping[str, int]) -> list[int] | None:
            raise QueueUnavailableError("The broker does not answer.")

        writer._bucket.commit = lost  # type: ignore[method-assign, assignment]
        with pytest.raises(ConfigWriterBusyError):
            await put(writer, OTHER)
        writer._bucket.commit = commit  # type: ignore[method-assign]
        assert writer.state.specs() == [SPEC]
        assert await put(writer, OTHER) is not None


async def test_a_writer_that_dies_after_any_message_of_its_batch_has_changed_nothing(nats_url: str) -> None:
    broker = NatsBroker(nats_url, name="first")
    await broker.connect()
    async with writing(broker, SPEC) as writer:
        token, revision = writer._lease.token, (await broker.config.read(store.EPOCH)).revision
        event = writer._event(lambda _: {OTHER.id: OTHER, CHANGED.id: CHANGED}, "", "put", "")
        assert event is not None
        puts = [
            Put(store.EPOCH, store.encode(writer.state.after(event)), revision),
            *(Put(store.model_key(each.model), store.encode(each.after)) for each in event.changes if each.after),
            Put(store.event_key(event.epoch), store.encode(event)),
        ]
        messages = atomic._messages("$KV.sie_config.", puts, {store.LEASE: token})
        before = await broker.config.entries()
        for sent in range(1, len(messages)):  # all but the last, which commits
            dying = NatsBroker(nats_url, name="dying")
            await dying.connect()
            for subject, value, headers in messages[:sent]:
                batch = headers["Nats-Batch-Id"] + str(sent)
                await dying.nc.publish(subject, value, headers=headers | {"Nats-Batch-Id": batch})
            await dying.nc.flush()
            await dying.close()
            after = await broker.config.entries()
            assert {**after, store.LEASE: b""} == {**before, store.LEASE: b""}
        assert await put(writer, OTHER, CHANGED) is not None
        assert (await as_stored(broker.config)).state.mark == writer.state.mark
    await broker.close()


class Held:
    """A lease that is ours."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.token = 0

    async def lead(self, act: Callable[[], Awaitable[None]]) -> None:
        self.token = await self._bucket.replace(store.LEASE, b"us", 0) or 0
        await act()


MODELS = ("org/a", "org/b", "org/c", "org/d")
BASELINE = {model: msgspec.structs.replace(SPEC, id=model) for model in MODELS[:2]}
WISHES = st.dictionaries(st.sampled_from(MODELS), st.none() | st.integers(1, 3), min_size=1, max_size=3)
STEPS = st.lists(WISHES | st.integers(1, 20), max_size=12)
"""A write, by model its length or None to delete it; or an epoch to go back to."""


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.mark.timeout(900)
@settings(max_examples=10_000, deadline=None)
@given(STEPS)
def test_random_histories_of_writes_and_rollbacks_go_as_a_model_of_them_says(
    runner: asyncio.Runner,
    steps: list[dict[str, int | None] | int],
) -> None:
    runner.run(_history(steps))


async def _history(steps: list[dict[str, int | None] | int]) -> None:
    bucket = MemoryBucket()
    mirror = Mirror(bucket, Registry(), baseline=BASELINE)

    async def provision(specs: object) -> None:
        pass

    writer = Writer(bucket, mirror, provision, lease=Held(bucket))  # type: ignore[arg-type]
    task = asyncio.create_task(writer.run())
    while not writer.leading:  # noqa: ASYNC110  # in memory it takes a few turns of the loop
        await asyncio.sleep(0)
    expected: dict[str, ModelSpec] = dict(BASELINE)
    past = {1: expected}
    for step in steps:
        if isinstance(step, int) and step not in past:
            continue
        stored: dict[str, Stored] = await writer.at(step) if isinstance(step, int) else {}
        target = past[step] if isinstance(step, int) else expected | _specs(step)
        target = {model: spec for model, spec in target.items() if spec is not None}
        wanted: dict[str, ModelSpec | None] = dict.fromkeys(MODELS)
        if isinstance(step, int):
            wanted |= {each.spec.id: each.spec for each in stored.values() if each.spec is not None}
        else:
            wanted = _specs(step)
        event = await put(writer, wanted)
        assert (event is None) == (target == expected)
        expected = target
        past[writer.state.epoch] = expected
        assert {spec.id: spec for spec in writer.state.specs()} == expected
    reader = Mirror(bucket, Registry())
    await reader.snapshot()
    assert {spec.id: spec for spec in reader.state.specs()} == expected
    assert reader.state.mark == writer.state.mark
    again = Writer(bucket, Mirror(bucket, Registry(), baseline=BASELINE), provision, lease=Held(bucket))  # type: ignore[arg-type]
    await again._mirror.snapshot()
    assert not again.state.seed(), "a start would change what was written"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _specs(wishes: Mapping[str, int | None]) -> dict[str, ModelSpec | None]:
    return {
        model: None if length is None else msgspec.structs.replace(SPEC, id=model, max_sequence_length=length)
        for model, length in wishes.items()
    }
