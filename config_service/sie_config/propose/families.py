"""The architectures that are computed here, as far as a proposal must know them: data, by ``model_type``.

The engine's own records are ``sie_bundle.models.family``; tests/bundle/test_proposed_families.py holds both equal.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What a proposal asks of a family of the engine."""

    first_position: int = 0
    """Positions that hold no token."""
    hidden: str = "hidden_size"
    longest: str = "max_position_embeddings"
    """What config.json calls the size of a state, and the number of positions."""
    packed: bool = True
    padded: bool = False
    """A query's augmentation cannot look without being seen."""
    vocabulary: bool = True
    """The masked language model's head is described, which SPLADE needs."""
    published_code: bool = False
    """Published with code of its own, which the engine computes the same."""
    decoder: bool = False


_ROBERTA = Known(first_position=2)
_LLAMA = Known(decoder=True)
_GTE = Known(vocabulary=False, published_code=True)

FAMILIES: Final[dict[str, Known]] = {
    "bert": Known(),
    "electra": Known(vocabulary=False),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": Known(hidden="dim"),
    "mpnet": _ROBERTA,
    "modernbert": Known(),
    "albert": Known(),
    "new": _GTE,
    "gte": _GTE,
    "nomic_bert": Known(hidden="n_embd", longest="n_positions", vocabulary=False, published_code=True),
    "jina_bert": Known(vocabulary=False, published_code=True),
    "jina_bert_qk": Known(vocabulary=False, published_code=True),
    "qwen2": _LLAMA,
    "llama": _LLAMA,
    "llama_bidirec": Known(published_code=True),
    "mistral": _LLAMA,
    "qwen3": _LLAMA,
    "gemma2": Known(decoder=True, packed=False),
    "gemma3_text": Known(decoder=True, packed=False),
    "deberta": Known(vocabulary=False, packed=False, padded=True),
    "deberta-v2": Known(vocabulary=False, packed=False, padded=True),
}

AUTO: Final = "auto"

OF_TRANSFORMERS: Final = frozenset(
    (
        *("apertus", "arcee", "big_bird", "biogpt", "bloom", "codegen", "cohere", "cohere2", "convbert", "ctrl"),
        *("data2vec-text", "diffllama", "ernie", "ernie4_5", "esm", "eurobert", "exaone4", "falcon", "flaubert"),
        *("fnet", "funnel", "gemma", "glm", "glm4", "gpt-sw3", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_oss"),
        *("gptj", "granite", "helium", "ibert", "jina_embeddings_v3", "lfm2", "longformer", "megatron-bert"),
        *("ministral", "ministral3", "mixtral", "mobilebert", "modernbert-decoder", "mpt", "mra", "nemotron"),
        *("nystromformer", "olmo", "olmo2", "olmo3", "openai-gpt", "opt", "persimmon", "phi", "phi3", "qwen2_moe"),
        *("qwen3_5_text", "qwen3_moe", "qwen3_next", "reformer", "rembert", "roberta-prelayernorm", "roc_bert"),
        *("roformer", "seed_oss", "smollm3", "squeezebert", "stablelm", "starcoder2", "xglm", "xlm", "xlm-roberta-xl"),
        *("xlnet", "xmod", "yoso"),
    )
)
"""Text models that transformers 5 gives a state per token of, without code of others: family ``auto``."""

ROTATIONS: Final = frozenset(("default", "linear", "ntk", "llama3"))
"""The ways to stretch positions that packed families compute; ``ntk`` without ``mixed_b``."""

ACTIVATIONS: Final = frozenset(
    ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu", "silu", "swish", "swiglu", "tanh")
)
"""By the names of config.json, the ones that packed families compute."""
