"""What is wrong with a spec is told at once and by its path; what is right is read, what is doubtful is a warning."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sie_config import catalog
from sie_config.model import model_spec, structure, validation
from sie_config.model.model_spec import ModelSpec, Parity, Profile
from sie_config.model.sources import HubSource, LocalSource
from sie_sdk.errors import ConfigurationError
from tests.config.specs import specs

PACKAGED = list(catalog.load().values())
COMMIT = "0" * 40
WRITTEN: dict[str, Any] = {
    "id": "org/model",
    "family": "bert",
    "revision": COMMIT,
    "tasks": {
        "dense": {"dim": 8, "dims": [2, 4]},
        "multivector": {"dim": 4},
        "score": {"kind": "maxsim"},
        "extract": {"kind": "entities", "labels": ["O"]},
    },
    "max_sequence_length": 16,
    "sources": [{"kind": "local", "path": "here"}, {"kind": "hub", "repo": "org/model", "revision": COMMIT}],
    "files": ["1_Dense/model.safetensors"],
    "machine_profiles": ["cpu"],
    "options": ["top_k"],
    "profiles": {
        "fast": {"options": {"dimensions": 2, "output_types": ["dense"], "muvera": {"seed": 1}}},
        "law": {"lora": {"sources": [{"kind": "local", "path": "law"}]}},
    },
    "default_profile": "fast",
    "parity": [{"reference": "transformers 5", "weights": "real", "test": "tests/golden", "cosine": 0.9999}],
    "owner": "search",
}


def changed(path: str, value: Any, document: dict[str, Any] = WRITTEN) -> dict[str, Any]:
    """The document with ``value`` at ``a.b.0.c``; `...` takes away what is there."""
    made: Any = copy.deepcopy(document)
    *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    at: Any = made
    for step in way:
        at = at.setdefault(step, {}) if isinstance(at, dict) else at[step]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    assert isinstance(made, dict)
    return made


def told(document: Any) -> dict[str, str]:
    """The faults by their paths."""
    return {fault.path: fault.message for fault in validation.faults(document)}


def test_a_spec_without_faults_has_none() -> None:
    assert validation.faults(WRITTEN) == []
    assert model_spec.parse(WRITTEN, origin="m.yaml").id == "org/model"


@given(st.sampled_from(PACKAGED) | specs())
def test_every_valid_spec_is_read_back_from_what_is_written_of_it(spec: ModelSpec) -> None:
    written = model_spec.document(spec)
    assert validation.faults(written) == []
    text = yaml.dump(written, Dumper=yaml.CSafeDumper, allow_unicode=True)
    assert model_spec.parse(yaml.load(text, Loader=yaml.CSafeLoader), origin="m.yaml") == spec
    assert model_spec.parse(msgspec.json.decode(msgspec.json.encode(spec)), origin="m.json") == spec
    assert all(str(warning) for warning in validation.warnings(spec, ["bert"]))


@pytest.mark.parametrize(
    ("path", "value", "fault", "message"),
    [
        ("id", "org/a__b", "id", "contains __"),
        ("id", "org/a..b", "id", "contains .."),
        ("id", "org//b", "id", "contains //"),
        ("id", "org/", "id", "ends with /,"),
        ("id", "org/Status", "id", "ends with /status"),
        ("id", "org/./b", "id", "a part that is a dot"),
        ("id", "org/model\n", "id", "is not a name"),
        ("id", "/model", "id", "is not a name"),
        ("id", ..., "id", "missing; it is a name"),
        ("tasks", ..., "tasks", "missing; it is a mapping"),
        ("tasks", {}, "tasks", "names no task; known: dense, sparse"),
        ("tasks", [], "tasks", "a list of 0 is not a mapping"),
        ("tasks.dense.dim", 0, "tasks.dense.dim", "0 is not a whole number of at least 1"),
        ("tasks.dense.dim", "8", "tasks.dense.dim", "'8' is not a whole number"),
        ("tasks.dense.dim", True, "tasks.dense.dim", "true is not a whole number"),
        ("tasks.dense.dim", 1 << 63, "tasks.dense.dim", "is not a whole number"),
        ("tasks.dense.pooling", "Mean", "tasks.dense.pooling", "did you mean mean?"),
        ("tasks.dense.poling", "cls", "tasks.dense.poling", "unknown field; did you mean pooling?"),
        ("tasks.dense.dims", [2, 8], "tasks.dense.dims[1]", "8 is not less than dim, 8"),
        ("tasks.dense.query_template", "{query}", "tasks.dense.query_template", "has a place {query}"),
        ("tasks.dense.document_template", "x", "tasks.dense.document_template", "has no place {text}"),
        ("tasks.score.kind", "cross", "tasks.score.kind", "one of cross_encoder, maxsim, yes_no"),
        ("tasks.score", {"kind": "yes_no", "template": "{query}"}, "tasks.score.template", "has no place {document}"),
        ("tasks.score", {"kind": "yes_no", "template": "{document}"}, "tasks.score.template", "has no place {query}"),
        ("tasks.score", {"kind": "yes_no", "no": False}, "tasks.score.no", "put it in quotes"),
        ("tasks.score", {"kind": "yes_no", True: "yes"}, "tasks.score.True", "put it in quotes"),
        ("tasks.extract.kind", "document", "tasks.extract.kind", "document is computed by nothing here yet"),
        ("tasks.extract.hypothesis", "This.", "tasks.extract.hypothesis", "has no place {}"),
        ("sources", [], "sources", "is not a list of at least 1"),
        ("sources.1.revision", "main", "sources[1].revision", "'main' is not a commit: 40 hex digits"),
        ("sources.1.revision", 1234, "sources[1].revision", "(put it in quotes)"),
        ("sources.1.kind", ..., "sources[1].kind", "missing; it is one of local, hub, package"),
        ("sources.1.kind", "hubb", "sources[1].kind", "'hubb' is not one of local, hub, package"),
        ("sources.1.path", "x", "sources[1].path", "unknown field; known: kind, repo, revision"),
        ("revision", 7, "revision", "(put it in quotes)"),
        ("max_sequence_length", ..., "max_sequence_length", "missing; a ready model"),
        ("max_sequence_length", 0, "max_sequence_length", "missing; a ready model"),
        ("max_sequence_length", float("nan"), "max_sequence_length", "nan is not a whole number"),
        ("max_sequence_lenght", 7, "max_sequence_lenght", "did you mean max_sequence_length?"),
        ("status", "planned", "blocked_by", "missing; a planned model says what it waits for"),
        ("blocked_by", "nothing", "blocked_by", "a ready model waits for nothing"),
        ("inputs", ["text", "image"], "inputs", "image is read by nothing here yet"),
        ("inputs", ["txt"], "inputs[0]", "did you mean text?"),
        ("files", ["../secret"], "files[0]", "a path inside of the model's folder"),
        ("files", ["/etc/passwd"], "files[0]", "a path inside of the model's folder"),
        ("files", ["..\\secret"], "files[0]", "a path inside of the model's folder"),
        ("machine_profiles", ["l 4"], "machine_profiles[0]", "is not a name"),
        ("options", ["top_kk"], "options[0]", "did you mean top_k?"),
        ("default_profile", "fst", "default_profile", "is not among the profiles; did you mean fast?"),
        ("profiles.default", {}, "profiles.default", "nothing chooses it"),
        ("profiles.Fast One", {}, 'profiles["Fast One"]', "the name is not a name"),
        ("profiles.fast.options.speed", 1, "profiles.fast.options.speed", "unknown field; known: is_query"),
        ("profiles.fast.options.top_k", 0, "profiles.fast.options.top_k", "0 is not a whole number of at least 1"),
        ("profiles.fast.options.threshold", 2, "profiles.fast.options.threshold", "2 is not a number from 0 to 1"),
        ("profiles.fast.options.output_types", ["sparse"], "profiles.fast.options.output_types[0]", "no sparse output"),
        ("profiles.fast.options.dimensions", 3, "profiles.fast.options.dimensions", "3 is not one of 2, 4, 8"),
        ("profiles.fast.options.max_seq_length", 17, "profiles.fast.options.max_seq_length", "17 is not at most"),
        ("profiles.fast.options.muvera", {"sed": 1}, "profiles.fast.options.muvera.sed", "did you mean seed?"),
        ("profiles.fast.options.muvera.seed", -1, "profiles.fast.options.muvera.seed", "from 0 to 4294967295"),
        ("profiles.fast.options.flat_ner", False, "profiles.fast.options.flat_ner", "never lie over each other"),
        ("profiles.fast.options.lora_id", "fast", "profiles.fast.options.lora_id", "no profile fast declares a LoRA"),
        ("profiles.fast.options.query_template", "q", "profiles.fast.options.query_template", "has no place {text}"),
        ("profiles.fast.options.hypothesis_template", "q", "profiles.fast.options.hypothesis_template", "no place {}"),
        ("profiles.law.lora.sources", [], "profiles.law.lora.sources", "is not a list of at least 1"),
        ("parity.0.weights", "both", "parity[0].weights", "one of random, real"),
        ("parity.0.cosine", 1.5, "parity[0].cosine", "1.5 is not a number from -1"),
        ("owner", "x" * 65, "owner", "a text of at most 64 characters"),
        ("owner", "\ud800", "owner", "is not a text"),
    ],
)
def test_a_fault_is_told_by_its_path_and_by_nothing_else(path: str, value: Any, fault: str, message: str) -> None:
    faults = told(changed(path, value))
    assert [*faults] == [fault]
    assert message in faults[fault]


def test_a_profile_may_have_texts_as_long_as_the_model_reads() -> None:
    assert validation.faults(changed("profiles.fast.options.max_seq_length", WRITTEN["max_sequence_length"])) == []


def test_a_template_or_a_prompt() -> None:
    both = changed("tasks.dense.query_template", "{text}", changed("tasks.dense.query_prompt", "q: "))
    assert "query_prompt, which is there too" in told(both)["tasks.dense.query_template"]


def test_a_profile_may_have_the_dense_output_that_muvera_makes_of_multivectors() -> None:
    assert validation.faults(changed("tasks.dense", ..., changed("profiles.fast.options.dimensions", ...))) == []


def test_a_profile_may_leave_muvera_out_and_then_has_no_dense_output_by_it() -> None:
    without = changed("profiles.fast.options.muvera", False)
    assert validation.faults(without) == []
    alone = changed("tasks.dense", ..., changed("profiles.fast.options.dimensions", ..., without))
    assert "profiles.fast.options.output_types[0]" in [str(fault.path) for fault in validation.faults(alone)]


def test_a_planned_model_may_be_what_nothing_computes_yet() -> None:
    planned = changed("status", "planned", changed("blocked_by", "GLiNER's span head"))
    for path, value in (("tasks.extract.kind", "document"), ("max_sequence_length", 0), ("inputs", ["image"])):
        planned = changed(path, value, planned)
    assert validation.faults(planned) == []


def test_a_fault_hides_no_rule_that_does_not_need_its_field() -> None:
    document = changed("tasks.dense.pooling", "Mean", changed("tasks.dense.dims", [8]))
    document = changed("profiles.fast.options.normalize", 1, changed("profiles.fast.options.top_k", 0, document))
    document = changed("profiles.5", 7, changed("profiles.fast.options.lora_id", "no", document))
    assert [*told(document)] == [
        "tasks.dense.pooling",
        "profiles.fast.options.normalize",
        "profiles.fast.options.top_k",
        "profiles.5",
        "tasks.dense.dims[0]",
        "profiles.fast.options.dimensions",
        "profiles.fast.options.lora_id",
    ]


@pytest.mark.parametrize("document", [None, [], "id: org/model", 7, [WRITTEN]])
def test_what_is_no_mapping_is_one_fault(document: Any) -> None:
    with pytest.raises(ConfigurationError, match="not a mapping"):
        model_spec.parse(document, origin="m.yaml")


def test_an_error_carries_each_fault_with_its_value_and_what_is_allowed() -> None:
    with pytest.raises(ConfigurationError) as refused:
        model_spec.parse(changed("tasks.dense.dim", 0), origin="m.yaml")
    assert str(refused.value) == (
        "m.yaml is not a valid model spec: tasks.dense.dim: 0 is not a whole number of at least 1."
    )
    assert refused.value.details["faults"] == [
        {
            "path": "tasks.dense.dim",
            "message": "0 is not a whole number of at least 1",
            "value": 0,
            "allowed": "a whole number of at least 1",
        }
    ]


def test_a_hundred_faults_are_told_and_a_million_cost_no_more() -> None:
    faults = validation.faults(changed("options", ["top_kk"] * 1_000_000))
    assert len(faults) == validation.MOST + 1
    assert str(faults[-1]) == "more faults: these are the first 100"


# -- mutations ---------------------------------------------------------------------------------------------------------

JUNK = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=3)
    | st.dates()
    | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.text(max_size=3) | st.integers() | st.none(), st.integers(), max_size=2)
)


def places(value: Any, path: structure.Path = ()) -> Iterator[structure.Path]:
    """Every place in a document."""
    if path:
        yield path
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, held in steps:
        yield from places(held, (*path, step))


def with_junk(document: dict[str, Any], path: structure.Path, junk: Any) -> dict[str, Any]:
    made: Any = copy.deepcopy(document)
    at = made
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = junk
    assert isinstance(made, dict)
    return made


@given(st.data())
def test_junk_anywhere_is_told_by_its_path_and_never_crashes(data: st.DataObject) -> None:
    document = model_spec.document(data.draw(specs()))
    path = data.draw(st.sampled_from([*places(document)]))
    mutated = with_junk(document, path, data.draw(JUNK))
    faults = validation.faults(mutated)
    assert all(msgspec.json.encode(fault) for fault in faults)
    if not faults:
        assert model_spec.parse(mutated, origin="m.yaml") is not None
        return
    try:
        msgspec.convert(mutated, ModelSpec)
    except msgspec.ValidationError:
        at = structure.spelled(path)
        assert any(fault.path == at or fault.path.startswith((f"{at}.", f"{at}[")) for fault in faults), (at, faults)


@pytest.mark.parametrize("path", ["tasks.dense.dim", "revision", "sources", "profiles.fast.options.muvera"])
def test_a_number_too_long_for_a_text_is_told_by_its_bits(path: str) -> None:
    huge = 1 << 20_000
    assert "a number of 20001 bits" in "".join(told(changed(path, huge)).values())
    assert told({**changed(path, {huge: huge}), huge: huge})


def test_a_whole_number_too_large_for_a_number_is_a_fault() -> None:
    evidence = {"reference": "a", "weights": "real", "test": "t", "cosine": 10**400}
    assert "is not a number" in told(changed("parity", [evidence]))["parity[0].cosine"]


@given(st.data())
def test_the_faults_of_two_fields_are_told_together(data: st.DataObject) -> None:
    document = model_spec.document(data.draw(specs()))
    fields = [path for path in places(document) if len(path) == 1]
    one, other = data.draw(st.lists(st.sampled_from(fields), min_size=2, max_size=2, unique=True))
    junk = object()  # of no type at all
    paths = {fault.path for fault in validation.faults(with_junk(with_junk(document, one, junk), other, junk))}
    assert {structure.spelled(one), structure.spelled(other)} <= paths


@given(st.data())
def test_an_unknown_field_is_told_wherever_it_is(data: st.DataObject) -> None:
    document = model_spec.document(data.draw(specs()))
    maps = [path for path in places({"spec": document}) if isinstance(held(document, path[1:]), dict)]
    path = data.draw(st.sampled_from([path[1:] for path in maps if path[-1] != "profiles"]))
    unknown = (*path, "Colour")
    assert structure.spelled(unknown) in told(with_junk(document, unknown, "red"))


def held(document: Any, path: structure.Path) -> Any:
    """What stands at a path."""
    for step in path:
        document = document[step]
    return document


# -- warnings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        ({"parity": ()}, "parity: nothing shows"),
        ({"parity": (Parity("transformers 5", "random", "tests/golden"),)}, "parity: its architecture was compared"),
        ({"licence": "unknown"}, "licence: unknown"),
        ({"parameters": 0}, "parameters: unknown"),
        ({"bytes": 0}, "bytes: unknown"),
        ({"sources": (LocalSource("here"),)}, "sources: only folders"),
        ({"revision": "main"}, "revision: no commit"),
        ({"sources": (HubSource("org/model", "1" * 40),)}, "sources[0].revision: another commit"),
        (
            {"family": "brt"},
            "family: brt is no family of this build, so that an adapter has to bring it; did you mean bert?",
        ),
        ({"profiles": {"fast": Profile({"threshold": 0.5})}}, "profiles.fast.options.threshold: read by no operation"),
        ({"options": ("top_k",)}, "options[0]: read by no operation"),
    ],
)
def test_what_is_doubtful_is_a_warning(change: dict[str, Any], warning: str) -> None:
    sound: dict[str, Any] = {
        "id": "org/model",
        "family": "bert",
        "tasks": {"dense": {"dim": 8}},
        "max_sequence_length": 16,
        "revision": COMMIT,
        "licence": "mit",
        "parameters": 1,
        "bytes": 4,
        "sources": [{"kind": "hub", "repo": "org/model", "revision": COMMIT}],
        "parity": [{"reference": "transformers 5", "weights": "real", "test": "tests/golden"}],
    }
    spec = model_spec.parse(sound, origin="m.yaml")
    assert validation.warnings(spec, ["bert"]) == []
    doubtful = [str(each) for each in validation.warnings(msgspec.structs.replace(spec, **change), ["bert"])]
    assert any(each.startswith(warning) for each in doubtful), doubtful
