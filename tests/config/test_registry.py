"""The hash of a lane's specs: the same for the same specs, another for any other."""

from __future__ import annotations

import itertools

import msgspec

from sie_config.model_spec import ModelSpec
from sie_config.registry import Registry, lane_of
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
