"""The encode operation on small models: every representation, option and number format, and what is refused.

From the parsed request to the bytes of the reply and back through the client's reader.
"""

from __future__ import annotations

import copy
import gc
import json
import weakref
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sie_bundle.engine.outputs import SparseRow
from sie_bundle.engine.row import row
from sie_bundle.models.model import EncoderModel
from sie_bundle.models.tokenization import Tokenizer
from sie_bundle.operations import encode, tokens
from sie_bundle.operations.muvera import Muvera
from sie_bundle.operations.options import Options
from sie_config.model.tasks import Dense, Multivector, Pooling, Tasks
from sie_sdk import results, wire
from sie_sdk.errors import InputTooLongError, InvalidInputError
from sie_sdk.quantize import quantize
from sie_sdk.types import EncodeParams, EncodeRequest, EncodeResult, Item, Timing, Usage
from tests import tiny_model
from tests.bundle.test_families import load as random_model

TEXTS = ["hello world", "", "ship ship lighthouse"]


@pytest.fixture(scope="module")
def prompted(tiny_folder: Path) -> EncoderModel:
    """Dense, with prompts and Matryoshka lengths."""
    dense = Dense(dim=32, query_prompt="hello ", document_prompt="ship ", dims=(8, 16))
    return tiny_model.load(msgspec.structs.replace(tiny_model.spec(tiny_folder), tasks=Tasks(dense=dense)), tiny_folder)


@pytest.fixture(scope="module")
def colbert(tiny_folder: Path) -> EncoderModel:
    """Multivectors with markers, augmentation and a skip list."""
    task = Multivector(
        dim=32, projection="", query_marker="ship", document_marker="world", query_length=8, mask="lighthouse"
    )
    spec = msgspec.structs.replace(tiny_model.spec(tiny_folder), tasks=Tasks(multivector=task))
    return tiny_model.load(spec, tiny_folder)


@pytest.fixture(scope="module")
def bge(tmp_path_factory: pytest.TempPathFactory) -> EncoderModel:
    """All three at once."""
    return random_model("bge-m3", tmp_path_factory.mktemp("bge"))


def run(model: EncoderModel, texts: list[str] = TEXTS, **params: Any) -> list[EncodeResult]:
    request = EncodeRequest([Item(text=text, id=f"id-{i}") for i, text in enumerate(texts)], EncodeParams(**params))
    plan = encode.plan(model, model.spec, encode.parse(wire.request_body(request)))
    outputs = model.forward(plan.rows, {head: range(len(plan.rows)) for head in plan.heads})
    return results.read_encode(plan.finish(outputs, Timing(total_ms=1.0), Usage(input_tokens=3)))


def dense(model: EncoderModel, texts: list[str] = TEXTS, **params: Any) -> np.ndarray:
    return np.stack([result.dense for result in run(model, texts, **params) if result.dense is not None])


def refused(model: EncoderModel, **params: Any) -> InvalidInputError:
    with pytest.raises(InvalidInputError) as caught:
        run(model, **params)
    return caught.value


def test_dense_vectors_come_back_with_ids_and_timing(tiny: EncoderModel) -> None:
    found = run(tiny)
    assert [result.id for result in found] == ["id-0", "id-1", "id-2"]
    assert found[0].timing and found[0].timing.total_ms == 1.0
    expected = tiny_model.vectors(tiny, tiny.tokenizer.rows(TEXTS, 32))
    assert np.array_equal(dense(tiny), expected)


def test_prompts_stand_before_the_text_and_an_instruction_takes_their_place(prompted: EncoderModel) -> None:
    def prefixed(prompt: str) -> np.ndarray:
        return tiny_model.vectors(prompted, prompted.tokenizer.rows([prompt + text for text in TEXTS], 32))

    assert np.array_equal(dense(prompted), prefixed("ship "))
    assert np.array_equal(dense(prompted, options={"is_query": True}), prefixed("hello "))
    assert np.array_equal(dense(prompted, instruction="world ", options={"is_query": True}), prefixed("world "))


def test_without_normalize_the_vector_has_the_length_that_pooling_gives_it(prompted: EncoderModel) -> None:
    unit, raw = dense(prompted), dense(prompted, options={"normalize": False})
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    assert np.linalg.norm(unit, axis=1) == pytest.approx(1, abs=1e-5)
    assert (np.abs(lengths - 1) > 0.01).all()
    assert raw / lengths == pytest.approx(unit, abs=1e-5)
    assert np.array_equal(dense(prompted, options={"normalize": True}), unit)


def test_another_pooling_is_made_of_the_same_states(tiny_folder: Path, prompted: EncoderModel) -> None:
    for pooling in get_args(Pooling):
        tasks = Tasks(dense=Dense(dim=32, pooling=pooling))
        other = tiny_model.load(msgspec.structs.replace(tiny_model.spec(tiny_folder), tasks=tasks), tiny_folder)
        own = {"pooling": pooling, "doc_template": "{text}"}
        assert np.array_equal(dense(prompted, options=own), dense(other))
        raw = dense(prompted, options={**own, "normalize": False})
        assert np.allclose(raw, dense(other, options={"normalize": False}))
    assert refused(prompted, options={"pooling": "max"}).field == "params.options.pooling"


def test_what_pools_in_one_way_only_refuses_the_others(prompted: EncoderModel, colbert: EncoderModel) -> None:
    fixed = copy.copy(prompted)
    fixed.heads = ("dense",)
    assert refused(fixed, options={"pooling": "cls"}).limit == "mean"
    assert refused(fixed, options={"normalize": False}).field == "params.options.normalize"
    assert np.array_equal(dense(fixed, options={"pooling": "mean"}), dense(prompted))
    assert refused(colbert, options={"pooling": "cls"}).field == "params.options.pooling"


def test_a_request_s_template_makes_the_text(prompted: EncoderModel) -> None:
    options = {"is_query": True, "query_template": "{instruction} {text} ship", "default_instruction": "world"}
    rows = prompted.tokenizer.rows([f"world {text} ship" for text in TEXTS], 32)
    assert np.array_equal(dense(prompted, options=options), tiny_model.vectors(prompted, rows))


def test_queries_may_be_cut_shorter_than_documents(prompted: EncoderModel) -> None:
    def tokens(**options: Any) -> int:
        request = EncodeRequest([Item(text="ship " * 40)], EncodeParams(options=options))
        return len(encode.plan(prompted, prompted.spec, request).rows[0])

    assert (tokens(), tokens(query_max_length=8), tokens(query_max_length=8, is_query=True)) == (32, 32, 8)
    assert tokens(query_max_length=8, max_seq_length=6, is_query=True) == 6
    assert refused(prompted, options={"query_max_length": 33}).limit == 32


def test_matryoshka_takes_the_first_dimensions_back_to_length_one(prompted: EncoderModel) -> None:
    whole = dense(prompted)
    short = dense(prompted, options={"dimensions": 8})
    assert short.shape == (3, 8)
    assert np.allclose(short, whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True), atol=1e-6)
    assert np.array_equal(dense(prompted, options={"dimensions": 32}), whole)
    raw = dense(prompted, options={"dimensions": 16, "normalize": False})
    assert np.array_equal(raw, dense(prompted, options={"normalize": False})[:, :16])


def test_a_length_the_model_was_not_trained_for_is_refused_with_those_it_was(prompted: EncoderModel) -> None:
    error = refused(prompted, options={"dimensions": 9})
    assert error.message.startswith("dimensions=9 is not a length that test/") and error.message.endswith(
        "has: 8, 16, 32."
    )
    assert error.field == "params.options.dimensions" and error.limit == "8, 16, 32"


@pytest.mark.parametrize("dtype", ["float16", "int8", "uint8"])
def test_quantised_vectors_come_with_what_is_needed_to_undo_it(tiny: EncoderModel, dtype: Any) -> None:
    exact = dense(tiny)
    for result, wanted in zip(run(tiny, output_dtype=dtype), exact, strict=True):
        assert result.dense is not None
        found = result.dense if dtype == "float16" else undone(result)
        assert np.abs(found - wanted).max() < 5e-3


def undone(result: EncodeResult) -> np.ndarray:
    assert result.dense is not None and result.dense_quantization is not None
    return result.dense_quantization.dequantise(result.dense)


@pytest.mark.parametrize("dtype", ["binary", "ubinary"])
def test_binary_vectors_are_the_signs_eight_to_a_byte(tiny: EncoderModel, dtype: Any) -> None:
    for result, exact in zip(run(tiny, output_dtype=dtype), dense(tiny), strict=True):
        assert result.dense is not None
        assert np.array_equal(np.unpackbits(result.dense), exact > 0)


def test_three_representations_come_of_one_pass(bge: EncoderModel) -> None:
    texts = ["hello world ship", "abc"]
    found = run(bge, texts, output_types=["dense", "sparse", "multivector"])
    for text, result in zip(texts, found, strict=True):
        (own,) = bge.tokenizer.rows([text], 40)
        assert result.dense is not None and result.sparse is not None and result.multivector is not None
        assert result.dense.shape == (32,) and result.multivector.shape == (len(own) - 1, 32)
        assert set(result.sparse.indices.tolist()) <= set(own.ids.tolist()) - bge.tokenizer.special
        assert (np.diff(result.sparse.indices) > 0).all() and (result.sparse.values > 0).all()


def test_each_representation_is_the_same_alone_as_with_the_others(bge: EncoderModel) -> None:
    together = run(bge, output_types=["dense", "sparse", "multivector"])
    for name in ("dense", "multivector"):
        alone = run(bge, output_types=[name])
        for one, all_three in zip(alone, together, strict=True):
            assert np.allclose(getattr(one, name), getattr(all_three, name), atol=1e-6)
            assert one.sparse is None


def test_sparse_values_come_in_half_precision_and_in_no_integers(bge: EncoderModel) -> None:
    for result in run(bge, output_types=["sparse"], output_dtype="float16"):
        assert result.sparse is not None and result.sparse.values.dtype == np.float16
    assert refused(bge, output_types=["sparse"], output_dtype="int8").field == "params.output_dtype"


def test_a_sparse_weight_that_half_precision_cannot_hold_is_refused_with_its_row() -> None:
    rows = [SparseRow(np.array([3, 5], np.int32), np.array([1, own], np.float32)) for own in (2.0, 70_000.0)]
    with pytest.raises(InvalidInputError, match="Vector 1 holds a number of magnitude 70000"):
        encode.sparse_output(rows, 10, "float16")
    empty = SparseRow(np.array([], np.int32), np.array([], np.float32))
    assert encode.sparse_output([rows[0], empty], 10, "float16").dtype == "float16"


def test_multivectors_are_quantised_token_by_token(bge: EncoderModel) -> None:
    exact = run(bge, output_types=["multivector"])
    for result, wanted in zip(run(bge, output_types=["multivector"], output_dtype="int8"), exact, strict=True):
        assert result.multivector is not None and result.multivector_quantization is not None
        assert wanted.multivector is not None
        found = result.multivector_quantization.dequantise(result.multivector)
        assert np.abs(found - wanted.multivector).max() < 5e-3


def test_documents_get_their_marker_and_queries_theirs_and_masks(colbert: EncoderModel) -> None:
    ship, world, mask = (colbert.tokenizer.id(token) for token in ("ship", "world", "lighthouse"))
    request = EncodeRequest([Item(text="hello")], EncodeParams())
    (document,) = encode.plan(colbert, colbert.spec, request).rows
    assert document.ids.tolist()[1] == world and len(document) == 4
    query_request = EncodeRequest([Item(text="hello")], EncodeParams(options={"is_query": True}))
    (query,) = encode.plan(colbert, colbert.spec, query_request).rows
    assert query.ids.tolist()[1] == ship and query.ids.tolist()[4:] == [mask] * 4
    assert query.seen == 4, "the masks look at the query, not the other way round"
    (result,) = run(colbert, ["hello"], options={"is_query": True})
    assert result.multivector is not None and result.multivector.shape == (8, 32)
    assert np.allclose(np.linalg.norm(result.multivector, axis=1), 1, atol=1e-5)


def test_what_masks_compute_does_not_change_what_the_query_computes(colbert: EncoderModel) -> None:
    (augmented,) = run(colbert, ["hello"], options={"is_query": True})
    plain = encode.encode_rows(colbert, colbert.spec, ["hello"], Options({}, (), ""), ["multivector"], is_query=True)[0]
    short = type(plain)(plain.ids[: plain.seen], plain.seen, plain.seen)
    (alone,) = colbert.forward([short], {"multivector": [0]})["multivector"]
    assert augmented.multivector is not None
    assert np.abs(augmented.multivector[: plain.seen] - np.asarray(alone)).max() < 1e-5


def test_documents_may_be_shorter_than_queries(colbert: EncoderModel) -> None:
    assert colbert.spec.tasks.multivector is not None
    task = msgspec.structs.replace(colbert.spec.tasks.multivector, document_length=5)
    tasks = msgspec.structs.replace(colbert.spec.tasks, multivector=task)
    spec = msgspec.structs.replace(colbert.spec, tasks=tasks)
    query, document = (
        encode.encode_rows(colbert, spec, ["hello " * 30], Options({}, (), ""), ["multivector"], is_query=own)[0]
        for own in (True, False)
    )
    assert (len(query), len(document)) == (8, 5)


def test_a_long_query_keeps_its_marker_and_is_cut_to_the_querys_length(colbert: EncoderModel) -> None:
    (result,) = run(colbert, ["hello " * 30], options={"is_query": True})
    assert result.multivector is not None and result.multivector.shape == (8, 32)


def test_punctuation_is_left_out_where_ids_of_the_vocabulary_are_not_used(tmp_path: Path) -> None:
    folder = tiny_model.make(tmp_path)
    written = json.loads((folder / "tokenizer.json").read_text())
    written["model"]["vocab"] |= {"!": 70}
    (folder / "tokenizer.json").write_text(json.dumps(written))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 80}))
    tensors = load_file(folder / "model.safetensors")
    words = tensors["embeddings.word_embeddings.weight"]
    tensors["embeddings.word_embeddings.weight"] = np.concatenate([words, words])[:80]
    save_file(tensors, folder / "model.safetensors")
    task = Multivector(dim=32, projection="", skip_punctuation=True)
    model = tiny_model.load(msgspec.structs.replace(tiny_model.spec(folder), tasks=Tasks(multivector=task)), folder)
    with_, without = run(model, ["hello !", "hello"])
    assert with_.multivector is not None and without.multivector is not None
    assert with_.multivector.shape == without.multivector.shape


def test_a_limit_below_the_special_tokens_cuts_a_text_to_those(colbert: EncoderModel) -> None:
    for options in ({"max_seq_length": 1}, {"max_seq_length": 1, "is_query": True}):
        request = EncodeRequest([Item(text="hello " * 100)], EncodeParams(options=options))
        assert len(encode.plan(colbert, colbert.spec, request).rows[0]) <= 3


def test_a_fixed_dimensional_encoding_is_a_dense_vector_of_the_multivectors(colbert: EncoderModel) -> None:
    small = {"repetitions": 4, "simhash_bits": 3}
    texts = ["hello world", "ship"]
    for is_query in (False, True):
        found = dense(colbert, texts, options={"muvera": small, "is_query": is_query})
        vectors = [own.multivector for own in run(colbert, texts, options={"is_query": is_query})]
        encoder = Muvera(dim=32, repetitions=4, simhash_bits=3)
        encode_all = encoder.encode_queries if is_query else encoder.encode_documents
        assert found.shape == (2, 4 * 2**3 * 32)
        assert np.allclose(found, encode_all([own for own in vectors if own is not None]), atol=1e-5)


def test_muvera_without_settings_takes_the_defaults_and_null_and_false_leave_it_out(colbert: EncoderModel) -> None:
    assert np.array_equal(dense(colbert, options={"muvera": {}}), dense(colbert, options={"muvera": True}))
    for off in (None, False):
        assert run(colbert, options={"muvera": off})[0].dense is None


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"buckets": 3}, "There is no 'buckets' in muvera."),
        ({"dim": 3}, "There is no 'dim' in muvera."),
        ("on", "muvera='on' is not true, false or a map of repetitions, simhash_bits, projection, final_dims, seed."),
        (0, "muvera=0 is not true, false or a map"),
    ],
)
@pytest.mark.parametrize("output", ["dense", "multivector"])
def test_muvera_settings_it_does_not_know_are_refused(
    colbert: EncoderModel, output: str, settings: object, told: str
) -> None:
    error = refused(colbert, output_types=[output], options={"muvera": settings})
    assert error.field == "params.options.muvera" and error.message.startswith(told)
    assert error.limit == "repetitions, simhash_bits, projection, final_dims, seed"


def test_muvera_of_a_model_without_multivectors_is_refused(tiny: EncoderModel) -> None:
    assert "muvera" in str(refused(tiny, options={"muvera": True}).field)


def test_an_output_type_the_model_lacks_is_refused_with_those_it_has(tiny: EncoderModel) -> None:
    error = refused(tiny, output_types=["sparse"])
    assert error.field == "params.output_types" and error.limit == "dense"


def test_an_unknown_option_is_refused(tiny: EncoderModel) -> None:
    assert refused(tiny, options={"temperature": 1}).field == "params.options.temperature"


@pytest.mark.parametrize("options", [{"normalize": True}, {"dimensions": 8}, {"pooling": "cls"}])
def test_an_option_of_an_output_that_the_model_lacks_is_refused_with_those_it_has(
    colbert: EncoderModel, options: dict[str, object]
) -> None:
    (name,) = options
    error = refused(colbert, options=options)
    assert error.field == f"params.options.{name}"
    assert "muvera" in str(error.limit) and name not in str(error.limit)


def test_the_error_policy_refuses_a_text_over_the_models_limit_or_the_requests(tiny: EncoderModel) -> None:
    with pytest.raises(InputTooLongError) as caught:
        run(tiny, ["hello", "hello " * 100], options={"overflow_policy": "error"})
    assert caught.value.field == "items[1].text" and caught.value.limit == 32
    with pytest.raises(InputTooLongError) as caught:
        run(tiny, ["hello world ship"], options={"overflow_policy": "error", "max_seq_length": 4})
    assert caught.value.limit == 4


def test_quantisation_is_that_of_the_whole_batch_row_by_row(tiny: EncoderModel) -> None:
    rows = quantize(dense(tiny), "int8").rows
    found = [result.dense for result in run(tiny, output_dtype="int8")]
    assert np.array_equal(np.stack([row for row in found if row is not None]), rows)


def test_a_tokenizer_goes_with_its_model_although_its_punctuation_was_looked_for(tiny_folder: Path) -> None:
    tokenizer, vectors = Tokenizer.load(tiny_folder), np.ones((2, 1), np.float32)
    task = Multivector(dim=1, projection="", skip_punctuation=True)
    assert tokens.kept([vectors], [row([4, 5])], tokenizer, task, is_query=False)
    gone = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()
    assert gone() is None
