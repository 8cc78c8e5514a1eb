"""The real text-embeddings-inference beside ours, with the same weights: the same requests, the same answers.

Skipped where its program is nowhere (``SIE_BENCH_TEI``, as ``bench`` has it), or ends for want of an instruction.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from bench import installs, peers

from sie_local.ports import free_port
from tests.compat.dialects.conftest import CLASSIFIER
from tests.compat.every_task import DENSE, RERANKER
from tests.golden.checkpoints import checkpoint
from tests.platform import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.weights]

MODELS = {"minilm": DENSE, "msmarco-reranker": RERANKER, "question-classifier": CLASSIFIER}
FULL = {
    "attention_probs_dropout_prob": 0.1,
    "classifier_dropout": None,
    "hidden_dropout_prob": 0.1,
    "initializer_range": 0.02,
    "num_attention_heads": 12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "use_cache": True,
}
"""What its reader of config.json demands."""
LONG = "word " * 400
QUESTION, TEXTS = "how many people live in Berlin?", ["Rome is old.", "Berlin has 3.5 million inhabitants."]
SAME: list[tuple[str, str, Any]] = [
    ("minilm", "/embed", {"inputs": "A cat sits."}),
    ("minilm", "/embed", {"inputs": ["A cat sits.", "Rates rose."]}),
    ("minilm", "/embed", {"inputs": "A cat sits.", "normalize": False}),
    ("minilm", "/embed", {"inputs": LONG}),
    ("minilm", "/embed", {"inputs": LONG, "truncate": True}),
    ("minilm", "/embed", {"inputs": LONG, "truncate": False}),
    ("minilm", "/embed", {"inputs": "a", "truncation_direction": "Left", "truncate": None}),
    ("minilm", "/embed", {"inputs": "a", "truncation_direction": "x"}),
    ("minilm", "/embed", {"inputs": "a", "dimensions": 5000}),
    ("minilm", "/embed", {"inputs": "a", "dimensions": 384}),
    ("minilm", "/embed", {"inputs": "a", "prompt_name": "poem"}),
    ("minilm", "/embed", {"inputs": ""}),
    ("minilm", "/embed", {"inputs": []}),
    ("minilm", "/embed", {"inputs": ["a", ""]}),
    ("minilm", "/embed", {"inputs": 3}),
    ("minilm", "/embed", {}),
    ("minilm", "/embed", {"inputs": "a", "normalize": None}),
    ("minilm", "", {"inputs": ["A cat sits."]}),
    ("minilm", "/similarity", {"inputs": {"source_sentence": "A cat sits.", "sentences": ["A kitten.", "Rates."]}}),
    ("minilm", "/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}),
    ("minilm", "/similarity", {"inputs": {"source_sentence": "", "sentences": ["a"]}}),
    ("minilm", "/rerank", {"query": "a", "texts": ["b"]}),
    ("minilm", "/predict", {"inputs": "a"}),
    ("minilm", "/embed_sparse", {"inputs": "a"}),
    ("minilm", "/v1/embeddings", {"input": ["A cat sits."], "model": "any"}),
    ("minilm", "/v1/embeddings", {"input": "", "model": "any"}),
    ("msmarco-reranker", "/rerank", {"query": QUESTION, "texts": TEXTS}),
    ("msmarco-reranker", "/rerank", {"query": QUESTION, "texts": TEXTS, "raw_scores": True, "return_text": True}),
    ("msmarco-reranker", "/rerank", {"query": "", "texts": ["a"]}),
    ("msmarco-reranker", "/rerank", {"query": "q", "texts": ["a", ""]}),
    ("msmarco-reranker", "/rerank", {"query": "q", "texts": []}),
    ("msmarco-reranker", "/rerank", {"query": "q", "texts": "a"}),
    ("msmarco-reranker", "/predict", {"inputs": [QUESTION, TEXTS[1]]}),
    ("msmarco-reranker", "/predict", {"inputs": [[QUESTION, text] for text in TEXTS]}),
    ("msmarco-reranker", "/predict", {"inputs": [[QUESTION, text] for text in TEXTS], "raw_scores": True}),
    ("msmarco-reranker", "", {"query": QUESTION, "texts": TEXTS}),
    ("msmarco-reranker", "/embed", {"inputs": "a"}),
    ("question-classifier", "/predict", {"inputs": "What is a dog?"}),
    ("question-classifier", "/predict", {"inputs": ["What is a dog?"]}),
    ("question-classifier", "/predict", {"inputs": [["What is a dog?"], ["who are you"]]}),
    ("question-classifier", "/predict", {"inputs": [["a", "b", "c"]]}),
    ("question-classifier", "/predict", {"inputs": ""}),
    ("question-classifier", "/predict", {"inputs": []}),
    ("question-classifier", "/predict", {"inputs": "What is a dog?", "parameters": {"top_k": 1}}),
    ("question-classifier", "", {"inputs": "What is a dog?"}),
]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The URLs of one server of TEI for each model."""
    try:
        program = installs.tei_program(print)
        libraries = installs.environment("tei", installs.OWN_PYTHON, peers.TEI_LIBRARIES, print) / "lib"
    except installs.Unavailable as reason:
        pytest.skip(str(reason))
    (runtime,) = libraries.glob("python*/site-packages/onnxruntime/capi/libonnxruntime.so.*")
    env = os.environ | {"LD_LIBRARY_PATH": str(libraries), "ORT_DYLIB_PATH": str(runtime), "RUST_LOG": "error"}
    running, urls = [], {}
    try:
        for name in MODELS:
            port, folder = free_port(), folder_for(name, tmp_path_factory.mktemp(name))
            command = [str(program), "--model-id", str(folder), "--hostname", "127.0.0.1", "--port", str(port)]
            command += ["--prometheus-port", str(free_port())]
            running.append(subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            urls[name] = f"http://127.0.0.1:{port}"
        for process, url in zip(running, urls.values(), strict=True):
            wait_until(lambda url=url: healthy(url), 60)  # type: ignore[misc]
            try:
                httpx.post(url, json={"inputs": "a"}, timeout=60)
            except httpx.TransportError:
                if process.wait(60) == -signal.SIGILL:
                    pytest.skip("this processor has not the instructions that text-embeddings-router was built for")
                raise
        yield urls
    finally:
        for process in running:
            process.terminate()
            process.wait(20)


def folder_for(name: str, folder: Path) -> Path:
    """The checkpoint with a config.json that TEI reads."""
    source = checkpoint(name)
    for path in source.iterdir():
        (folder / path.name).symlink_to(path)
    config = FULL | json.loads((source / "config.json").read_text())
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=1).is_success
    except httpx.TransportError:
        return False


@pytest.mark.parametrize(("model", "route", "body"), SAME)
def test_the_same_request_has_the_same_answer_or_the_same_kind_of_refusal(
    served: str, real: dict[str, str], model: str, route: str, body: Any
) -> None:
    theirs = httpx.post(f"{real[model]}{route or '/'}", json=body, timeout=60)
    ours = httpx.post(f"{served}/tei/{MODELS[model]}{route}", json=body, timeout=60)
    assert ours.status_code == theirs.status_code, ours.text
    if theirs.status_code == 200:
        same(without_model(ours.json()), without_model(theirs.json()))
    elif "error_type" in theirs.text:
        assert ours.json()["error_type"] == theirs.json()["error_type"]


def without_model(answer: Any) -> Any:
    return {**answer, "model": ""} if isinstance(answer, dict) else answer


def same(ours: Any, theirs: Any) -> None:
    """The same structure, texts and labels; numbers but for its approximate GELU."""
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs) or sorted(ours) == sorted(theirs)
        for name in theirs:
            same(ours[name], theirs[name])
    elif isinstance(theirs, list) and theirs and isinstance(theirs[0], float):
        assert len(ours) == len(theirs)
        np.testing.assert_allclose(ours, theirs, atol=2e-3 * max(1.0, float(np.linalg.norm(theirs))))
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, rel=0.02, abs=1e-4)
    else:
        assert ours == theirs


@pytest.mark.parametrize("model", MODELS)
def test_it_tells_of_its_model_with_the_same_words(served: str, real: dict[str, str], model: str) -> None:
    ours, theirs = (httpx.get(url, timeout=5) for url in (f"{served}/tei/{MODELS[model]}/info", f"{real[model]}/info"))
    assert set(ours.json()) <= set(theirs.json())
    assert ours.json()["max_input_length"] == theirs.json()["max_input_length"]
    assert list(ours.json()["model_type"]) == list(theirs.json()["model_type"])
