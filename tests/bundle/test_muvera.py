"""Fixed dimensional encodings follow their definition, stay the same for ever and rank as MaxSim does."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys
import tracemalloc
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sie_bundle.operations import muvera as module
from sie_bundle.operations.muvera import Draws, Muvera, block, draws
from sie_sdk.errors import InvalidInputError
from sie_sdk.scoring import maxsim_batch

Floats: TypeAlias = npt.NDArray[np.float32]


def texts(seed: int, lengths: list[int], dim: int) -> list[Floats]:
    random = np.random.RandomState(seed)
    return [random.standard_normal((length, dim)).astype(np.float32) for length in lengths]


# -- the definition, token by token --------------------------------------------------------------------------------


def bits_of(token: Floats, rep: int, config: Muvera, drawn: Draws) -> list[bool]:
    planes = drawn.hyperplanes[:, rep * config.simhash_bits : (rep + 1) * config.simhash_bits]
    return [float(np.dot(token.astype(np.float64), planes[:, bit])) > 0 for bit in range(config.simhash_bits)]


def place_of(bits: list[bool]) -> int:
    """The number whose Gray code the bits are, built from the highest on."""
    place = 0
    for bit in bits:
        place = 2 * place + (int(bit) ^ (place & 1))
    return place


def literal(text: Floats, config: Muvera, is_query: bool) -> npt.NDArray[np.float64]:
    drawn = draws(config)
    sides = itertools.product([False, True], repeat=config.simhash_bits)
    buckets = sorted((list(bits) for bits in sides), key=place_of)
    whole: list[float] = []
    for rep in range(config.repetitions):
        hashed = [bits_of(token, rep, config, drawn) for token in text]
        inner = text.astype(np.float64)
        if drawn.projections is not None:
            inner = inner @ drawn.projections[rep]
        for bucket in buckets:
            own = [token for token, bits in zip(inner, hashed, strict=True) if bits == bucket]
            if own or is_query:
                total = sum(own, np.zeros(inner.shape[1]))
                whole += (total if is_query else total / len(own)).tolist()
            else:
                away = [sum(a != b for a, b in zip(bits, bucket, strict=True)) for bits in hashed]
                whole += inner[away.index(min(away))].tolist()
    if drawn.signs is None:
        return np.array(whole)
    sketch = np.zeros(config.dims)
    for number, value in enumerate(whole):
        shift = drawn.shifts[number // block(config)]
        sketch[(shift + number % block(config)) % config.dims] += drawn.signs[number] * value
    return sketch


configs = st.builds(
    Muvera,
    dim=st.just(5),
    repetitions=st.integers(1, 4),
    simhash_bits=st.integers(0, 5),
    projection=st.none() | st.integers(1, 5),
    final_dims=st.none() | st.integers(1, 50),
    seed=st.integers(0, 1000),
)


# Derandomised: a token that happens to lie on a hyperplane would be a matter of rounding.
@given(configs, st.lists(st.integers(1, 12), min_size=1, max_size=3), st.integers(0, 1000))
@settings(deadline=None, derandomize=True)
def test_encodings_are_those_of_the_literal_definition(config: Muvera, lengths: list[int], seed: int) -> None:
    given_texts = texts(seed, lengths, config.dim)
    for is_query, made in (
        (True, config.encode_queries(given_texts)),
        (False, config.encode_documents(given_texts)),
    ):
        wanted = [literal(text, config, is_query) for text in given_texts]
        assert made.dtype == np.float32 and made.shape == (len(lengths), config.dims)
        assert np.allclose(made, wanted, rtol=1e-4, atol=1e-4)


def test_neighbouring_buckets_differ_in_one_hyperplane() -> None:
    for bits in range(1, 13):
        places = module._places(bits)
        code_at = np.argsort(places)
        assert sorted(places.tolist()) == list(range(1 << bits))
        assert all(int(a ^ b).bit_count() == 1 for a, b in itertools.pairwise(code_at))


# -- what the encodings are good for -------------------------------------------------------------------------------


def clustered(seed: int, documents: int, queries: int, dim: int) -> tuple[list[Floats], list[Floats]]:
    """Token vectors of documents about three of sixty topics each, and queries of tokens near a document's."""
    random = np.random.RandomState(seed)
    topics = random.standard_normal((60, dim))
    topic_of = random.randint(len(topics), size=2000)
    words = topics[topic_of] + 0.7 * random.standard_normal((len(topic_of), dim))

    def unit(rows: npt.NDArray[np.float64]) -> Floats:
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)

    corpus: list[Floats] = []
    for _ in range(documents):
        pool = np.flatnonzero(np.isin(topic_of, random.choice(len(topics), 3, replace=False)))
        own = words[random.choice(pool, random.randint(12, 40))]
        corpus.append(unit(own + 0.3 * random.standard_normal(dim) + 0.5 * random.standard_normal(own.shape)))
    asked = []
    for _ in range(queries):
        source = corpus[random.randint(documents)]
        tokens = source[random.choice(len(source), 12)]
        asked.append(unit(tokens + 0.5 * random.standard_normal(tokens.shape) / np.sqrt(dim)))
    return corpus, asked


def best(scores: Floats, count: int) -> npt.NDArray[np.intp]:
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


def recall(wanted: npt.NDArray[np.intp], found: npt.NDArray[np.intp]) -> float:
    return float(np.mean([np.isin(own, theirs).mean() for own, theirs in zip(wanted, found, strict=True)]))


def test_the_best_documents_by_maxsim_are_found_by_one_inner_product() -> None:
    documents, queries = clustered(seed=1, documents=2000, queries=50, dim=32)
    wanted = best(maxsim_batch(queries, documents), 10)
    config = Muvera(32)
    scores = config.encode_queries(queries) @ config.encode_documents(documents).T
    assert recall(wanted[:, :1], best(scores, 10)) >= 0.98, "the best one is among the first 10"
    assert recall(wanted, best(scores, 50)) >= 0.9, "the ten best are among the first 50"
    assert recall(wanted, best(scores, 100)) >= 0.97, "the ten best are among the first 100"
    means = [np.stack([text.mean(axis=0) for text in each]) for each in (queries, documents)]
    pooled = means[0] @ (means[1] / np.linalg.norm(means[1], axis=1, keepdims=True)).T
    assert recall(wanted, best(pooled, 50)) < 0.8, "the mean of the tokens would do as well: this shows nothing"


def test_without_the_final_projection_scores_follow_maxsim_from_below() -> None:
    documents, queries = clustered(seed=2, documents=300, queries=20, dim=16)
    exact = maxsim_batch(queries, documents)
    config = Muvera(16, final_dims=None, simhash_bits=7)
    scores = config.encode_queries(queries) @ config.encode_documents(documents).T / config.repetitions
    assert (scores <= exact + 1e-3).all()
    assert np.mean([np.corrcoef(one, other)[0, 1] for one, other in zip(scores, exact, strict=True)]) > 0.9


def test_the_final_projection_keeps_inner_products_on_average() -> None:
    query, document = texts(7, [8, 20], 8)
    plain = Muvera(8, repetitions=6, simhash_bits=3, final_dims=None)
    encodings = np.concatenate([plain.encode_queries([query]), plain.encode_documents([document])])
    exact = float(encodings[0] @ encodings[1])
    errors = []
    for seed in range(300):
        config = msgspec.structs.replace(plain, final_dims=100, seed=seed)
        sketched = module._sketched(config, draws(config), encodings.copy())
        errors.append(float(sketched[0] @ sketched[1]) - exact)
    # The variance of a count sketch's inner product is at most (|x|^2 |y|^2 + (x y)^2) / dims.
    spread = np.sqrt(((encodings**2).sum(axis=1).prod() + exact**2) / 100)
    assert np.std(errors) < 1.2 * spread
    assert abs(np.mean(errors)) < 4 * spread / np.sqrt(len(errors))


# -- the same for ever ---------------------------------------------------------------------------------------------

FINGERPRINT = """
import hashlib
import numpy as np
from sie_bundle.operations.muvera import Muvera, draws
drawn = draws(Muvera(16, projection=4, final_dims=100, seed=7))
whole = [drawn.projections > 0, drawn.signs.astype(np.int8), np.array(drawn.shifts, np.int64)]
print(hashlib.sha256(b"".join(each.tobytes() for each in whole)).hexdigest(), drawn.hyperplanes[0, :3].tolist())
"""


def test_the_random_choices_are_the_same_in_every_process_and_release() -> None:
    answer = subprocess.run([sys.executable, "-c", FINGERPRINT], capture_output=True, text=True, check=True)
    digest, planes = answer.stdout.split(" ", 1)
    drawn = draws(Muvera(16, projection=4, final_dims=100, seed=7))
    assert drawn.projections is not None and drawn.signs is not None
    whole = [drawn.projections > 0, drawn.signs.astype(np.int8), np.array(drawn.shifts, np.int64)]
    assert digest == hashlib.sha256(b"".join(each.tobytes() for each in whole)).hexdigest()
    # Pinned: encodings that callers have stored depend on them.
    assert digest == "277b4253753f195dfb8809b0f0ce0b9bef75f36545deab1acc309e9445fd633c"
    assert np.allclose(msgspec.json.decode(planes), [-0.10008410, 0.25419962, -1.15525222], atol=1e-6)


def test_the_inner_projection_keeps_inner_products_on_average() -> None:
    projections = draws(Muvera(16, repetitions=1024, projection=4)).projections
    assert projections is not None and projections.shape == (1024, 16, 4)
    assert set(np.unique(projections).tolist()) == {-0.5, 0.5}, "+-1 over the root of its dimensions"
    assert np.allclose((projections @ projections.transpose(0, 2, 1)).mean(axis=0), np.eye(16), atol=0.1)


def test_another_seed_is_another_encoding_and_the_same_one_the_same() -> None:
    (text,) = texts(1, [9], 16)
    made = Muvera(16, seed=1).encode_queries([text])
    assert np.array_equal(made, Muvera(16, seed=1).encode_queries([text]))
    assert not np.allclose(made, Muvera(16, seed=2).encode_queries([text]))
    assert draws(Muvera(16, seed=1)) is draws(Muvera(16, seed=1)), "drawn once"


def test_an_encoding_does_not_depend_on_the_texts_beside_it() -> None:
    config = Muvera(24)
    together = texts(3, [1, 30, 7, 129, 2], 24)
    for encode in (config.encode_queries, config.encode_documents):
        alone = np.concatenate([encode([text]) for text in together])
        assert np.array_equal(encode(together), alone)


@pytest.mark.parametrize("projection", [None, 3])
def test_tiles_do_not_change_encodings(monkeypatch: pytest.MonkeyPatch, projection: int | None) -> None:
    config = Muvera(12, projection=projection)
    given_texts = texts(4, [5, 40, 3], 12)
    whole = config.encode_documents(given_texts)
    monkeypatch.setattr(module, "WEIGHTS", 7 * 64 * 40)
    monkeypatch.setattr(module, "ENCODINGS", 1)
    assert np.allclose(config.encode_documents(given_texts), whole, rtol=1e-5, atol=1e-5)


def test_fewer_repetitions_are_the_beginning_of_more() -> None:
    given_texts = texts(5, [6, 11], 8)
    few, more = (Muvera(8, repetitions=count, final_dims=None).encode_documents(given_texts) for count in (3, 5))
    assert np.allclose(more[:, : few.shape[1]], few, rtol=1e-5, atol=1e-5)


def test_a_final_projection_that_is_not_smaller_is_left_out() -> None:
    given_texts = texts(6, [6, 11], 4)
    plain = Muvera(4, repetitions=2, simhash_bits=2, final_dims=None)
    assert plain.dims == 32
    for final in (32, 33, 10240):
        config = msgspec.structs.replace(plain, final_dims=final)
        assert config.dims == 32
        assert np.array_equal(config.encode_queries(given_texts), plain.encode_queries(given_texts))
    assert Muvera(96).dims == 10240 and Muvera(96, final_dims=None).dims == 40 * 64 * 96


def test_no_texts_have_no_encodings() -> None:
    assert Muvera(8).encode_queries([]).shape == (0, 10240)


@pytest.mark.parametrize("shape", [(0, 8), (8,), (3, 7), (1, 3, 8)])
def test_texts_without_tokens_or_of_another_shape_are_refused_by_name(shape: tuple[int, ...]) -> None:
    (good,) = texts(0, [3], 8)
    for encode in (Muvera(8).encode_queries, Muvera(8).encode_documents):
        with pytest.raises(InvalidInputError) as caught:
            encode([good, np.zeros(shape, np.float32)])
        assert caught.value.field == "items[1]" and caught.value.limit == 8


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("repetitions", value) for value in (0, -1, 1025, 2.0, "40", None, True)),
        *(("simhash_bits", value) for value in (-1, 13, 2.5)),
        *(("projection", value) for value in (0, 9, "2")),
        *(("final_dims", value) for value in (0, -5, 1.5)),
        *(("seed", value) for value in (-1, 1 << 32, "a")),
    ],
)
def test_fields_out_of_their_range_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidInputError) as caught:
        msgspec.structs.replace(Muvera(8), **{field: value})
    assert caught.value.field == f"params.options.muvera.{field}" and caught.value.limit is not None


def test_an_encoding_too_large_for_memory_is_refused() -> None:
    assert Muvera(128, repetitions=32, simhash_bits=12).dims == 10240
    with pytest.raises(InvalidInputError) as caught:
        Muvera(128, repetitions=33, simhash_bits=12)
    assert caught.value.field == "params.options.muvera" and caught.value.limit == 1 << 24


@pytest.mark.parametrize("lengths", [[4096], [8] * 120])
def test_memory_is_bounded_for_long_texts_and_for_many(lengths: list[int]) -> None:
    config = Muvera(64)
    given_texts = texts(1, lengths, 64)
    draws(config)
    tracemalloc.start()
    config.encode_documents(given_texts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30 << 20, "all weights, or all encodings before the projection, would take 42 or 79 MB"


@pytest.mark.parametrize(
    "sizes",
    [
        {"dim": 1024, "simhash_bits": 0, "projection": 1024},
        {"dim": 4096, "simhash_bits": 6, "projection": 1},
    ],
    ids=["projections", "hyperplanes"],
)
def test_one_whose_random_choices_would_be_too_large_for_memory_is_refused(sizes: dict[str, int]) -> None:
    per_repetition = sizes["dim"] * max(sizes["simhash_bits"], sizes["projection"])
    assert Muvera(repetitions=(1 << 24) // per_repetition, **sizes).dims
    with pytest.raises(InvalidInputError) as caught:
        Muvera(repetitions=(1 << 24) // per_repetition + 1, **sizes)
    assert caught.value.field == "params.options.muvera" and caught.value.limit == 1 << 24


def test_memory_is_bounded_for_a_wide_projection_too() -> None:
    config = Muvera(128, repetitions=64, simhash_bits=0, projection=128, final_dims=None)
    (text,) = texts(1, [4096], 128)
    draws(config)
    tracemalloc.start()
    config.encode_documents([text])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30 << 20, "the tokens under all projections would take 128 MB"


def test_of_random_choices_a_few_megabytes_are_kept_whatever_options_ask_for() -> None:
    small = draws(Muvera(16, seed=3))
    tracemalloc.start()
    for seed in range(4):  # 17 MB each
        draws(Muvera(128, repetitions=512, simhash_bits=0, projection=64, seed=seed))
    assert tracemalloc.get_traced_memory()[0] < 1 << 20
    assert draws(Muvera(16, seed=3)) is small, "what is too large to be kept takes no other's place"
    for seed in range(10):  # 3 MB each
        draws(Muvera(128, repetitions=96, simhash_bits=0, projection=64, seed=seed))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held <= module.KEPT + (1 << 20)
    assert draws(Muvera(16, seed=3)) is not small, "those used last stay"
