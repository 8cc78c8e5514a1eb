"""Models of transformers whose texts would change each other in a way that a short sample does not show."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from sie_bundle.engine.row import Row, row
from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.models.model import EncoderModel
from sie_bundle.models.padded_encoder import PaddedEncoder
from sie_bundle.models.transformers_encoder import TransformersEncoder
from sie_config.model.tasks import Extract, Tasks
from sie_sdk.errors import ModelLoadFailedError
from tests.bundle.test_transformers_encoder import largest_difference, spec_of, states
from tests.golden import random_models, tiny_tokenizers

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 80,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "use_sliding_window": True,
    "max_window_layers": 0,
}
HALF = SIZES["hidden_size"] // SIZES["num_attention_heads"] // 2
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * HALF,
    "long_factor": [4.0] * HALF,
    "original_max_position_embeddings": 32,
    "rope_theta": 10000.0,
}


def made(kind: str, folder: Path, **config: Any) -> Any:
    """The model of transformers; its folder has what a publisher writes."""
    transformers: Any = import_module("transformers")
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(kind, **SIZES, **config)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=1.0 if "emb" in name else parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    tiny_tokenizers.make("bert").save(str(folder / "tokenizer.json"))
    return model


def loaded(kind: str, folder: Path, longest: int) -> EncoderModel:
    spec = msgspec.structs.replace(spec_of(kind, folder), max_sequence_length=longest)
    return EncoderModel(Checkpoint(spec, folder), precision_wanted="float32")


def alone(judge: Any, rows: list[Row]) -> list[Any]:
    with torch.inference_mode():
        return [judge(input_ids=torch.from_numpy(each.ids)[None]).last_hidden_state[0].numpy() for each in rows]


def random_rows(lengths: list[int]) -> list[Row]:
    random = np.random.default_rng(0)
    return [row(random.integers(5, 80, length)) for length in lengths]


def test_a_window_that_stands_in_a_mask_alone_is_not_forgotten_in_long_texts(tmp_path: Path) -> None:
    judge = made("qwen2_moe", tmp_path, sliding_window=300, max_position_embeddings=800, **EXPERTS)
    rows = random_rows([700, 20])
    model = loaded("qwen2_moe", tmp_path, longest=800)
    assert isinstance(model._encoder, PaddedEncoder)
    assert largest_difference(states(model, rows), alone(judge, rows)) < 1e-4


def test_a_window_that_attention_is_told_of_is_packed(tmp_path: Path) -> None:
    judge = made("mixtral", tmp_path, sliding_window=300, max_position_embeddings=800, num_local_experts=2)
    rows = random_rows([700, 20])
    model = loaded("mixtral", tmp_path, longest=800)
    assert isinstance(model._encoder, TransformersEncoder)
    assert largest_difference(states(model, rows), alone(judge, rows)) < 1e-4


@pytest.mark.parametrize("longest", [32, 33])
def test_texts_are_no_longer_than_one_rotation_serves_where_it_changes_with_the_longest_of_a_call(
    tmp_path: Path, longest: int
) -> None:
    judge = made(
        "phi3", tmp_path, max_position_embeddings=128, original_max_position_embeddings=32, rope_parameters=LONGROPE
    )
    if longest > 32:
        with pytest.raises(ModelLoadFailedError, match="longrope turns texts of up to 32 tokens") as caught:
            loaded("phi3", tmp_path, longest)
        assert "max_sequence_length to 32" in str(caught.value)
        return
    rows = random_rows([32, 6])
    assert largest_difference(states(loaded("phi3", tmp_path, longest), rows), alone(judge, rows)) < 1e-4


def test_what_stands_for_hidden_tokens_in_one_text_changes_no_other(tmp_path: Path) -> None:
    """ESM weighs the embeddings of a row by how many of its tokens are hidden."""
    judge = made("esm", tmp_path, max_position_embeddings=64, mask_token_id=4, token_dropout=True)
    hidden, other = random_rows([9, 12])
    hidden.ids[2:4] = 4
    rows = [hidden, other]
    with torch.inference_mode():
        wanted = [
            judge(torch.from_numpy(each.ids)[None], torch.ones(1, len(each), dtype=torch.long)).last_hidden_state[0]
            for each in rows
        ]
    found = states(loaded("esm", tmp_path, longest=48), rows)
    assert largest_difference(found, [each.numpy() for each in wanted]) < 1e-4


def test_labels_that_are_numbers_are_their_digits(tmp_path: Path) -> None:
    random_models.make("bert-nli", tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(said | {"id2label": {"0": 0, "1": 1, "2": "two"}}))
    spec = msgspec.structs.replace(
        spec_of("bert", tmp_path, Tasks(extract=Extract(kind="classes"))), family="bert", max_sequence_length=48
    )
    assert EncoderModel(Checkpoint(spec, tmp_path)).labels == ("0", "1", "two")
