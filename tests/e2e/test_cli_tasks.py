"""Every task from the command line, against a real server: what it prints is what the client gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sie_sdk import SIEClient
from tests.e2e import every_task
from tests.e2e.conftest import serving
from tests.golden import gliner_folder

pytestmark = pytest.mark.e2e

SIE = str(Path(sys.executable).with_name("sie"))
TEXTS = ["hello world", "the ship", "a lighthouse", "hello ship"]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a tiny model of random weights for every task."""
    with serving("--models", str(every_task.make(tmp_path_factory.mktemp("tasks")))) as served:
        yield served


def sie(url: str, *arguments: str, stdin: str | None = None) -> list[dict[str, Any]]:
    """One command with --json: its lines."""
    env = os.environ | {"SIE_BASE_URL": url}
    done = subprocess.run(
        [SIE, *arguments, "--json"], env=env, input=stdin, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_representation_is_what_the_client_gets(url: str) -> None:
    printed = sie(url, "encode", "test/bge-m3", *TEXTS, "-t", "dense", "-t", "sparse", "-t", "multivector")
    with SIEClient(url) as client:
        results = client.encode("test/bge-m3", TEXTS, output_types=["dense", "sparse", "multivector"])
    for line, result in zip(printed, results, strict=True):
        assert result.dense is not None and result.sparse is not None and result.multivector is not None
        assert np.allclose(line["dense"], result.dense, atol=1e-6)
        assert line["sparse"]["indices"] == result.sparse.indices.tolist()
        assert np.allclose(line["sparse"]["values"], result.sparse.values, atol=1e-6)
        assert np.allclose(line["multivector"], result.multivector, atol=1e-6)


def test_a_ranking_of_more_than_one_request_is_the_client_s(url: str) -> None:
    texts = [f"{TEXTS[number % 4]} {TEXTS[number % 3]} {number}" for number in range(600)]
    printed = sie(url, "score", "test/bert-reranker", "hello", "-", "--top", "50", "--quiet", stdin="\n".join(texts))
    with SIEClient(url) as client:
        best = client.score("test/bert-reranker", "hello", texts).scores[:50]
    assert np.allclose([line["score"] for line in printed], [entry.score for entry in best], atol=1e-5)
    assert [line["rank"] for line in printed] == list(range(50))
    scores = {line["index"]: line["score"] for line in printed}
    assert all(scores[entry.index] == pytest.approx(entry.score, abs=1e-5) for entry in best if entry.index in scores)


@pytest.mark.parametrize("model", ["test/bert-ner", "test/bert-nli"])
def test_what_is_extracted_is_what_the_client_gets(url: str, model: str) -> None:
    printed = sie(url, "extract", model, *TEXTS)
    with SIEClient(url) as client:
        results = client.extract(model, TEXTS)
    for line, result in zip(printed, results, strict=True):
        assert [(found["label"], found["start"]) for found in line["entities"]] == [
            (entity.label, entity.start) for entity in result.entities
        ]
        assert [found["label"] for found in line["classifications"]] == [
            found.label for found in result.classifications
        ]


@pytest.mark.parametrize("kind", gliner_folder.KINDS)
def test_labels_of_one_s_own_are_found_over_spans(url: str, kind: str) -> None:
    model, labels = f"test/gliner-{kind}", ["person", "ship", "place name"]
    asked = [word for label in labels for word in ("-l", label)]
    printed = sie(url, "extract", model, *TEXTS, *asked, "--threshold", "0.3", "--option", "flat_ner=false")
    with SIEClient(url) as client:
        results = client.extract(model, TEXTS, labels=labels, options={"threshold": 0.3, "flat_ner": False})
    assert sum(len(line["entities"]) for line in printed) > 4
    for text, line, result in zip(TEXTS, printed, results, strict=True):
        told = [(found["label"], found["start"], found["end"]) for found in line["entities"]]
        assert told == [(entity.label, entity.start, entity.end) for entity in result.entities]
        assert all(found["text"] == text[found["start"] : found["end"]] for found in line["entities"])
        assert {found["label"] for found in line["entities"]} <= set(labels)


@pytest.mark.parametrize(
    ("operation", "model", "before"),
    [("encode", "test/bge-m3", ()), ("score", "test/bert-reranker", ("hello",)), ("extract", "test/bert-ner", ())],
)
def test_a_job_of_any_operation_has_the_result_of_its_command(
    url: str, operation: str, model: str, before: tuple[str, ...]
) -> None:
    (submitted,) = sie(url, "jobs", "submit", operation, model, *before, *TEXTS)
    results = [
        {name: value for name, value in line.items() if name != "timing"}
        for line in sie(url, "jobs", "result", submitted["id"])
    ]
    direct = sie(url, operation, model, *before, *TEXTS)
    assert len(results) == len(TEXTS)
    for result, line in zip(results, direct, strict=True):
        assert result.keys() == line.keys() - {"timing"}
        if operation == "score":
            assert (result["index"], result["score"]) == (line["index"], pytest.approx(line["score"], abs=1e-5))


@pytest.mark.parametrize(
    ("model", "operation"),
    [("test/bge-m3", "encode"), ("test/bert-reranker", "score"), ("test/bert-nli", "extract")],
)
def test_a_measurement_asks_each_model_for_what_it_does(url: str, model: str, operation: str) -> None:
    (row,) = sie(url, "bench", model, "--clients", "2", "--requests", "6", "--texts", "2")
    assert (row["operation"], row["requests"], row["errors"]) == (operation, 6, {})


def test_a_model_s_page_names_a_command_that_works(url: str) -> None:
    env = os.environ | {"SIE_BASE_URL": url, "PATH": f"{Path(SIE).parent}:{os.environ['PATH']}"}
    for model in ("bge-m3", "bert-reranker", "bert-ner", "gliner-bert"):
        shown = subprocess.run([SIE, "models", "show", model], env=env, capture_output=True, text=True, check=True)
        calls = [line.strip() for line in shown.stdout.split("Call it:\n")[1].splitlines() if "  sie " in line]
        assert calls
        for call in calls:
            done = subprocess.run(["bash", "-c", call], env=env, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, f"{call}\n{done.stderr}"
