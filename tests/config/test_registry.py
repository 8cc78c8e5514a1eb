"""The registry: hashes of lanes, specs of a short while ago, and changes that leave it as if it were built anew."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sie_broker.records import Lane
from sie_config.model.model_spec import ModelSpec, Profile, etag
from sie_config.model_name import ModelName, parse
from sie_config.past_specs import MOST
from sie_config.registry import Registry, lane_of
from sie_sdk.errors import SIEError
from tests.ingress.conftest import EVERYTHING, RERANKER, SPEC, TAGGER

LANE = lane_of(SPEC)
SPECS = (SPEC, RERANKER, TAGGER)


def hash_of(*specs: ModelSpec) -> str:
    return Registry(specs).hash_of(LANE)


def test_the_same_specs_have_the_same_hash_in_any_order_and_after_a_way_through_json() -> None:
    assert len({hash_of(*order) for order in itertools.permutations(SPECS)}) == 1
    copies = [msgspec.json.decode(msgspec.json.encode(spec), type=ModelSpec) for spec in SPECS]
    assert hash_of(*copies) == hash_of(*SPECS)
    assert len(hash_of(*SPECS)) == 16


def test_any_change_of_the_lane_s_specs_changes_it_and_none_of_another_lane_does() -> None:
    registry = Registry(SPECS)
    seen = [registry.hash_of(LANE)]
    registry.put(msgspec.structs.replace(SPEC, revision="1"))
    seen.append(registry.hash_of(LANE))
    registry.put(EVERYTHING)
    seen.append(registry.hash_of(LANE))
    registry.remove(TAGGER.id)
    seen.append(registry.hash_of(LANE))
    assert len(set(seen)) == len(seen)
    registry.put(msgspec.structs.replace(TAGGER, bundle="elsewhere"))
    assert registry.hash_of(LANE) == seen[-1]
    registry.replace(SPECS)
    assert registry.hash_of(LANE) == seen[0]


def test_a_lane_without_specs_has_none() -> None:
    assert hash_of() == ""


def test_a_model_that_is_only_planned_needs_no_queue() -> None:
    planned = msgspec.structs.replace(RERANKER, status="planned", blocked_by="a head")
    registry = Registry([SPEC, planned])
    assert list(registry.queues()) == [(LANE, SPEC.id)]
    assert not registry.waits_in(planned.id, LANE) and registry.waits_in(SPEC.id.upper(), LANE)


def test_a_spec_is_known_by_its_etag_for_ten_minutes_after_it_was_replaced_or_removed() -> None:
    now = 0.0
    registry = Registry([SPEC], clock=lambda: now)
    newer = msgspec.structs.replace(SPEC, revision="1")
    first, second = etag(SPEC), etag(newer)
    assert registry.etag(SPEC.id.upper()) == first and registry.version(SPEC.id, first) == SPEC
    registry.put(newer)
    now = 300.0
    registry.remove(newer.id)
    assert registry.etag(SPEC.id) == "" and registry.waits_in(SPEC.id, LANE)
    assert (registry.version(SPEC.id, first), registry.version(SPEC.id, second)) == (SPEC, newer)
    assert registry.version(SPEC.id, "0" * 16) is None and registry.version("org/other", first) is None
    now = 601.0
    assert (registry.version(SPEC.id, first), registry.version(SPEC.id, second)) == (None, newer)
    now = 901.0
    assert registry.version(SPEC.id, second) is None and not registry.waits_in(SPEC.id, LANE)


def test_a_spec_that_is_back_and_gone_again_is_known_from_then_on() -> None:
    now = 0.0
    registry = Registry([SPEC], clock=lambda: now)
    registry.remove(SPEC.id)
    now = 400.0
    registry.put(SPEC)
    registry.remove(SPEC.id)
    now = 800.0
    assert registry.version(SPEC.id, etag(SPEC)) == SPEC


def test_of_many_past_specs_the_oldest_are_forgotten_first() -> None:
    registry = Registry(clock=lambda: 0.0)
    specs = [msgspec.structs.replace(SPEC, revision=str(number)) for number in range(MOST + 3)]
    for spec in specs:
        registry.put(spec)
    known = [registry.version(SPEC.id, etag(spec)) is not None for spec in specs]
    assert known == [False] * 2 + [True] * (MOST + 1)


def test_work_for_a_model_that_moved_may_wait_where_it_was() -> None:
    registry = Registry([SPEC])
    moved = msgspec.structs.replace(SPEC, pool="team")
    registry.put(moved)
    assert registry.waits_in(SPEC.id, LANE) and registry.waits_in(SPEC.id, lane_of(moved))
    assert list(registry.queues()) == [(lane_of(moved), SPEC.id)]


def test_what_changes_nothing_is_no_change() -> None:
    registry = Registry(SPECS)
    epoch, first = registry.epoch, registry.resolve(SPEC.id)
    registry.put(msgspec.json.decode(msgspec.json.encode(SPEC), type=ModelSpec))
    registry.replace(reversed(SPECS))
    registry.remove("org/absent")
    assert registry.epoch == epoch and registry.resolve(SPEC.id) is first


IDS = ("org/a", "Org/A", "other/a", "a", "org/b", "org/b-large", "b", "third/b-large")
ALIASES = {"nick": "org/a", "quick": "org/b:fast", "b": "org/a", "there": "elsewhere:/b-large", "lost": "no/where"}
NAMES = [
    f"{bundle}{name}{profile}"
    for bundle in ("", "elsewhere:/", "nowhere:/")
    for name in ("org/a", "other/a", "a", "B", "org/b", "org/b-large", "b-large", "nick", "quick", "there", "lost")
    for profile in ("", ":fast", ":default", ":slow")
]


class ChangingRegistry(RuleBasedStateMachine):
    """A registry that changes step by step answers like one that is built anew, and both like the rule itself."""

    def __init__(self) -> None:
        super().__init__()
        self.specs: dict[str, ModelSpec] = {}
        self.changing = Registry((), ALIASES)

    @rule(
        model=st.sampled_from(IDS),
        revision=st.sampled_from("12"),
        bundle=st.sampled_from(["default", "elsewhere"]),
        profiles=st.sampled_from([{}, {"fast": Profile({"normalize": False})}]),
        status=st.sampled_from(["ready", "planned"]),
    )
    def put(self, model: str, **fields: Any) -> None:
        spec = msgspec.structs.replace(SPEC, id=model, **fields)
        self.specs[model.lower()] = spec
        self.changing.put(spec)

    @rule(model=st.sampled_from(IDS))
    def remove(self, model: str) -> None:
        self.specs.pop(model.lower(), None)
        self.changing.remove(model)

    @rule(models=st.sets(st.sampled_from(IDS)), revision=st.sampled_from("12"))
    def replace(self, models: set[str], revision: str) -> None:
        specs = [msgspec.structs.replace(SPEC, id=model, revision=revision) for model in models]
        self.specs = {spec.id.lower(): spec for spec in specs}
        self.changing.replace(specs)

    @rule(name=st.sampled_from(NAMES))
    def resolve(self, name: str) -> None:
        """Fills what is remembered."""
        assert answer(self.changing, name) == answer(self.anew, name)

    @property
    def anew(self) -> Registry:
        return Registry(self.specs.values(), ALIASES)

    @invariant()
    def it_answers_like_one_that_is_built_anew(self) -> None:
        changing, anew = self.changing, self.anew
        assert changing.specs() == anew.specs() == sorted(self.specs.values(), key=lambda spec: spec.id)
        assert changing.bundles() == anew.bundles() == sorted({spec.bundle for spec in self.specs.values()})
        assert list(changing.queues()) == list(anew.queues())
        assert list(changing.dangling()) == list(anew.dangling())
        for lane in (LANE, Lane(LANE.pool, "elsewhere", LANE.profile)):
            assert changing.hash_of(lane) == anew.hash_of(lane)
        for spec in self.specs.values():
            assert changing.aliases_of(spec.id) == anew.aliases_of(spec.id)
            assert changing.version(spec.id, changing.etag(spec.id)) == spec

    @invariant()
    def every_name_leads_where_the_rule_says(self) -> None:
        anew = self.anew
        for name in NAMES:
            found = answer(self.changing, name)
            assert found == answer(anew, name)
            led = self.led(name)
            served = led is not None and led.status == "ready"  # a planned one is refused
            assert (found if isinstance(found, ModelSpec) else None) == (led if served else None)

    def led(self, name: str) -> ModelSpec | None:
        """What a name leads to, looked up in all specs."""
        wanted = parse(name)
        spec = self.whole(wanted.model)
        if wanted.model in ALIASES and (aliased := self.chosen(parse(ALIASES[wanted.model]))) is not None:
            spec = aliased
        return None if spec is None else self.of(spec, wanted)

    def chosen(self, wanted: ModelName) -> ModelSpec | None:
        spec = self.whole(wanted.model)
        return None if spec is None else self.of(spec, wanted)

    def of(self, spec: ModelSpec, wanted: ModelName) -> ModelSpec | None:
        if wanted.bundle not in ("", spec.bundle):
            return None
        if wanted.profile in ("", "default", spec.default_profile):
            return spec
        known = wanted.profile in spec.profiles
        return msgspec.structs.replace(spec, default_profile=wanted.profile) if known else None

    def whole(self, name: str) -> ModelSpec | None:
        short = [spec for key, spec in self.specs.items() if key.rsplit("/", 1)[-1] == name]
        return self.specs.get(name) or (short[0] if len(short) == 1 else None)


def answer(registry: Registry, name: str) -> ModelSpec | tuple[str, str, object]:
    """The spec, or all that the error says."""
    try:
        return registry.resolve(name)
    except SIEError as error:
        return error.code, str(error), error.details


TestChangingRegistry = ChangingRegistry.TestCase
TestChangingRegistry.settings = settings(max_examples=60, stateful_step_count=12, deadline=None)
