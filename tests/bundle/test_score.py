"""The score operation on small models: the three kinds of scorer, ids and ranks, and what is refused."""

from __future__ import annotations

import shutil
from copy import copy
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sie_bundle.engine import native
from sie_bundle.models.model import EncoderModel
from sie_bundle.operations import encode, score
from sie_config.model import template
from sie_config.model.tasks import Dense, Multivector, Score, Tasks
from sie_sdk import results, wire
from sie_sdk.errors import InputTooLongError, InvalidInputError, ModelLoadFailedError
from sie_sdk.types import EncodeParams, EncodeRequest, Item, ScoreRequest, ScoreResult, Timing, Usage
from tests import tiny_model
from tests.bundle.test_families import load as random_model
from tests.golden import random_models

DOCUMENTS = ["hello world", "ship", "lighthouse ship world hello", ""]


@pytest.fixture(scope="module")
def cross(tmp_path_factory: pytest.TempPathFactory) -> tuple[EncoderModel, Path]:
    folder = tmp_path_factory.mktemp("cross")
    model = random_model("bert-reranker", folder)
    model.spec = msgspec.structs.replace(model.spec, tasks=Tasks(score=Score()))
    return model, folder


@pytest.fixture(scope="module")
def late(tiny_folder: Path) -> EncoderModel:
    tasks = Tasks(multivector=Multivector(dim=32, projection=""), score=Score(kind="maxsim"))
    return tiny_model.load(msgspec.structs.replace(tiny_model.spec(tiny_folder), tasks=tasks), tiny_folder)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> tuple[EncoderModel, Path]:
    folder = tmp_path_factory.mktemp("judge")
    model = random_model("qwen3-reranker", folder)
    task = Score(kind="yes_no", template="{query} {document}", prefix="abc ", suffix=" no")
    model.spec = msgspec.structs.replace(model.spec, tasks=Tasks(score=task))
    return model, folder


def instructed(judge: EncoderModel) -> EncoderModel:
    """The same with a place for an instruction."""
    task = Score(kind="yes_no", template="{instruction} {query} {document}", prefix="abc ", suffix=" no")
    model = copy(judge)
    model.spec = msgspec.structs.replace(judge.spec, tasks=Tasks(score=task))
    return model


def run(model: EncoderModel, query: Item | str, items: list[Item] | list[str], **fields: Any) -> ScoreResult:
    request = ScoreRequest(
        query=Item(text=query) if isinstance(query, str) else query,
        items=[Item(text=item) if isinstance(item, str) else item for item in items],
        **fields,
    )
    plan = score.plan(model, model.spec, score.parse(wire.request_body(request)))
    outputs = model.forward(plan.rows, {head: range(len(plan.rows)) for head in plan.heads}) if plan.rows else {}
    return results.read_score(plan.finish(outputs, Timing(), Usage()))


def by_index(result: ScoreResult) -> list[float]:
    return [entry.score for entry in sorted(result.scores, key=lambda entry: entry.index)]


def test_a_cross_encoder_reads_query_and_document_as_one_row(cross: tuple[EncoderModel, Path]) -> None:
    model, folder = cross
    found = run(model, "hello ship", DOCUMENTS)
    expected = []
    for document in DOCUMENTS:
        (own,) = model.tokenizer.pairs("hello ship", [document], 40)
        types = [int(place >= own.second) for place in range(len(own))]
        assert own.second < len(own), "a pair has two kinds of tokens"
        logits = random_models.reference("bert-reranker", folder, own.ids.tolist(), types)["logits"]
        expected.append(float(logits[0]))
    assert np.allclose(by_index(found), expected, atol=2e-5)
    assert [entry.rank for entry in found.scores] == [0, 1, 2, 3]
    assert sorted(by_index(found), reverse=True) == [entry.score for entry in found.scores]


@pytest.mark.parametrize("kernels", [native.KEPT, None], ids=["compiled", "torch"])
def test_a_checkpoint_with_one_type_of_text_has_it_for_both_of_a_pair(
    cross: tuple[EncoderModel, Path], tmp_path: Path, kernels: Path | None
) -> None:
    scores = []
    tensors = load_file(cross[1] / "model.safetensors")
    (name,) = (name for name in tensors if "token_type" in name)
    for types in (tensors[name][:1], tensors[name][[0, 0]]):
        folder = shutil.copytree(cross[1], tmp_path / str(len(types)))
        save_file(tensors | {name: types}, folder / "model.safetensors")
        scores.append(by_index(run(tiny_model.load(cross[0].spec, folder, kernels=kernels), "hello", DOCUMENTS)))
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)


def test_of_two_logits_the_score_is_what_the_second_has_more(tmp_path: Path) -> None:
    model = random_model("bert-nli", tmp_path / "three")
    folder = shutil.copytree(tmp_path / "three", tmp_path / "two")
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {name: tensor[:2] if name.startswith("classifier.") else tensor for name, tensor in tensors.items()},
        folder / "model.safetensors",
    )
    config = msgspec.json.decode((folder / "config.json").read_bytes())
    (folder / "config.json").write_bytes(msgspec.json.encode(config | {"id2label": {"0": "no", "1": "yes"}}))
    spec = msgspec.structs.replace(model.spec, tasks=Tasks(score=Score()))
    found = by_index(run(tiny_model.load(spec, folder), "hello ship", DOCUMENTS))
    for document, score_found in zip(DOCUMENTS, found, strict=True):
        (own,) = model.tokenizer.pairs("hello ship", [document], 40)
        types = [int(place >= own.second) for place in range(len(own))]
        logits = random_models.reference("bert-nli", tmp_path / "three", own.ids.tolist(), types)["logits"]
        assert score_found == pytest.approx(float(logits[1] - logits[0]), abs=2e-5)


def test_a_classifier_of_three_labels_scores_nothing(tmp_path: Path) -> None:
    model = random_model("bert-nli", tmp_path)
    model.spec = msgspec.structs.replace(model.spec, tasks=Tasks(score=Score()))
    with pytest.raises(ModelLoadFailedError, match="computes 3 numbers"):
        run(model, "hello", DOCUMENTS)


def test_items_keep_their_ids_and_those_without_are_numbered(cross: tuple[EncoderModel, Path]) -> None:
    found = run(cross[0], Item(text="ship", id="q"), [Item(text="hello", id="mine"), Item(text="world")])
    assert {entry.item_id for entry in found.scores} == {"mine", "item-1"} and found.query_id == "q"


def test_a_sigmoid_keeps_the_order_and_stays_between_zero_and_one(cross: tuple[EncoderModel, Path]) -> None:
    logits = by_index(run(cross[0], "hello", DOCUMENTS))
    found = by_index(run(cross[0], "hello", DOCUMENTS, options={"activation": "sigmoid"}))
    assert np.allclose(found, 1 / (1 + np.exp(-np.array(logits))), atol=1e-6)


def test_scores_far_out_do_not_overflow_the_sigmoid() -> None:
    found = score._activated(np.array([-1e4, 0, 1e4], dtype=np.float32), "sigmoid")
    assert found.tolist() == [0.0, 0.5, 1.0]


def test_a_judge_says_the_logit_of_yes_less_that_of_no(judge: tuple[EncoderModel, Path]) -> None:
    model, folder = judge
    found = by_index(run(model, "hello", ["ship", "world world"]))
    yes, no = model.tokenizer.id("yes"), model.tokenizer.id("no")
    for value, document in zip(found, ["ship", "world world"], strict=True):
        (own,) = model.tokenizer.framed("abc ", [[f"hello {document}"]], " no", 40)
        last = random_models.reference("qwen3-reranker", folder, own.ids.tolist())["logits"][-1]
        assert abs(value - float(last[yes] - last[no])) < 2e-4


def test_what_frames_a_judges_question_is_never_cut(judge: tuple[EncoderModel, Path]) -> None:
    model, _ = judge
    short = model.tokenizer.framed("abc ", [["hello"]], " no", 40)[0].ids.tolist()
    long = model.tokenizer.framed("abc ", [["hello " * 100]], " no", 40)[0].ids.tolist()
    assert len(long) == 40
    assert long[:2] == short[:2] and long[-2:] == short[-2:]


def test_a_limit_that_leaves_no_room_between_a_judges_frame_is_refused_with_the_least(
    judge: tuple[EncoderModel, Path],
) -> None:
    least = len(judge[0].tokenizer.framed("abc ", [[""]], " no", 40)[0].ids) + 1
    long = [Item(text="hello " * 100)]
    error = refused(judge[0], Item(text="ship"), long, options={"max_seq_length": least - 3})
    assert error.field == "options.max_seq_length" and error.limit is not None
    assert len(run(judge[0], "ship", long, options={"max_seq_length": int(error.limit)}).scores) == 1


def test_a_judges_query_that_would_be_gigabytes_beside_its_documents_is_refused(
    judge: tuple[EncoderModel, Path],
) -> None:
    many = [Item(text="ship")] * 1000
    assert refused(judge[0], Item(text="hello " * 4000), many).field == "query.text"
    assert refused(instructed(judge[0]), Item(text="hello"), many, instruction="Find. " * 4000).field == "instruction"


def test_a_query_with_braces_is_taken_as_it_is(judge: tuple[EncoderModel, Path]) -> None:
    task = judge[0].spec.tasks.score
    assert task is not None
    assert template.filled(task.template, query="{document}", document="ship") == "{document} ship"


def test_maxsim_sums_the_best_match_of_each_query_token(late: EncoderModel) -> None:
    found = by_index(run(late, "hello ship", DOCUMENTS))
    rows = late.tokenizer.rows(["hello ship", *DOCUMENTS], 32)
    query, *documents = [np.asarray(own) for own in late.forward(rows, {"multivector": range(5)})["multivector"]]
    assert np.allclose(found, [(query @ own.T).max(axis=1).sum() for own in documents], atol=1e-5)


@pytest.mark.parametrize(
    "prompts",
    [
        {"query_prompt": "hello ", "document_prompt": "ship "},
        {"query_template": "{instruction} {text}", "instruction": "world", "document_template": "ship {text} hello"},
    ],
    ids=["prompts", "templates"],
)
def test_maxsim_reads_texts_with_the_prompts_that_encode_gives_them(
    prompts: dict[str, str], tiny_folder: Path, late: EncoderModel
) -> None:
    dense = msgspec.convert({"dim": 32, **prompts}, Dense)
    spec = msgspec.structs.replace(late.spec, tasks=msgspec.structs.replace(late.spec.tasks, dense=dense))
    model = tiny_model.load(spec, tiny_folder)

    def vectors(texts: list[str], **options: Any) -> list[Any]:
        params = EncodeParams(output_types=["multivector"], options=options)
        plan = encode.plan(model, model.spec, EncodeRequest([Item(text=text) for text in texts], params))
        return list(model.forward(plan.rows, {"multivector": range(len(plan.rows))})["multivector"])

    (query,) = vectors(["hello ship"], is_query=True)
    wanted = [float((query @ own.T).max(axis=1).sum()) for own in vectors(DOCUMENTS)]
    assert by_index(run(model, "hello ship", DOCUMENTS)) == pytest.approx(wanted, abs=1e-5)
    assert by_index(run(late, "hello ship", DOCUMENTS)) != pytest.approx(wanted, abs=1e-2)


def test_what_prompts_make_a_request_for_maxsim_longer_by_is_known_before(late: EncoderModel) -> None:
    dense = Dense(dim=32, query_prompt="hello " * 1000)
    spec = msgspec.structs.replace(late.spec, tasks=msgspec.structs.replace(late.spec.tasks, dense=dense))
    request = ScoreRequest(query=Item(text="ship"), items=[Item(text="world")])
    assert score.repeated(late.spec, request) == 0 and score.repeated(spec, request) >= 6000


def test_vectors_that_came_with_the_request_are_not_computed_again(late: EncoderModel) -> None:
    rows = late.tokenizer.rows(["hello ship", *DOCUMENTS], 32)
    vectors = [np.asarray(own) for own in late.forward(rows, {"multivector": range(5)})["multivector"]]
    of_text = by_index(run(late, "hello ship", DOCUMENTS))
    query = Item(multivector=vectors[0])
    assert np.allclose(by_index(run(late, query, [Item(multivector=own) for own in vectors[1:]])), of_text, atol=1e-5)
    mixed = [Item(multivector=vectors[1]), Item(text=DOCUMENTS[1]), Item(multivector=vectors[3]), Item(text="")]
    assert np.allclose(by_index(run(late, "hello ship", mixed)), of_text, atol=1e-5)


def test_a_row_that_is_not_finite_is_that_of_the_query_or_the_item_whose_text_it_is(late: EncoderModel) -> None:
    given = Item(multivector=np.ones((3, 32), dtype=np.float32))
    items = [given, Item(text="ship"), Item(text="world")]
    for query, names in ((Item(text="hello"), ["query", "items[1]", "items[2]"]), (given, ["items[1]", "items[2]"])):
        plan = score.plan(late, late.spec, ScoreRequest(query=query, items=items))
        assert [plan.item(row) for row in range(len(plan.rows))] == names


def refused(model: EncoderModel, query: Item, items: list[Item], **fields: Any) -> InvalidInputError:
    with pytest.raises(InvalidInputError) as caught:
        run(model, query, items, **fields)
    return caught.value


def test_vectors_of_another_size_are_refused_and_named(late: EncoderModel) -> None:
    wrong = Item(multivector=np.zeros((3, 16), dtype=np.float32))
    error = refused(late, Item(text="hello"), [Item(text="ship"), wrong])
    assert error.field == "items[1].multivector" and error.limit == 32
    assert refused(late, wrong, [Item(text="ship")]).field == "query.multivector"


def test_vectors_to_a_model_of_texts_are_refused_and_named(cross: tuple[EncoderModel, Path]) -> None:
    vectors = Item(multivector=np.ones((3, 32), dtype=np.float32))
    assert refused(cross[0], Item(text="hello"), [vectors]).field == "items[0].text"
    assert refused(cross[0], vectors, [Item(text="hello")]).field == "query.text"


def test_a_model_that_does_not_score_says_what_it_does(tiny: EncoderModel) -> None:
    assert "dense" in str(refused(tiny, Item(text="hello"), [Item(text="ship")]))


def test_a_pair_over_the_limit_is_cut_or_refused_as_asked(cross: tuple[EncoderModel, Path]) -> None:
    assert len(run(cross[0], "hello", ["ship " * 100]).scores) == 1
    with pytest.raises(InputTooLongError) as caught:
        run(cross[0], "hello", ["ship", "ship " * 100], options={"overflow_policy": "error"})
    assert caught.value.field == "items[1].text" and caught.value.limit == 40


def test_an_unknown_option_is_refused(cross: tuple[EncoderModel, Path]) -> None:
    error = refused(cross[0], Item(text="hello"), [Item(text="ship")], options={"top_n": 3})
    assert error.field == "options.top_n"


@pytest.mark.parametrize(
    ("kind", "fields", "field"),
    [
        ("cross", {"instruction": "Find."}, "instruction"),
        ("cross", {"options": {"instruction": "Find."}}, "options.instruction"),
        ("late", {"instruction": "Find."}, "instruction"),
        ("late", {"options": {"instruction": "Find."}}, "options.instruction"),
        ("late", {"options": {"activation": "sigmoid"}}, "options.activation"),
        ("judge", {"options": {"query_max_length": 3}}, "options.query_max_length"),
        ("judge", {"instruction": "Find."}, "instruction"),
        ("judge", {"options": {"instruction": "Find."}}, "options.instruction"),
    ],
)
def test_what_another_kind_of_scorer_takes_is_refused_not_ignored(
    kind: str, fields: dict[str, Any], field: str, request: pytest.FixtureRequest
) -> None:
    made = request.getfixturevalue(kind)
    model = made if isinstance(made, EncoderModel) else made[0]
    assert refused(model, Item(text="hello"), [Item(text="ship")], **fields).field == field


def test_a_judge_whose_template_has_a_place_for_it_takes_an_instruction_either_way(
    judge: tuple[EncoderModel, Path],
) -> None:
    model = instructed(judge[0])
    plain, *told = (
        by_index(run(model, "hello", ["ship", "world"], **fields))
        for fields in ({}, {"instruction": "lighthouse"}, {"options": {"instruction": "lighthouse"}})
    )
    assert told[0] == told[1] and told[0] != plain


def test_maxsim_cuts_a_query_where_encode_cuts_it(late: EncoderModel) -> None:
    long, short = "hello ship world", "hello"
    cut = run(late, long, ["ship world"], options={"query_max_length": 3}).scores[0].score
    assert cut == pytest.approx(run(late, short, ["ship world"]).scores[0].score)
    assert cut != pytest.approx(run(late, long, ["ship world"]).scores[0].score)


def test_a_text_too_long_for_maxsim_is_called_as_the_request_has_it(late: EncoderModel) -> None:
    given, long, short = Item(multivector=np.ones((2, 32), np.float32)), Item(text="hello " * 60), Item(text="ship")
    asked = {"options": {"overflow_policy": "error"}}
    assert refused(late, long, [short], **asked).field == "query.text"
    assert refused(late, short, [given, given, long], **asked).field == "items[2].text"
    with pytest.raises(InvalidInputError) as caught:
        score.plan(late, late.spec, ScoreRequest(query=given, items=[short, given, Item(text="\ud800")]))
    assert caught.value.field == "items[2].text"
