"""What a profile adds to a request, and what it leaves alone; and what of it is refused with the catalogue."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_config.model import model_spec, runtime_options
from sie_config.model.model_spec import Lora, Profile
from sie_config.model.profile import with_profile
from sie_config.model.sources import LocalSource
from sie_config.model.tasks import Dense, Multivector, Score, Sparse, Tasks
from sie_sdk.errors import ConfigurationError, InvalidInputError, UnknownProfileError
from sie_sdk.types import EncodeParams, EncodeRequest, ExtractParams, ExtractRequest, Item, ScoreRequest
from sie_sdk.wire import Request
from tests.ingress.conftest import EVERYTHING, SPEC, TAGGER

ITEMS = [Item("a")]
COMPACT = {
    "output_dtype": "int8",
    "output_types": ["dense"],
    "normalize": False,
    "activation": "sigmoid",
    "threshold": 0.5,
}
MODEL = msgspec.structs.replace(
    EVERYTHING, tasks=msgspec.structs.replace(EVERYTHING.tasks, extract=TAGGER.tasks.extract, score=Score())
)
PROFILED = msgspec.structs.replace(MODEL, profiles={"compact": Profile(COMPACT), "plain": Profile()})
CHOSEN = PROFILED.with_profile("compact")


def encode(**params: object) -> EncodeRequest:
    return EncodeRequest(ITEMS, msgspec.convert(params, EncodeParams))


def test_a_request_without_a_profile_is_the_same_object() -> None:
    request = encode(options={"normalize": True})
    assert with_profile(request, MODEL) is request
    assert with_profile(request, PROFILED) is request


def test_each_operation_gets_those_of_the_profile_s_options_that_it_reads() -> None:
    assert with_profile(encode(), CHOSEN) == encode(
        output_types=["dense"], output_dtype="int8", options={"normalize": False}
    )
    assert with_profile(ScoreRequest(ITEMS[0], ITEMS), CHOSEN) == ScoreRequest(
        ITEMS[0], ITEMS, options={"activation": "sigmoid"}
    )
    assert with_profile(ExtractRequest(ITEMS), CHOSEN) == ExtractRequest(
        ITEMS, ExtractParams(options={"threshold": 0.5})
    )


def test_the_request_s_own_options_go_before_the_profile_s() -> None:
    own = {"output_types": ["sparse"], "output_dtype": "float16", "options": {"normalize": True, "is_query": True}}
    assert with_profile(encode(**own), CHOSEN) == encode(**own)
    in_options = encode(options={"output_types": ["sparse"], "normalize": True})
    merged = with_profile(in_options, CHOSEN)
    assert merged == encode(output_dtype="int8", options={"output_types": ["sparse"], "normalize": True})


def test_a_profile_is_chosen_by_an_option_too_which_does_not_travel_on() -> None:
    by_option = with_profile(encode(options={"profile": "Compact", "normalize": True}), PROFILED)
    assert by_option == encode(output_types=["dense"], output_dtype="int8", options={"normalize": True})
    assert with_profile(encode(options={"profile": "plain"}), CHOSEN) == encode()
    assert with_profile(ScoreRequest(ITEMS[0], ITEMS, options={"profile": "plain"}), PROFILED).options is None  # type: ignore[union-attr]


def test_the_default_profile_is_no_choice_and_does_not_travel_on_either() -> None:
    assert with_profile(encode(options={"profile": "default"}), MODEL) == encode()
    assert with_profile(encode(options={"profile": None}), MODEL) == encode()
    assert with_profile(encode(options={"profile": "default"}), CHOSEN) == with_profile(encode(), CHOSEN)


def test_a_model_s_own_default_profile_needs_no_choice() -> None:
    spec = msgspec.structs.replace(PROFILED, default_profile="compact")
    assert with_profile(encode(), spec) == with_profile(encode(), CHOSEN)


@pytest.mark.parametrize("kind", ["encode", "score", "extract"])
def test_an_unknown_profile_is_refused_by_the_field_that_chose_it(kind: str) -> None:
    options = {"profile": "none"}
    requests: dict[str, tuple[Request, str]] = {
        "encode": (encode(options=options), "params.options.profile"),
        "score": (ScoreRequest(ITEMS[0], ITEMS, options=options), "options.profile"),
        "extract": (ExtractRequest(ITEMS, ExtractParams(options=options)), "params.options.profile"),
    }
    request, field = requests[kind]
    with pytest.raises(UnknownProfileError) as refused:
        with_profile(request, PROFILED)
    assert refused.value.field == field
    assert refused.value.details["profiles"] == ["default", "compact", "plain"]


@given(st.none() | st.integers() | st.lists(st.text()) | st.dictionaries(st.text(), st.text()))
def test_a_profile_that_is_no_name_is_refused(value: object) -> None:
    if value is None:
        return
    with pytest.raises(InvalidInputError, match="not a string"):
        with_profile(encode(options={"profile": value}), PROFILED)


@pytest.mark.parametrize(
    ("tasks", "mute"),
    [
        (Tasks(dense=Dense(dim=8)), {"muvera"}),
        (Tasks(sparse=Sparse(dim=8)), {"muvera", "normalize", "dimensions", "pooling"}),
        (Tasks(multivector=Multivector(dim=8)), {"normalize", "dimensions", "pooling"}),
        (Tasks(dense=Dense(dim=8), multivector=Multivector(dim=8)), set()),
        (Tasks(score=Score()), set(runtime_options.ENCODE)),
    ],
    ids=["dense", "sparse", "multivector", "two", "none"],
)
def test_encode_has_no_options_for_outputs_that_a_model_lacks(tasks: Tasks, mute: set[str]) -> None:
    assert set(runtime_options.ENCODE) - set(runtime_options.encode(tasks)) == mute


def test_a_judge_has_an_instruction_where_its_template_has_a_place_for_one() -> None:
    judge, silent = Score(kind="yes_no"), Score(kind="yes_no", template="{query} {document}")
    assert "instruction" in runtime_options.score(Tasks(score=judge))
    assert "instruction" not in runtime_options.score(Tasks(score=silent))


NAMES = st.sampled_from(sorted(runtime_options.KNOWN - {"output_types", "output_dtype", "instruction", "lora_id"}))


@given(st.dictionaries(NAMES, st.booleans()), st.dictionaries(NAMES, st.booleans()))
def test_merged_options_are_the_request_s_own_and_nothing_that_the_operation_does_not_read(
    profile: dict[str, bool], own: dict[str, bool]
) -> None:
    spec = msgspec.structs.replace(MODEL, profiles={"p": Profile(profile)})
    merged = with_profile(encode(options={**own, "profile": "p"}), spec)
    assert isinstance(merged, EncodeRequest)
    options = merged.params.options or {}
    assert own.items() <= options.items()
    added = options.keys() - own.keys()
    assert added == {name for name in profile if name in runtime_options.encode(spec.tasks) and name not in own}


LORA = Lora((LocalSource("adapter"),))
ADAPTED = msgspec.structs.replace(
    MODEL, profiles={"law": Profile({"normalize": False}, LORA), "plain": Profile(), "other": Profile(lora=LORA)}
)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, None),
        ({"profile": "law"}, {"lora_id": "law", "normalize": False}),
        ({"profile": "law", "lora_id": "other"}, {"lora_id": "other", "normalize": False}),
        ({"profile": "law", "lora_id": ""}, {"lora_id": "", "normalize": False}),
        ({"lora_id": "law"}, {"lora_id": "law"}),
        ({"lora": "Law"}, {"lora_id": "Law"}),
        ({"profile": "plain"}, None),
    ],
)
def test_a_profile_s_lora_travels_with_the_request(
    options: dict[str, object], wanted: dict[str, object] | None
) -> None:
    merged = with_profile(encode(options=options), ADAPTED)
    assert (merged.params.options or None) == wanted  # type: ignore[union-attr]
    score = with_profile(ScoreRequest(ITEMS[0], ITEMS, options=options), ADAPTED)
    assert (score.options or {}).get("lora_id") == (wanted or {}).get("lora_id")  # type: ignore[union-attr]


def test_a_lora_that_no_profile_declares_is_refused_with_those_that_are_declared() -> None:
    for value in ("plain", "none", 7):
        with pytest.raises(InvalidInputError) as refused:
            with_profile(encode(options={"lora_id": value}), ADAPTED)
        assert refused.value.field == "params.options.lora_id"
        assert refused.value.details["loras"] == ["law", "other"]
    with pytest.raises(InvalidInputError, match="no LoRA 'law'"):
        with_profile(encode(options={"lora": "law"}), MODEL)


def test_a_spec_may_allow_requests_some_options_only_and_its_profiles_all() -> None:
    spec = msgspec.structs.replace(PROFILED, options=("is_query", "lora_id"))
    assert with_profile(encode(options={"is_query": True, "profile": "compact"}), spec) == encode(
        output_types=["dense"], output_dtype="int8", options={"is_query": True, "normalize": False}
    )
    with pytest.raises(InvalidInputError) as refused:
        with_profile(encode(options={"normalize": True}), spec)
    assert refused.value.field == "params.options.normalize" and refused.value.limit == "profile, is_query, lora_id"
    with pytest.raises(InvalidInputError, match="activation"):
        with_profile(ScoreRequest(ITEMS[0], ITEMS, options={"activation": "none"}), spec)


def test_every_option_that_an_operation_reads_has_a_type_and_no_other_has_one() -> None:
    read = {*runtime_options.ENCODE, *runtime_options.PARAMS}
    read |= {*chain(*runtime_options.SCORE.values()), *chain(*runtime_options.EXTRACT.values())}
    assert read == runtime_options.KNOWN


def test_every_option_is_described() -> None:
    docs = Path(__file__).parents[2] / "docs"
    described = (docs / "outputs.md").read_text(), (docs / "extract.md").read_text(), (docs / "http.md").read_text()
    for names, text in zip(
        (
            runtime_options.ENCODE,
            {*chain(*runtime_options.EXTRACT.values())},
            {*chain(*runtime_options.SCORE.values())},
        ),
        described,
        strict=True,
    ):
        assert [name for name in names if f"`{name}`" not in text] == []


def document(**changed: object) -> dict[str, object]:
    written = msgspec.to_builtins(SPEC)
    return {**written, **changed}


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"profiles": {"fast": {"options": {"speed": 1}}}}, "profiles.fast.options.speed: unknown field"),
        ({"profiles": {"fast": {"options": {"output_dtype": "int3"}}}}, "output_dtype: 'int3' is not one of"),
        ({"profiles": {"fast": {"options": {"normalize": "no"}}}}, "normalize: 'no' is not true or"),
        ({"profiles": {"fast": {"options": {"threshold": 2}}}}, "threshold: 2 is not a number from 0"),
        ({"profiles": {"fast": {"options": {"output_types": ["sparse"]}}}}, "the model has no sparse output"),
        ({"profiles": {"fast": {"dims": 1}}}, "profiles"),
        ({"profiles": {"Fast One": {}}}, "profiles"),
        ({"profiles": {"fast": {"options": {"query_template": "q: "}}}}, "query_template: has no place {text}"),
        ({"profiles": {"fast": {"options": {"lora_id": "law"}}}}, "no profile law declares a LoRA"),
        (
            {"tasks": {"dense": {"dim": 4, "query_template": "{query}"}}},
            "tasks.dense.query_template: has a place {query}",
        ),
        ({"default_profile": "fast"}, "default_profile: fast is not among the profiles"),
        ({"default_profile": "fast", "profiles": {"fast": {}, "default": {}}}, "profiles.default: nothing chooses it"),
    ],
)
def test_a_profile_that_could_never_be_used_is_refused_with_the_catalogue(
    changed: dict[str, object], fault: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        model_spec.parse(document(**changed), origin="m.yaml")
    assert fault in str(refused.value)


def test_a_spec_with_profiles_is_read_and_can_be_a_key() -> None:
    spec = model_spec.parse(document(profiles={"fast": {"options": {"normalize": False}}}), origin="m.yaml")
    assert spec.profiles == {"fast": Profile({"normalize": False})}
    assert {spec: 1}[spec.with_profile("default")] == 1
