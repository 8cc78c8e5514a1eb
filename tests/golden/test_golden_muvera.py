"""MUVERA on token vectors of a real ColBERT, against true MaxSim: the paper's bound, and how many of the best it finds.

The texts are docstrings of the standard library, their first paragraphs queries. The checkpoint's projection is random
(``checkpoint_table``), so that all its tokens look much the same way and the documents' scores differ little: what is
found of them says that encodings rank as MaxSim does, not how well they would with a trained one.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import ModuleType
from typing import cast

import numpy as np
import pytest

from sie_bundle.engine.outputs import Floats
from sie_bundle.operations.encode import encode_rows
from sie_bundle.operations.muvera import Muvera
from sie_bundle.operations.options import Options
from sie_bundle.operations.tokens import kept
from sie_sdk.scoring import maxsim
from tests.golden.test_golden_models import COLBERT, loaded

pytestmark = pytest.mark.weights

MODULES = (
    "argparse",
    "collections",
    "decimal",
    "http.client",
    "logging",
    "os",
    "random",
    "statistics",
    "subprocess",
    "tarfile",
)
BEST, QUERIES, SEEDS = 10, 40, (1, 2, 42)


def docstrings(module: ModuleType) -> Iterator[str]:
    for name, thing in sorted(vars(module).items()):
        members = sorted(vars(thing).items()) if inspect.isclass(thing) else []
        for public, each in [(name, thing), *members]:
            if not public.startswith("_") and callable(each):
                yield inspect.getdoc(each) or ""


@lru_cache(maxsize=1)
def vectors() -> tuple[list[Floats], list[Floats], Floats]:
    """Of queries and documents, and their MaxSim scores [queries, documents]."""
    pairs = {
        document: query
        for name in MODULES
        for query, _, document in (each.partition("\n\n") for each in docstrings(importlib.import_module(name)))
        if 15 < len(query) < 200 and len(document) > 80
    }
    every = max(1, len(pairs) // QUERIES)
    queries, documents = embedded([*pairs.values()][::every], is_query=True), embedded([*pairs], is_query=False)
    return queries, documents, np.stack([maxsim(query, documents) for query in queries])


def embedded(texts: Sequence[str], *, is_query: bool) -> list[Floats]:
    model, found = loaded("answerai-colbert", "auto"), list[Floats]()
    rows = encode_rows(model, model.spec, texts, Options(None, (), "options"), ["multivector"], is_query)
    for start in range(0, len(rows), 32):
        part = rows[start : start + 32]
        states = model.forward(part, {"multivector": range(len(part))})["multivector"]
        found += kept(cast("list[Floats]", states), part, model.tokenizer, COLBERT, is_query)
    return found


@lru_cache(maxsize=8)
def products(encoding: Muvera) -> Floats:
    """What stands for the scores."""
    queries, documents, _ = vectors()
    return encoding.encode_queries(queries) @ encoding.encode_documents(documents).T


def recall(found: Floats, first: int) -> float:
    """How many of a query's best documents are among the first candidates."""
    _, _, scores = vectors()
    best, candidates = np.argsort(-scores, axis=1)[:, :BEST], np.argsort(-found, axis=1)[:, :first]
    return float(np.mean([np.isin(one, other).mean() for one, other in zip(best, candidates, strict=True)]))


@pytest.mark.parametrize("bits", [0, 3, 6])
def test_no_encoding_exceeds_the_score_it_stands_for(bits: int) -> None:
    encoding = Muvera(dim=COLBERT.dim, repetitions=20, simhash_bits=bits, final_dims=None)
    _, _, scores = vectors()
    assert (products(encoding) / encoding.repetitions <= scores + 1e-3).all()


def test_more_bits_come_nearer_to_the_score() -> None:
    _, _, scores = vectors()
    few, many = (Muvera(dim=COLBERT.dim, repetitions=20, simhash_bits=bits, final_dims=None) for bits in (0, 6))
    assert (scores - products(many) / 20).mean() < 0.9 * (scores - products(few) / 20).mean()


@pytest.mark.parametrize("seed", SEEDS)
def test_encodings_find_the_best_by_maxsim_far_better_than_chance(seed: int) -> None:
    _, documents, _ = vectors()
    whole = products(Muvera(dim=COLBERT.dim, repetitions=20, final_dims=None, seed=seed))
    reduced = products(Muvera(dim=COLBERT.dim, seed=seed))
    first = len(documents) // 5
    assert recall(whole, BEST) > 4 * BEST / len(documents)
    assert recall(whole, first) > 0.55 and recall(reduced, first) > 0.35, "a fifth of all would be 0.2"


def test_more_repetitions_find_more() -> None:
    def found(repetitions: int, seed: int) -> float:
        return recall(products(Muvera(dim=COLBERT.dim, repetitions=repetitions, final_dims=None, seed=seed)), BEST)

    assert np.mean([found(20, seed) for seed in SEEDS]) > 1.2 * np.mean([found(1, seed) for seed in SEEDS])
