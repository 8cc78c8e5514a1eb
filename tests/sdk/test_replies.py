"""The bodies of replies that worked: what a bundle writes a client reads, in the published shape."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_sdk import arrays, replies, results
from sie_sdk.errors import InferenceError, SIEError, UnexpectedReplyError
from sie_sdk.outputs import SPARSE_DTYPES, WIRE_DTYPES, DenseOutput, MultivectorOutput, Outputs, SparseOutput
from sie_sdk.replies import Extracted
from sie_sdk.types import (
    Classification,
    Entity,
    ExtractFailure,
    JobStatus,
    OutputDtype,
    OutputType,
    PairUsage,
    Timing,
    Usage,
)

TIMING = Timing(queue_ms=1.5, total_ms=2.0)
USAGE = Usage(7)

ids = st.none() | st.text(max_size=4)
numbers = st.floats(-100, 100, width=32)


def dense(vectors: Any, dtype: OutputDtype = "float32") -> Outputs:
    rows = np.asarray(vectors, WIRE_DTYPES[dtype])
    return {"dense": DenseOutput(rows, rows.shape[1], dtype)}


def encoded(vectors: Any, own: list[str | None], dtype: OutputDtype = "float32") -> bytes:
    return replies.encode("m", own, dense(vectors, dtype), TIMING, USAGE)


def scored(scores: Any, own: list[str | None] | None = None, query_id: str | None = None) -> bytes:
    values = np.asarray(scores, np.float32)
    return replies.score("m", values, own or [None] * len(values), query_id, TIMING, USAGE)


# -- encode ------------------------------------------------------------------------------------------------------------


@st.composite
def every_output(draw: st.DrawFn) -> tuple[list[str | None], dict[OutputType, Any]]:
    """Ids and any set of outputs for them, of any dtype, each filled with numbers of its own."""
    own = draw(st.lists(ids, max_size=4))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    dims = 8 * draw(st.integers(1, 3))
    made: dict[OutputType, Any] = {}
    for name in sorted(draw(st.sets(st.sampled_from(get_args(OutputType))))):
        dtype: OutputDtype = draw(st.sampled_from(SPARSE_DTYPES if name == "sparse" else tuple(WIRE_DTYPES)))
        width, quantised = dims // 8 if "binary" in dtype else dims, "int8" in dtype

        def rows(count: int, width: int = width, dtype: OutputDtype = dtype) -> npt.NDArray[Any]:
            return random.integers(0, 100, (count, width)).astype(WIRE_DTYPES[dtype])

        def scales(count: int) -> npt.NDArray[np.float32]:
            return random.random(count).astype(np.float32)

        lengths = random.integers(0, 4, len(own)).tolist()
        match name:
            case "dense":
                scale = scales(len(own)) if quantised else None
                made[name] = DenseOutput(rows(len(own)), dims, dtype, scale, scale if dtype == "uint8" else None)
            case "sparse":
                pairs = [(np.arange(k, dtype=np.int32), rows(1)[0, :k]) for k in lengths]
                made[name] = SparseOutput(pairs, dims, dtype)
            case _:
                columns = [scales(k) for k in lengths] if quantised else None
                offset = columns if dtype == "uint8" else None
                made[name] = MultivectorOutput([rows(k) for k in lengths], dims, dtype, columns, offset)
    return own, made


@given(every_output())
def test_every_output_comes_back_as_it_was_handed_over(case: tuple[list[str | None], dict[OutputType, Any]]) -> None:
    own, outputs = case
    read = results.read_encode(replies.encode("m", own, outputs, TIMING, USAGE))
    assert [result.id for result in read] == own
    for index, result in enumerate(read):
        assert result.timing == TIMING
        assert (result.dense is not None) == ("dense" in outputs)
        if (made := outputs.get("dense")) is not None:
            np.testing.assert_array_equal(result.dense, made.rows[index], strict=True)
            if made.scale is None:
                assert result.dense_quantization is None
            else:
                assert result.dense_quantization is not None
                assert result.dense_quantization.scale == made.scale[index]
                assert result.dense_quantization.offset == (0.0 if made.offset is None else made.offset[index])
        if (made := outputs.get("sparse")) is not None:
            assert result.sparse is not None and result.sparse.dims == made.dims
            np.testing.assert_array_equal(result.sparse.indices, made.rows[index][0], strict=True)
            np.testing.assert_array_equal(result.sparse.values, made.rows[index][1], strict=True)
        if (made := outputs.get("multivector")) is not None:
            np.testing.assert_array_equal(result.multivector, made.rows[index], strict=True)
            assert (result.multivector_quantization is not None) == (made.scale is not None)
            if result.multivector_quantization is not None:
                np.testing.assert_array_equal(result.multivector_quantization.scale, made.scale[index])


def test_quantised_values_are_read_back_as_numbers() -> None:
    vectors = np.array([[-1.0, 0.0, 2.0], [0.5, -0.25, 0.125]], np.float32)
    scale = np.abs(vectors).max(1) / 127
    one = DenseOutput(np.rint(vectors / scale[:, None]).astype("i1"), 3, "int8", scale)
    many = MultivectorOutput([one.rows], 3, "int8", [scale], [np.array([0.0, 1.0], np.float32)])
    first, second = results.read_encode(replies.encode("m", [None, None], {"dense": one}, TIMING, USAGE))
    for result, vector in zip((first, second), vectors, strict=True):
        assert result.dense is not None and result.dense_quantization is not None
        np.testing.assert_allclose(result.dense_quantization.dequantise(result.dense), vector, atol=0.01)
    (tokens,) = results.read_encode(replies.encode("m", [None], {"multivector": many}, TIMING, USAGE))
    assert tokens.multivector is not None and tokens.multivector_quantization is not None
    restored = tokens.multivector_quantization.dequantise(tokens.multivector)
    assert restored.dtype == np.float32
    np.testing.assert_allclose(restored, vectors + np.array([[0], [1]]), atol=0.01)


def test_arrays_are_read_only_and_results_keep_their_order() -> None:
    vectors = np.arange(6, dtype="<f4").reshape(2, 3)
    first, second = results.read_encode(encoded(vectors, ["a", None]))
    assert first.dense is not None and second.dense is not None
    np.testing.assert_array_equal(np.stack([first.dense, second.dense]), vectors)
    assert (first.id, second.id) == ("a", None)
    assert not first.dense.flags.writeable


def test_the_reply_has_the_published_shape() -> None:
    outputs: Outputs = {
        "dense": DenseOutput(np.zeros((1, 1), "u1"), 8, "ubinary"),
        "sparse": SparseOutput([(np.array([3], np.int32), np.array([0.5], np.float16))], 100, "float16"),
        "multivector": MultivectorOutput([np.zeros((2, 4), "<f4")], 4, "float32"),
    }
    body = msgspec.msgpack.decode(replies.encode("m", ["a"], outputs, TIMING, USAGE))
    assert (body["model"], body["usage"], body["timing"]["total_ms"]) == ("m", {"input_tokens": 7}, 2.0)
    (item,) = body["items"]
    assert item["id"] == "a"
    assert {key: value for key, value in item["dense"].items() if key != "values"} == {"dims": 8, "dtype": "binary"}
    assert (item["sparse"]["dims"], item["sparse"]["dtype"]) == (100, "float16")
    assert (item["sparse"]["indices"][b"type"], item["sparse"]["values"][b"type"]) == ("<i4", "<f2")
    many = item["multivector"]
    assert (many["token_dims"], many["num_tokens"], many["dtype"]) == (4, 2, "float32")
    assert many["values"][b"shape"] == [2, 4]


def test_an_item_without_an_id_gets_none_back() -> None:
    assert "id" not in msgspec.msgpack.decode(encoded(np.zeros((1, 2)), [None]))["items"][0]


@pytest.mark.parametrize(
    "contradiction",
    [
        lambda: encoded(np.zeros((2, 2)), ["a"]),
        lambda: replies.encode("m", ["a"], {"dense": DenseOutput(np.zeros((1, 4)), 4, "float32")}, TIMING, USAGE),
        lambda: replies.encode("m", ["a"], {"dense": DenseOutput(np.zeros((1, 4), "u1"), 4, "binary")}, TIMING, USAGE),
        lambda: replies.score("m", np.zeros(2, np.float32), ["a"], None, TIMING, USAGE),
        lambda: replies.extract("m", ["a"], [], TIMING, USAGE),
    ],
)
def test_outputs_that_contradict_themselves_are_a_bug_not_a_reply(contradiction: Callable[[], bytes]) -> None:
    with pytest.raises(ValueError, match=r"zip|Rows of"):
        contradiction()


def test_an_absent_representation_is_none() -> None:
    (result,) = results.read_encode(msgspec.msgpack.encode({"items": [{"dense": None, "sparse": None, "other": 1}]}))
    assert (result.dense, result.sparse, result.multivector) == (None, None, None)


# -- score -------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(ids, numbers), max_size=20), st.none() | st.text(max_size=3))
def test_scores_are_ranked_and_each_says_which_item_it_is_of(
    items: list[tuple[str | None, float]], query_id: str | None
) -> None:
    result = results.read_score(scored([score for _, score in items], [own for own, _ in items], query_id))
    assert (result.model, result.query_id, result.timing) == ("m", query_id, TIMING)
    assert result.usage == PairUsage(7, len(items))
    assert [entry.rank for entry in result.scores] == list(range(len(items)))
    assert sorted(entry.index for entry in result.scores) == list(range(len(items)))
    assert all(a.score >= b.score for a, b in zip(result.scores, result.scores[1:], strict=False))
    for entry in result.scores:
        own, score = items[entry.index]
        assert entry.item_id == (own if own is not None else f"item-{entry.index}")
        assert entry.score == score


def test_equal_scores_keep_the_order_of_the_request() -> None:
    result = results.read_score(scored([0.5, 2.0, 0.5, 2.0]))
    assert [entry.item_id for entry in result.scores] == ["item-1", "item-3", "item-0", "item-2"]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_is_an_error_that_names_its_item(bad: float) -> None:
    with pytest.raises(InferenceError) as caught:
        scored([1.0, bad])
    assert caught.value.field == "items[1]"


def test_a_published_servers_scores_are_read_without_an_index() -> None:
    body = msgspec.msgpack.encode({"model": "m", "scores": [{"item_id": "a", "score": 1, "rank": 0}]})
    (entry,) = results.read_score(body).scores
    assert (entry.item_id, entry.score, entry.index) == ("a", 1.0, -1)


# -- extract -----------------------------------------------------------------------------------------------------------

entities = st.builds(
    Entity, text=st.text(), label=st.text(), score=numbers, start=st.integers(0, 99), end=st.integers(0, 99)
)
extracted = st.builds(
    Extracted, st.lists(entities, max_size=3), st.lists(st.builds(Classification, st.text(), numbers), max_size=3)
)


@given(st.lists(st.tuples(ids, extracted), max_size=5))
def test_what_was_found_comes_back_under_its_items_id(items: list[tuple[str | None, Extracted]]) -> None:
    body = replies.extract("m", [own for own, _ in items], [found for _, found in items], TIMING, USAGE)
    read = results.read_extract(body)
    assert [result.id for result in read] == [
        own if own is not None else f"item-{index}" for index, (own, _) in enumerate(items)
    ]
    assert [(result.entities, result.classifications) for result in read] == [
        (found.entities, found.classifications) for _, found in items
    ]
    assert all(result.timing == TIMING and result.error is None for result in read)


def test_every_list_of_an_extraction_is_there_though_it_is_empty() -> None:
    (item,) = msgspec.msgpack.decode(replies.extract("m", [None], [Extracted()], TIMING, USAGE))["items"]
    assert item == {
        "id": "item-0",
        "entities": [],
        "classifications": [],
        "relations": [],
        "objects": [],
        "data": {},
    }


def test_one_items_error_is_read_beside_the_others_results() -> None:
    items = [{"id": "a", "error": {"code": "INFERENCE_ERROR", "message": "no"}}, {"id": "b", "entities": []}]
    failed, fine = results.read_extract(msgspec.msgpack.encode({"items": items}))
    assert failed.error == ExtractFailure("INFERENCE_ERROR", "no")
    assert (fine.error, fine.timing) == (None, None)


# -- any reply ---------------------------------------------------------------------------------------------------------

WHOLE: dict[Callable[[bytes], object], bytes] = {
    results.read_encode: encoded(np.zeros((1, 2)), ["a"]),
    results.read_score: scored([1.0]),
    results.read_extract: replies.extract("m", ["a"], [Extracted()], TIMING, USAGE),
}


@pytest.mark.parametrize("read", WHOLE, ids=lambda read: read.__name__)
@pytest.mark.parametrize("cut", [0, 1, 20, 60])
def test_a_truncated_reply_is_unexpected_and_shows_its_first_bytes(read: Callable[[bytes], object], cut: int) -> None:
    with pytest.raises(UnexpectedReplyError, match=r"empty|it begins b'"):
        read(WHOLE[read][:cut])


@pytest.mark.parametrize("read", [*WHOLE, results.read_head], ids=lambda read: read.__name__)
@given(body=st.binary(max_size=60))
def test_any_bytes_are_results_or_an_unexpected_reply(read: Callable[[bytes], object], body: bytes) -> None:
    try:
        read(body)
    except SIEError as error:
        assert isinstance(error, UnexpectedReplyError)


@pytest.mark.parametrize("body", WHOLE.values(), ids=[read.__name__ for read in WHOLE])
def test_the_head_of_any_result_is_read_alone(body: bytes) -> None:
    head = results.read_head(body)
    assert (head.model, head.timing, head.usage.input_tokens) == ("m", TIMING, 7)


def test_json_has_plain_lists_for_arrays() -> None:
    body = json.loads(replies.to_json(encoded([[0.5, -2.0]], ["a"])))
    assert body["items"] == [{"id": "a", "dense": {"dims": 2, "dtype": "float32", "values": [0.5, -2.0]}}]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_number_in_json_comes_back_as_it_was_in_its_own_type(dtype: Any) -> None:
    own = np.dtype(dtype)
    numbers = np.frombuffer(np.random.default_rng(0).bytes(own.itemsize * 4096), own)
    rows = np.where(np.isfinite(numbers), numbers, 1).astype(own).reshape(4, 1024)
    output = DenseOutput(rows, 1024, dtype)
    body = json.loads(replies.to_json(replies.encode("m", [None] * 4, {"dense": output}, TIMING, USAGE)))
    back = np.array([item["dense"]["values"] for item in body["items"]], own)
    assert np.array_equal(back, rows)


def test_json_says_a_tenth_as_a_tenth_and_reads_arrays_of_either_byte_order() -> None:
    body = replies.to_json(msgspec.msgpack.encode({"a": arrays.pack(np.array([0.1], ">f4"))}))
    assert body == b'{"a":[0.1]}'


@pytest.mark.parametrize(
    "body",
    [
        encoded([[0.5, -2.0], [1.0, 3.0]], ["a", None]),
        scored([0.5, 2.0], ["a", None], "q"),
        replies.extract("m", ["a", None], [Extracted(), Extracted()], TIMING, USAGE),
    ],
)
def test_a_large_body_becomes_the_same_json_item_by_item(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = json.loads(replies.to_json(body))
    monkeypatch.setattr(replies, "LARGE_BYTES", 0)
    assert json.loads(replies.to_json(body)) == whole


def test_a_job_comes_back_as_it_was_written() -> None:
    job = JobStatus("j1", "provisioning", 12.5, "starting a worker")
    assert results.read_job(replies.job_body(job), "application/json") == job
    assert results.read_job(msgspec.msgpack.encode({"job": job}), "application/msgpack") == job


def test_a_jobs_body_always_says_its_state() -> None:
    assert json.loads(replies.job_body(JobStatus("j1")))["job"]["state"] == "queued"
