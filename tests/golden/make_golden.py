"""Makes the golden files: what the reference libraries compute with each checkpoint. Run by hand, rarely.

    python -m venv /tmp/golden-venv
    /tmp/golden-venv/bin/pip install -c constraints.txt -e '.[bundle]' onnx sentence-transformers
    /tmp/golden-venv/bin/python -m tests.golden.make_golden minilm bert-ner     # without names: all

One text at a time, on the CPU, in float32, so that the reference has no padding in it. Next to each result are the
token ids it was computed of: a difference in tokenization shows apart from one in arithmetic. ``golden`` reads the
files back.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tests.golden.checkpoint_table import CHECKPOINTS
from tests.golden.checkpoints import checkpoint

# Not imported by name: types of theirs would be checked, for minutes.
transformers: Any = import_module("transformers")
sentence_transformers: Any = import_module("sentence_transformers")

HERE = Path(__file__).parent
NER_STRIDE = 128
"""Tokens that the windows of a text longer than the model share."""
QUERIES = ("short", "query", "accents and case", "emoji", "empty", "special token as text")
"""The texts that are also encoded with the query prompt, where the model has one."""
COLBERT_DOCUMENTS = ("sentence", "punctuation", "code", "chinese and arabic", "medium")
COLBERT_QUERIES = ("short", "query", "emoji", "accents and case", "medium")
COLBERT_STATES = ("short", "emoji")
TAGGED = ("sentence", "one word", "accents", "emoji", "lower case", "control and zero width")
"""The texts of the tagger with many tags; all would be a large file."""

Array = npt.NDArray[Any]
Arrays = dict[str, Any]


def read(name: str) -> Any:
    """One of the JSON files with inputs."""
    return json.loads((HERE / name).read_text())


def flat(rows: Sequence[Any], dtype: str = "int32") -> Array:
    """Rows of different length after each other."""
    return np.concatenate([np.asarray(row, dtype) for row in rows])


def tokens(ids: Sequence[Sequence[int]], prefix: str = "") -> Arrays:
    """Token ids as two arrays: all after each other, and how many belong to each text."""
    return {f"{prefix}tokens": flat(ids), f"{prefix}lengths": np.array([len(row) for row in ids], "int32")}


def dense(folder: Path, key: str) -> Arrays:
    """Vectors of all texts with the document prompt, and of some with the query prompt."""
    model, record = sentence_transformers.SentenceTransformer(str(folder), device="cpu"), CHECKPOINTS[key]
    model.max_seq_length = record.max_length

    def encode(texts: Sequence[str], prompt: str, prefix: str = "") -> Arrays:
        ids = [model.preprocess([prompt + text])["input_ids"][0].tolist() for text in texts]
        vectors = np.stack([model.encode(text, prompt=prompt or None) for text in texts])
        return {f"{prefix}vectors": vectors.astype("float32"), **tokens(ids, prefix)}

    texts = read("texts.json")
    made = {"names": list(texts), **encode(list(texts.values()), record.document_prompt)}
    if record.query_prompt:
        made |= {"query_names": list(QUERIES)}
        made |= encode([texts[name] for name in QUERIES], record.query_prompt, "query_")
    return made


def rerank(folder: Path, key: str) -> Arrays:
    """The logit of each pair, before any activation."""
    model = sentence_transformers.CrossEncoder(str(folder), device="cpu", max_length=CHECKPOINTS[key].max_length)
    ids, types, logits = [], [], []
    for pair in read("pairs.json"):
        features = model.preprocess([pair])
        ids.append(features["input_ids"][0].tolist())
        types.append(features["token_type_ids"][0].tolist())
        logits.append(model.predict([pair], activation_fn=torch.nn.Identity())[0])
    return {**tokens(ids), "token_types": flat(types, "int8"), "logits": np.array(logits, "float32")}


def multivector(folder: Path, key: str) -> Arrays:
    """Unit token vectors: queries three ways, documents, and states before the projection."""
    model, texts = sentence_transformers.MultiVectorEncoder(str(folder), device="cpu"), read("texts.json")
    made: Arrays = {"query_names": list(COLBERT_QUERIES), "document_names": list(COLBERT_DOCUMENTS)}

    def encode(names: Sequence[str], task: str, prefix: str) -> list[Array]:
        call = model.encode_query if task == "query" else model.encode_document
        vectors = [call(texts[name], convert_to_numpy=True) for name in names]
        features = [call(texts[name], output_value=None) for name in names]
        made.update(tokens([one["input_ids"].tolist() for one in features], prefix))
        # Which tokens have a vector: documents lose their punctuation.
        made[f"{prefix}kept"] = flat([one["attention_mask"].tolist() for one in features], "bool")
        made[f"{prefix}vectors"] = np.concatenate(vectors).astype("float32")
        return vectors

    documents = encode(COLBERT_DOCUMENTS, "document", "document_")
    # As published: filled up with [MASK] to 32 tokens, which see the query and are not seen by it.
    queries = encode(COLBERT_QUERIES, "query", "query_")
    made["scores"] = np.array([[(q @ d.T).max(axis=1).sum() for d in documents] for q in queries], "float32")
    model[0].query_expansion = {"strategy": "fixed", "attend": True, "length": 32}
    encode(COLBERT_QUERIES[:3], "query", "attended_query_")
    model[0].query_expansion = None
    encode(COLBERT_QUERIES[:3], "query", "plain_query_")

    body = transformers.BertModel.from_pretrained(folder).eval()
    ids = [model.preprocess([texts[name]], task="document")["input_ids"] for name in COLBERT_STATES]
    with torch.inference_mode():
        states = [torch.nn.functional.normalize(body(input_ids=row).last_hidden_state[0], dim=-1) for row in ids]
    made |= {"state_names": list(COLBERT_STATES), **tokens([row[0].tolist() for row in ids], "state_")}
    return made | {"state_vectors": np.concatenate([state.numpy() for state in states])}


def token_labels(folder: Path, key: str) -> Arrays:
    """A logit per token and label; a NER model's entities go into KEY.json, by strategy and text."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder).eval()
    texts = read("entities.json")
    names = list(TAGGED) if model.config.num_labels > 20 else list(texts)
    ids, offsets, logits = [], [], []
    for name in names:
        row = tokenizer(
            texts[name], truncation=True, max_length=CHECKPOINTS[key].max_length, return_offsets_mapping=True
        )
        ids.append(row["input_ids"])
        offsets.append(row["offset_mapping"])
        with torch.inference_mode():
            logits.append(model(input_ids=torch.tensor([row["input_ids"]])).logits[0].numpy())
    if model.config.num_labels <= 20:
        _write_entities(model, tokenizer, texts, key)
    return {"names": names, **tokens(ids), "offsets": flat(offsets), "logits": np.concatenate(logits)}


def _write_entities(model: Any, tokenizer: Any, texts: dict[str, str], key: str) -> None:
    entities: dict[str, dict[str, Any]] = {}
    for strategy in ("none", "simple", "first", "average", "max"):
        run = transformers.pipeline(
            "ner", model=model, tokenizer=tokenizer, aggregation_strategy=strategy, device="cpu"
        )
        entities[strategy] = {
            name: [_plain(entity) for entity in run(text)] for name, text in texts.items() if name != "long"
        }
        if strategy != "none":
            # Longer than the model: windows that overlap.
            windows = transformers.pipeline(
                "ner", model=model, tokenizer=tokenizer, aggregation_strategy=strategy, stride=NER_STRIDE, device="cpu"
            )
            entities[strategy]["long"] = [_plain(entity) for entity in windows(texts["long"])]
    lines = ",\n".join(
        f"{json.dumps(strategy)}: {{\n"
        + ",\n".join(f" {json.dumps(name)}: {json.dumps(found)}" for name, found in by_text.items())
        + "\n}"
        for strategy, by_text in entities.items()
    )
    (HERE / f"{key}.json").write_text(f"{{\n{lines}\n}}\n")


def _plain(entity: dict[str, Any]) -> dict[str, Any]:
    return {name: round(float(value), 7) if name == "score" else value for name, value in entity.items()}


def text_labels(folder: Path, key: str) -> Arrays:
    """The logits of each text and their softmax."""
    texts, record = read("messages.json"), CHECKPOINTS[key]
    run = _dense_layers(folder, record.max_length) if record.pooling else _classifier(folder, record.max_length)
    results = [run(text) for text in texts.values()]
    logits = torch.tensor(np.stack([logits for _, logits in results]))
    return {
        "names": list(texts),
        **tokens([ids for ids, _ in results]),
        "logits": logits.numpy(),
        "probabilities": logits.softmax(dim=-1).numpy(),
    }


Run = Callable[[str], tuple[list[int], Array]]


def _classifier(folder: Path, max_length: int) -> Run:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()

    def run(text: str) -> tuple[list[int], Array]:
        row = tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")
        with torch.inference_mode():
            return row["input_ids"][0].tolist(), model(**row).logits[0].numpy()

    return run


def _dense_layers(folder: Path, max_length: int) -> Run:
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    model.max_seq_length = max_length

    def run(text: str) -> tuple[list[int], Array]:
        return model.preprocess([text])["input_ids"][0].tolist(), model.encode(text)

    return run


MAKERS: dict[str, Callable[[Path, str], Arrays]] = {
    "dense": dense,
    "rerank": rerank,
    "multivector": multivector,
    "tokens": token_labels,
    "labels": text_labels,
}


def main(keys: Sequence[str]) -> None:
    """Write KEY.npz, and KEY.json for a NER model, of each checkpoint."""
    libraries = ", ".join(f"{name} {version(name)}" for name in ("sentence-transformers", "transformers", "torch"))
    for key in keys or CHECKPOINTS:
        folder = checkpoint(key)
        arrays = MAKERS[CHECKPOINTS[key].task](folder, key)
        # The folder's name changes with the weights: a file that is older than they are is found out.
        np.savez_compressed(HERE / f"{key}.npz", made_of=folder.name, made_by=libraries, **arrays)
        shapes = {name: value.shape for name, value in arrays.items() if isinstance(value, np.ndarray)}
        print(key, (HERE / f"{key}.npz").stat().st_size // 1000, "kB", shapes)


if __name__ == "__main__":
    main(sys.argv[1:])
