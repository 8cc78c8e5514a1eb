"""transformers as a library: imported here alone, and not before a model needs it, because that takes seconds.

Owns the import and what is read of a config.json that only transformers understands. Its models are
``transformers_encoder``'s.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from sie_bundle import lazy_torch
from sie_sdk import extras
from sie_sdk.errors import ModelLoadFailedError

LOADING = threading.Lock()
"""transformers changes what belongs to the whole process while it loads: one model at a time."""


def library() -> Any:
    """The module.

    Raises:
        ModelLoadFailedError: it is not installed.
    """
    lazy_torch.whole()
    try:
        import transformers
    except ImportError as failure:
        raise ModelLoadFailedError(
            "This model runs with transformers, which is not installed.", hint=extras.install("bundle")
        ) from failure
    # What it would say of unused heads and missing poolers is looked at in ``transformers_encoder``.
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def sizes(folder: Path) -> dict[str, Any]:
    """What ``architecture.Config`` reads of config.json, under BERT's names, of any model transformers knows.

    Raises:
        ModelLoadFailedError: transformers does not know it.
    """
    try:
        with LOADING:
            whole = library().AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        text = whole.get_text_config()
        return {
            "model_type": whole.model_type,
            "hidden_size": text.hidden_size,
            "vocab_size": text.vocab_size,
            "num_hidden_layers": getattr(text, "num_hidden_layers", 1),
            "num_attention_heads": getattr(text, "num_attention_heads", 1),
            "max_position_embeddings": positions(text),
            "pad_token_id": getattr(text, "pad_token_id", None),
            "id2label": {str(number): label for number, label in (whole.id2label or {}).items()},
        }
    except (OSError, ValueError, KeyError, AttributeError) as failure:
        raise ModelLoadFailedError(f"transformers cannot read {folder / 'config.json'}: {failure}.") from failure


def positions(config: Any) -> int:
    """How many positions the model has; as good as infinite where the spec alone limits them."""
    known = getattr(config, "max_position_embeddings", None) or 0
    return int(known) if known > 0 else 1 << 30


def check_rotation(config: Any, longest: int) -> None:
    """One that changes with the longest text of a call would make a text's vector depend on what shares its batch.

    Raises:
        ModelLoadFailedError: texts may be long enough for that.
    """
    told = getattr(config, "rope_parameters", None) or {}
    for rope in (told, *(own for own in told.values() if isinstance(own, dict))):
        short = rope.get("original_max_position_embeddings")
        if rope.get("rope_type") == "longrope" and short and longest > short:
            raise ModelLoadFailedError(
                f"Its longrope turns texts of up to {short} tokens otherwise than longer ones, all of a batch alike.",
                hint=f"Set max_sequence_length to {short} or less.",
            )
