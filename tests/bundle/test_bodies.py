"""A body of transformers in the type that states have on a GPU: what of it is cast to that, and what is not."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
import torch

from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.models.model import EncoderModel
from sie_bundle.models.parameters import Parameters
from sie_bundle.models.transformers_encoder import Body
from sie_bundle.models.transformers_library import library
from sie_bundle.weights.source import classify
from sie_sdk.errors import ModelLoadFailedError
from tests.bundle.test_families import load
from tests.bundle.test_transformers_encoder import CPU, spec_of
from tests.golden import random_models


def a_body(folder: Path, device: torch.device, stream: torch.dtype) -> Body:
    """As on a device whose states are of that type."""
    checkpoint = Checkpoint(spec_of("random", folder), folder)
    parameters = Parameters(checkpoint.architecture, checkpoint.tensors, device, stream)
    parameters.stream = stream
    return Body(checkpoint, parameters)


@pytest.mark.parametrize("device", [CPU, torch.device("meta")], ids=str)
@pytest.mark.parametrize("kind", ["modernbert", "qwen3", "embedding-gemma"])
def test_the_steps_of_a_rotation_stay_float32_where_states_are_bfloat16(
    kind: str, device: torch.device, tmp_path: Path
) -> None:
    body = a_body(random_models.make(kind, tmp_path), device, torch.bfloat16)
    assert {parameter.dtype for parameter in body._model.parameters()} == {torch.bfloat16}
    steps = [buffer for name, buffer in body._model.named_buffers() if "inv_freq" in name]
    assert steps and {(buffer.dtype, buffer.device) for buffer in steps} == {(torch.float32, device)}


def test_late_tokens_are_turned_in_bfloat16_as_in_float32_and_a_long_text_stays_close(tmp_path: Path) -> None:
    late, ids = torch.arange(1900, 2000)[None], torch.from_numpy(np.random.default_rng(0).integers(5, 80, (1, 2000)))
    folder, turned, made = random_models.make("qwen3", tmp_path), [], []
    for stream in (torch.float32, torch.bfloat16):
        body = a_body(folder, CPU, stream)
        with torch.inference_mode():
            turned.append(torch.cat(body._model.rotary_emb(torch.zeros(1, dtype=stream), late)).float())
            made.append(body(ids)[0].float())
    assert (turned[0] - turned[1]).abs().max() < 0.01
    assert torch.cosine_similarity(made[0], made[1], dim=-1).min() > 0.999


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (OSError("no file named model.safetensors"), "corrupt"),
        (KeyError("a tensor"), "corrupt"),
        (OSError(errno.EMFILE, "Too many open files"), "unknown"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), "memory"),
        (ImportError("requires tiktoken"), "unknown"),
    ],
)
def test_what_the_machine_lacks_is_nothing_against_the_files(
    failure: Exception, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint(load("deberta-v2", tmp_path).spec, tmp_path)

    def fails(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(library().AutoModel, "from_pretrained", fails)
    with pytest.raises(ModelLoadFailedError, match="transformers cannot load") as caught:
        EncoderModel(checkpoint, precision_wanted="float32")
    assert classify(caught.value) == reason
