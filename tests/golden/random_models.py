"""Small models with random weights, for architectures whose trained weights no registry has; and what they compute.

Made and judged by transformers: ``make`` writes a Hugging Face folder, ``reference`` computes one text with it, alone
and without padding. config.json and the tensors' names are those that publishers write, so that a reader of published
models is what gets tested. The weights are drawn so that everything matters: a tensor left out, a gate swapped, a
position off by one or a window ignored changes the result (``test_random_models`` shows it).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file

from tests.golden import tiny_tokenizers
from tests.golden.random_kinds import KINDS, Kind

transformers: Any = import_module("transformers")
transformers.utils.logging.disable_progress_bar()

Array = npt.NDArray[np.float32]

STATES = "states"
"""The key of the token states, float32 [tokens, hidden], after the last norm."""


def make(kind: str, folder: Path, seed: int = 0) -> Path:
    """Write config.json, tokenizer.json and model.safetensors of one of ``KINDS`` into ``folder``; returns it.

    The same kind and seed always give the same numbers. "bge-m3" has two linear layers more, in files of their own.
    """
    record = KINDS[kind]
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_tokenizers.make(record.tokenizer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"_name_or_path": f"random-init/{kind}", "architectures": [record.published or record.architecture]}
    (folder / "config.json").write_text(json.dumps({**config, **record.config}, indent=1))
    made = getattr(transformers, record.architecture)(_config(record, folder))
    random = np.random.RandomState(seed)
    with torch.no_grad():
        for name, parameter in sorted(made.named_parameters()):
            parameter.copy_(torch.from_numpy(_values(name, tuple(parameter.shape), random, around=record.norms_around)))
    # It writes the names of the published models, not those of its own classes.
    made.save_pretrained(folder / "saved")
    tensors = {
        name.replace(*record.prefix, 1) if name.startswith(record.prefix[0]) else name: value
        for name, value in load_file(folder / "saved" / "model.safetensors").items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for leftover in (folder / "saved").iterdir():
        leftover.unlink()
    (folder / "saved").rmdir()
    if kind == "bge-m3":
        _write_heads(folder, made.eval(), random)
    return folder


def reference(
    kind: str, folder: Path, ids: Sequence[int], token_types: Sequence[int] | None = None
) -> dict[str, Array]:
    """What transformers computes for one text, in float32 with its plain attention: name -> array.

    ``states`` [tokens, hidden] always. ``logits`` where the model has a head: [labels] of a text, [tokens, labels],
    [tokens, vocabulary] of a (masked) language model. ``splade`` [vocabulary] with a masked language model. For
    "bge-m3" ``dense`` [hidden], ``sparse`` [tokens] and ``multivector`` [tokens - 1, hidden].
    """
    loaded = model(kind, folder)
    inputs = {"input_ids": torch.tensor([list(ids)])}
    if token_types is not None:
        inputs["token_type_ids"] = torch.tensor([list(token_types)])
    with torch.inference_mode():
        states = loaded.base_model(**inputs).last_hidden_state[0]
        found = {STATES: states}
        if loaded.base_model is not loaded:
            found["logits"] = loaded(**inputs).logits[0]
        if KINDS[kind].architecture.endswith("MaskedLM"):
            # Formal et al., SPLADE v2 (2021), equation 6.
            found["splade"] = found["logits"].relu().log1p().max(dim=0).values
        if kind == "bge-m3":
            found |= _heads(folder, states)
    return {name: value.numpy() for name, value in found.items()}


def model(kind: str, folder: Path) -> Any:
    """The model of transformers that `reference` runs; changes to it are seen there. Kept until a few others came."""
    return _model(kind, folder, (folder / "config.json").stat().st_mtime_ns)


def _config(record: Kind, folder: Path) -> Any:
    if record.native is not None:
        return transformers.AutoConfig.for_model(**record.native)
    return transformers.AutoConfig.from_pretrained(folder)


@lru_cache(maxsize=4)
def _model(kind: str, folder: Path, stamp: int) -> Any:
    record = KINDS[kind]
    loaded, faults = getattr(transformers, record.architecture).from_pretrained(
        folder,
        config=_config(record, folder),
        dtype=torch.float32,
        attn_implementation="eager",
        output_loading_info=True,
    )
    assert not any(faults[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys")), faults
    return loaded.eval()


def _values(name: str, shape: tuple[int, ...], random: np.random.RandomState, *, around: float) -> Array:
    drawn = random.standard_normal(shape)
    if len(shape) == 1:
        drawn = 0.5 * drawn + (around if name.endswith("weight") else 0.0)
    elif "embed" not in name and "relative_attention_bias" not in name:
        drawn *= shape[-1] ** -0.5
    return drawn.astype(np.float32)


def _write_heads(folder: Path, body: Any, random: np.random.RandomState) -> None:
    """BGE-M3's two layers as published, in .pt files, and the same as safetensors."""
    hidden = KINDS["bge-m3"].config["hidden_size"]
    for name, rows in (("sparse_linear", 1), ("colbert_linear", hidden)):
        weight = torch.from_numpy(random.standard_normal((rows, hidden)) * hidden**-0.5).float()
        with torch.inference_mode():
            states = body(input_ids=torch.arange(4, 40)[None]).last_hidden_state[0]
            # Around zero, so that some tokens weigh something and others nothing.
            bias = -(states @ weight.T).mean(dim=0)
        head = {"weight": weight, "bias": bias.clone()}
        save_file(head, folder / f"{name}.safetensors")
        torch.save(head, folder / f"{name}.pt")


def _heads(folder: Path, states: torch.Tensor) -> dict[str, torch.Tensor]:
    """The three outputs of Chen et al., BGE M3-Embedding (2024), section 3.2."""
    sparse, colbert = (load_file(folder / f"{name}.safetensors") for name in ("sparse_linear", "colbert_linear"))
    normalize, linear = torch.nn.functional.normalize, torch.nn.functional.linear
    return {
        "dense": normalize(states[0], dim=-1),
        "sparse": linear(states, sparse["weight"], sparse["bias"]).relu()[:, 0],
        "multivector": normalize(linear(states[1:], colbert["weight"], colbert["bias"]), dim=-1),
    }
