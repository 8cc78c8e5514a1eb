"""The steps of a sentence-transformers model (modules.json) as a dense or sparse task. Pure.

Owns pooling in every version's words, the linear layers behind it, and what of a chain nothing here computes. Late
interaction is ``late``'s, models without a chain are ``heads``'.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Final

from sie_config.propose.architecture import Family, hidden
from sie_config.propose.draft import Draft
from sie_config.propose.families import FAMILIES
from sie_config.propose.folder import Folder, Module
from sie_config.propose.papers import Papers, Step

POOLINGS: Final = {"cls": "cls", "mean": "mean", "lasttoken": "last", "weightedmean": "weighted_mean"}
"""Of sentence-transformers, by our names."""

_SWITCHES: Final = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# A head's activations, by what torch calls their classes.
_ACTIVATIONS: Final = {"Identity": "", "ReLU": "relu", "Tanh": "tanh", "GELU": "gelu", "SiLU": "silu"}
_WITHOUT_EFFECT: Final = {"Dropout"}
_OURS: Final = ("sentence_transformers.", "pylate.")


def propose(papers: Papers, family: Family, draft: Draft) -> None:
    """Propose the task that the chain describes."""
    steps = effective(papers, draft)
    first, rest = steps[0], steps[1:]
    if first.path:
        draft.block(f"a model that lies in {first.path} and not at the top of its repository (modules.json)")
    kinds = [own.kind for own in rest]
    if first.kind not in ("Transformer", "MLMTransformer"):
        draft.block(f"sentence-transformers' module {first.kind} (modules.json)")
        _table(papers, first, kinds, draft)
    elif "SpladePooling" in kinds:
        _sparse(papers, rest, draft)
    elif not kinds or kinds[0] != "Pooling":
        draft.block(f"a chain of {', '.join([first.kind, *kinds])} (modules.json)")
    else:
        _dense(papers, family, rest, draft)


def effective(papers: Papers, draft: Draft) -> list[Module]:
    """The steps that have an effect; a repository's own are noted as a block."""
    steps = [own for own in papers.modules if own.kind not in _WITHOUT_EFFECT]
    if strange := next((own.type for own in steps if not own.type.startswith(_OURS)), ""):
        draft.block(f"the repository's own module {strange} (modules.json)")
    return steps


def _dense(papers: Papers, family: Family, rest: Sequence[Module], draft: Draft) -> None:
    layers = [own for own in rest if own.kind == "Dense"]
    if _classifies(papers, layers):
        _labels(papers, rest[0], layers, draft)
        return
    for own in rest[1:]:
        if own.kind not in ("Dense", "Normalize"):
            draft.block(f"sentence-transformers' module {own.kind} (modules.json)")
    pooling, width = rest[0], hidden(papers, family)
    step = papers.steps.get(pooling.path, Step())
    size = step.embedding_dimension or step.word_embedding_dimension
    unit = rest[-1].kind == "Normalize"
    if any(own.kind == "Normalize" for own in rest[:-1]):
        draft.block("a vector of length 1 before the last of its layers (modules.json)")
    if size and width and size != width:
        draft.doubt("tasks.dense.dim", f"{pooling.path}/config.json says {size}, config.json says {width}")
    put_dim(draft, size or width, f"{pooling.path}/config.json" if size else "config.json: hidden_size")
    if layers:
        _projection(papers, layers, draft)
    mode = _mode(step, f"{pooling.path}/config.json", unit=unit and not layers, draft=draft)
    if not step.include_prompt and _has_prompts(papers):
        draft.block(f"a pooling without the prompt's tokens ({pooling.path}/config.json: include_prompt)")
    if "dense" not in draft.document.get("tasks", {}):
        return
    draft.put("tasks.dense.pooling", mode, f"{pooling.path}/config.json")
    draft.put("tasks.dense.normalize", unit, f"modules.json: {'' if unit else 'no '}Normalize")


def _table(papers: Papers, first: Module, kinds: Sequence[str], draft: Draft) -> None:
    """A static model is known by its one table, a row for each token."""
    tables = [own.shape for own in (papers.folder.tensors or {}).values() if len(own.shape) == 2]
    if first.kind == "StaticEmbedding" and not first.path and len(tables) == 1:
        draft.put("tasks.dense.dim", tables[0][1], "model.safetensors: its one table")
        draft.put("tasks.dense.pooling", "mean", "modules.json: StaticEmbedding")
        draft.put("tasks.dense.normalize", "Normalize" in kinds, "modules.json")


def put_dim(draft: Draft, dim: int, source: str) -> None:
    """The length of a dense vector; a model without is planned."""
    if dim:
        draft.put("tasks.dense.dim", dim, source)
    else:
        draft.block("a size of its vectors that some file says (hidden_size)")


def _mode(step: Step, name: str, *, unit: bool, draft: Draft) -> str:
    """How states become one vector; ``unit``: it is then brought to length 1, so that its length does not matter."""
    said = (step.pooling_mode,) if isinstance(step.pooling_mode, str) else step.pooling_mode
    modes = said or tuple(mode for switch, mode in _SWITCHES.items() if getattr(step, switch))
    if len(modes) > 1:
        draft.block(f"several poolings side by side: {', '.join(modes)} ({name})")
    mode = modes[0] if modes else "mean"
    if mode == "mean_sqrt_len_tokens" and unit:
        mode = "mean"
    if mode not in POOLINGS:
        draft.block(f"the pooling {mode!r} ({name})")
    return POOLINGS.get(mode, "mean")


def _has_prompts(papers: Papers) -> bool:
    return any((papers.sentence.prompts or {}).values())


def _projection(papers: Papers, layers: Sequence[Module], draft: Draft) -> None:
    """One linear layer behind the pooling is computed, without an activation."""
    name = f"{layers[0].path}/config.json"
    last = papers.steps.get(layers[-1].path, Step())
    if len(layers) > 1:
        draft.block(f"{len(layers)} linear layers behind the pooling (modules.json)")
    if (act := activation(last)) != "":
        draft.block(f"the activation {act or last.activation_function} of a projection ({name})")
    if last.use_residual:
        draft.block(f"a projection beside its input ({name}: use_residual)")
    if last.module_input_name not in ("", "sentence_embedding"):
        draft.block(f"a layer between the states and the pooling ({name}: module_input_name)")
    put_dim(draft, last.out_features, f"{layers[-1].path}/config.json: out_features")
    draft.put("tasks.dense.projection", f"{layers[0].path}.linear", "modules.json: Dense")
    put_files(papers.folder, layers, draft)


def activation(step: Step) -> str | None:
    """What follows a linear layer, in a head's words: empty, nothing; None, what no head has; unsaid, Tanh."""
    return _ACTIVATIONS.get((step.activation_function or "Tanh").rpartition(".")[2])


def put_files(folder: Folder, layers: Sequence[Module], draft: Draft) -> None:
    """The layers' tensors, as safetensors if there are such."""
    files = []
    for own in layers:
        names = [posixpath.join(own.path, name) for name in ("model.safetensors", "pytorch_model.bin")]
        if (found := next((name for name in names if name in folder.names), None)) is None:
            draft.block(f"the weights of {own.path}, which are not in the folder")
        else:
            files.append(found)
    draft.put("files", files, "modules.json")


def _classifies(papers: Papers, layers: Sequence[Module]) -> bool:
    """Whether the last linear layer has an output for each label that somebody named."""
    labels = papers.config.labels
    named = bool(labels) and not any(label.startswith("LABEL_") for label in labels)
    return bool(layers) and named and papers.steps.get(layers[-1].path, Step()).out_features == len(labels)


def _labels(papers: Papers, pooling: Module, layers: Sequence[Module], draft: Draft) -> None:
    """Linear layers that end in the labels: a classifier's head."""
    draft.put("tasks.extract.kind", "classes", "as many outputs of the last Dense as config.json names labels")
    head = []
    for own in layers:
        step = papers.steps.get(own.path, Step())
        if (act := activation(step)) is None or step.use_residual:
            draft.block(f"the activation {step.activation_function} of a head ({own.path}/config.json)")
        head += [f"{own.path}.linear", act or ""]
    draft.put("tasks.extract.head", " ".join(filter(None, head)), "modules.json: Dense")
    name = f"{pooling.path}/config.json"
    mode = _mode(papers.steps.get(pooling.path, Step()), name, unit=False, draft=draft)
    draft.put("tasks.extract.pooling", mode, name)
    put_files(papers.folder, layers, draft)


def _sparse(papers: Papers, rest: Sequence[Module], draft: Draft) -> None:
    own = next(own for own in rest if own.kind == "SpladePooling")
    step = papers.steps.get(own.path, Step())
    if len(rest) > 1:
        draft.block(f"SPLADE with {', '.join(other.kind for other in rest if other is not own)} (modules.json)")
    if step.pooling_strategy != "max" or step.activation_function not in ("", "relu"):
        draft.block(
            f"SPLADE with {step.pooling_strategy} and {step.activation_function or 'relu'} ({own.path}/config.json)"
        )
    put_splade(papers, draft, "modules.json: SpladePooling")


def put_splade(papers: Papers, draft: Draft, source: str) -> None:
    """A weight for each token of the vocabulary."""
    if not papers.config.vocab_size:
        draft.block("a size of its vocabulary (config.json: vocab_size)")
        return
    draft.put("tasks.sparse.dim", papers.config.vocab_size, "config.json: vocab_size")
    draft.put("tasks.sparse.kind", "splade", source)
    if _has_prompts(papers):
        draft.block("prompts before texts of a sparse model (config_sentence_transformers.json)")
    if (known := FAMILIES.get(papers.config.model_type)) is None or not known.vocabulary:
        draft.block(f"the masked language model's head of {papers.config.architecture or papers.config.model_type}")
