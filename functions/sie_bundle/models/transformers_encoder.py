"""The second way in: the body of any model that transformers knows, packed through its public attention interface.

Owns reading a body, its faster linear layers, the attention it calls, and the proof at load that texts in one row do
not see each other. What cannot be run so is for ``padded_encoder``; the import of transformers for its ``library``.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from sie_bundle.engine.attention import Attend, kernel
from sie_bundle.engine.attention_mask import AttentionMask
from sie_bundle.engine.failure import is_out_of_memory, is_sound
from sie_bundle.engine.finite import finite
from sie_bundle.engine.linear import Linear, linear
from sie_bundle.engine.packing import Packed, pack
from sie_bundle.engine.row import Row
from sie_bundle.models import gliner
from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.models.family import GLINER
from sie_bundle.models.parameters import Parameters
from sie_bundle.models.transformers_library import LOADING, check_rotation, library, positions
from sie_config.model.model_spec import ModelSpec
from sie_sdk.errors import ModelLoadFailedError

log = logging.getLogger("sie.bundle.transformers_encoder")

ATTENTION = "sie_packed"
"""The name of our attention in transformers' registry."""

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.08, torch.float16: 0.02}
"""How far two ways to compute the same states may be apart, relative to their size; a wrong one is apart by 0.3 and
more."""

SMALL_WINDOW = 256
"""Tokens that a model may see of a text for the proof at load to go past them; more would take it seconds."""

# What models hand to an attention function beside the tensors, and what does not change the result in evaluation.
_WITHOUT_EFFECT = {
    *("dropout", "deterministic", "output_attentions", "output_hidden_states", "return_dict", "use_cache"),
    *("position_ids", "cache_position", "position_embeddings", "token_type_ids", "layer_idx", "num_items_in_batch"),
}


class NotPackable(Exception):  # noqa: N818
    """Why a body cannot be run packed. Never leaves the loading of a model."""


class Body:
    """A model of transformers without its heads, in evaluation, on one device.

    ``dtype``: of linear layers' weights, at best; see `quicken`.
    """

    def __init__(self, checkpoint: Checkpoint, parameters: Parameters) -> None:
        """Read the folder's config.json and model.safetensors.

        Raises:
            ModelLoadFailedError: transformers cannot, a tensor is missing, or a task needs a head nobody described.
        """
        _check_heads(checkpoint)
        self.device = parameters.device
        self.dtype = parameters.dtype
        self._model = _moved(_read(checkpoint), parameters.device, parameters.stream)
        self.config: Any = self._model.config.get_text_config()
        self.config.use_cache = self._model.config.use_cache = False
        self._takes = set(inspect.signature(self._model.forward).parameters)
        if (getattr(self.config, "type_vocab_size", 2) or 0) < 2:
            self._takes.discard("token_type_ids")
        self._tokenizer = checkpoint.tokenizer
        self._longest = checkpoint.spec.max_sequence_length
        check_rotation(self.config, self._longest)

    @property
    def bytes(self) -> int:
        """What its parameters take on the device."""
        plain = [*self._model.parameters(), *self._model.buffers()]
        fast = [module for module in self._model.modules() if isinstance(module, _Fast)]
        return sum(int(tensor.nbytes) for tensor in plain) + sum(module.bytes for module in fast)

    @property
    def window(self) -> int:
        """How many tokens its layers with a window see; 0: none has one."""
        return getattr(self.config, "sliding_window", None) or getattr(self.config, "local_attention", None) or 0

    @property
    def takes_positions(self) -> bool:
        """Whether it can be told where each token stands."""
        return "position_ids" in self._takes

    def __call__(self, ids: Tensor, **more: Tensor | None) -> Tensor:
        """The states of the last layer [texts, length, hidden] of ``ids`` [texts, length].

        Args:
            more: ``position_ids``, ``token_type_ids`` or ``attention_mask``, of the same shape; left out where the
                model takes none.
        """
        given = {name: value for name, value in more.items() if value is not None and name in self._takes}
        states: Tensor = self._model(input_ids=ids, **given).last_hidden_state
        return states

    def alone(self, packed: Packed) -> Tensor:
        """The states [T, hidden] of the texts, each run by itself with transformers' own attention.

        Raises:
            ModelLoadFailedError: the model does not make states of texts.
        """
        lengths = [group.length for group in packed.groups for _ in range(group.texts)]
        types = torch.zeros_like(packed.ids) if packed.types is None else packed.types
        texts = zip(torch.split(packed.ids, lengths), torch.split(types, lengths), strict=True)
        try:
            return torch.cat([self(ids[None], token_type_ids=own[None])[0] for ids, own in texts])
        except (RuntimeError, ValueError, TypeError, AttributeError) as failure:
            name = type(self._model).__name__
            raise ModelLoadFailedError(f"{name} does not make a state of each token: {failure}.") from failure

    def sample(self) -> Packed:
        """Three texts of random tokens, one a pair, and one with what stands for a hidden token, which ESM counts.

        The longest goes past a sliding window, if it is small.
        """
        longest = min(self._longest, self.window + 9 if self.window <= SMALL_WINDOW else 9)
        random = np.random.default_rng(0)
        usual = np.setdiff1d(np.arange(self._tokenizer.vocabulary), list(self._tokenizer.special))
        texts = [random.choice(usual, length) for length in (min(5, longest), min(5, longest), longest)]
        if (mask := getattr(self.config, "mask_token_id", None)) is not None:
            texts[1][-1] = mask
        return pack([Row(ids, 2, len(ids)) for ids in texts], self.device)

    @contextmanager
    def attention(self, name: str) -> Iterator[None]:
        """Use an attention of transformers' registry; put back what was there before if the block fails.

        Raises:
            NotPackable: the model's code does not ask the registry.
        """
        before = self._model.config._attn_implementation
        self._model.set_attn_implementation(name)
        try:
            if self._model.config._attn_implementation != name:
                raise NotPackable("its code does not use transformers' attention interface")
            yield
        except BaseException:
            self._model.set_attn_implementation(before)
            raise

    def quicken(self, run: Callable[[], Tensor], wanted: Tensor) -> None:
        """Replace linear layers by faster ones: in the device's fast type, in float32, or not, as its code bears it.

        Args:
            run: gives states, which should still be ``wanted``.
        """
        if self.device.type != "cpu":
            return
        for dtype in dict.fromkeys((self.dtype, torch.float32)):
            plain: list[tuple[nn.Module, str, nn.Linear]] = []
            try:
                plain = _replace_linears(self._model, dtype)
                if error(run(), wanted) <= TOLERANCE[dtype]:
                    return
                reason = "it computes something else then"
            except (RuntimeError, TypeError, AttributeError) as failure:  # code that reads weights or mixes types
                reason = str(failure)
            for parent, name, layer in plain:
                setattr(parent, name, layer)
            log.warning("linear layers of %s are not run in %s: %s", type(self._model).__name__, dtype, reason)


class TransformersEncoder:
    """A body run on packed rows: one row [1, T] with the positions of each text, and our attention."""

    def __init__(self, body: Body, spec: ModelSpec) -> None:
        """Prove that it gives what the body gives for each text alone, then make it fast.

        Raises:
            NotPackable: it gives something else.
            ModelLoadFailedError: it has fewer positions than the spec wants.
        """
        self.device = body.device
        self._body = body
        self._attend = kernel(body.device, body.dtype)
        self._first_position = 0
        self._positions = positions(body.config)
        _register()
        packed = body.sample()
        alone = body.alone(packed)
        with body.attention(ATTENTION):
            self._prove(packed, alone)
            self._check_window(packed, spec.max_sequence_length)
            body.quicken(lambda: self(packed), alone)
        if (longest := self._positions - self._first_position) < spec.max_sequence_length:
            raise ModelLoadFailedError(f"{spec.id} has {longest} positions, its spec wants {spec.max_sequence_length}.")

    def __call__(self, packed: Packed) -> Tensor:
        """The states of the last layer: [T, hidden], in the order of ``packed``."""
        return finite(self._states, packed)

    def _states(self, packed: Packed) -> Tensor:
        padding = self._first_position - 1 if self._first_position else None
        token = _BATCH.set((packed, self._attend))
        try:
            return self._body(
                packed.ids[None],
                position_ids=(packed.counted(padding) + self._first_position)[None],
                token_type_ids=None if packed.types is None else packed.types[None],
            )[0]
        finally:
            _BATCH.reset(token)

    def _prove(self, packed: Packed, alone: Tensor) -> None:
        """Find where positions begin: families derived from RoBERTa count from behind the padding's id."""
        if not self._body.takes_positions:
            raise NotPackable("it cannot be told positions")
        behind_padding = (getattr(self._body.config, "pad_token_id", None) or 0) + 1
        for self._first_position in (0, behind_padding):
            if self._first_position + packed.longest > self._positions:
                break
            try:
                found = self(packed)
            except (RuntimeError, IndexError, TypeError) as failure:
                if is_out_of_memory(failure) or not is_sound(str(self.device)):
                    raise  # says nothing of the model
                raise NotPackable(str(failure)) from failure
            if error(found, alone) <= TOLERANCE[alone.dtype]:
                return
        raise NotPackable("texts in one row see each other, or are seen otherwise than alone")

    def _check_window(self, packed: Packed, longest: int) -> None:
        """Where the proof does not go past the window, see that attention hears of it.

        Some code has it in a mask alone, which ours is not given.
        """
        if not SMALL_WINDOW < self._body.window < longest:
            return
        windows: set[int | None] = set()
        attend = self._attend

        def noted(q: Tensor, k: Tensor, v: Tensor, packed: Packed, mask: AttentionMask) -> Tensor:
            windows.add(mask.window)
            return attend(q, k, v, packed, mask)

        self._attend = noted
        try:
            self(packed)
        finally:
            self._attend = attend
        if windows <= {None}:
            raise NotPackable("its attention is not told of its window")


class _Fast(nn.Module):
    """A linear layer as ``linear`` makes it, in a model that expects one of torch's."""

    def __init__(self, plain: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        weight = plain.weight.detach().to(dtype)
        bias = None if plain.bias is None else plain.bias.detach().to(dtype)
        self.bytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        # Some models ask for its type, as T5 does. Without numbers, a use of any other kind fails and is noticed.
        self.weight = torch.empty_like(weight, device="meta")
        self._run: Linear = linear(weight, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self._run(x)


def error(found: Tensor, wanted: Tensor) -> float:
    """The distance of two tensors relative to the size of the second; infinite if it is not a number."""
    distance = float((found.float() - wanted.float()).norm() / wanted.float().norm())
    return distance if distance == distance else float("inf")


_BATCH: ContextVar[tuple[Packed, Attend]] = ContextVar("batch")
"""What the forward pass of this thread is about."""


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Our kernels as transformers calls an attention function: [1, heads, T, head_dim] to [1, T, heads, head_dim].

    Its ``sliding_window`` counts the token itself and means both sides where attention is not causal; a causal layer
    that is called otherwise sees as many tokens to both sides without itself, as transformers' mask has it then.

    Raises:
        NotPackable: the model wants what our kernels do not do.
    """
    packed, attend = _BATCH.get()
    unknown = [name for name, given in more.items() if given is not None and name not in _WITHOUT_EFFECT]
    if attention_mask is not None or unknown:
        raise NotPackable(f"its attention wants {', '.join(unknown) or 'a mask'}")
    if not query.shape[2] == key.shape[2] == len(packed.ids) or query.shape[3] != value.shape[3]:
        raise NotPackable("its queries, keys and values are of different sizes")
    own_way = bool(getattr(module, "is_causal", True))
    causal = own_way if is_causal is None else bool(is_causal)
    if scaling is not None and abs((own := scaling * math.sqrt(query.shape[3])) - 1) > 1e-6:
        query = query * own
    q, k, v = (x[0].transpose(0, 1).to(value.dtype) for x in (query, key, value))
    side = None if sliding_window is None else sliding_window - (causal or not own_way)
    mask = AttentionMask(causal=causal, window=side)
    return attend(q, k, v, packed, mask)[None], None


def _register() -> None:
    library().AttentionInterface.register(ATTENTION, _attention)


def _read(checkpoint: Checkpoint) -> Any:
    """The body in float32, mapped from the file where it is stored so. Code in the folder is never run."""
    folder, source = checkpoint.folder, {}
    wanted = {"local_files_only": True, "trust_remote_code": False}
    try:
        # Another type would be torch's default, for all threads, while this one loads.
        with LOADING:
            kind = library().AutoModel
            if checkpoint.spec.family == GLINER:
                config = library().AutoConfig.for_model(**gliner.encoder(folder, checkpoint.tensors))
                source = {"config": config, "state_dict": gliner.own(checkpoint.tensors)}
            elif checkpoint.spec.chosen.lora is not None:  # which is not in the file that it would read
                config = library().AutoConfig.from_pretrained(folder, **wanted)
                source = {"config": config, "state_dict": dict(checkpoint.tensors)}
            if source:
                with torch.device("meta"):
                    kind = type(kind.from_config(source["config"]))
            whole, report = kind.from_pretrained(
                None if source else folder, **source, **wanted, dtype=torch.float32, output_loading_info=True
            )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, AssertionError, SafetensorError) as failure:
        told = f"transformers cannot load {folder}: {failure}."
        # Not what the system or this installation lacks, for which no file is to be fetched again.
        here = isinstance(failure, ImportError) or getattr(failure, "errno", None) or is_out_of_memory(failure)
        raise (ModelLoadFailedError(told) if here else ModelLoadFailedError(told, reason="corrupt")) from failure
    body = whole.get_encoder() if whole.config.is_encoder_decoder else whole
    used = {id(parameter) for parameter in body.parameters()}
    needed = {name for name, parameter in whole.named_parameters() if id(parameter) in used and "pooler" not in name}
    if missing := sorted(needed & set(report["missing_keys"])):
        raise ModelLoadFailedError(f"The checkpoint has no tensor {', '.join(missing)}.", reason="corrupt")
    return body.eval()


def _moved(model: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """A body on the device, in that type, but for the steps of its rotations: in bfloat16 late tokens would be turned
    wrong by whole radians, and transformers keeps them in float32, too."""
    steps = [(name, buffer) for name, buffer in model.named_buffers(remove_duplicate=False) if "inv_freq" in name]
    model.to(device, dtype)
    for name, buffer in steps:
        owner, _, own = name.rpartition(".")
        setattr(model.get_submodule(owner), own, buffer.to(device))
    return model


def _replace_linears(model: nn.Module, dtype: torch.dtype) -> list[tuple[nn.Module, str, nn.Linear]]:
    """Put `_Fast` layers where torch's own are; returns what stood where."""
    plain = [
        (parent, name, layer)
        for parent in model.modules()
        for name, layer in parent.named_children()
        if type(layer) is nn.Linear
    ]
    fast = {layer: _Fast(layer, dtype) for layer in {layer for _, _, layer in plain}}  # one may stand in several places
    for parent, name, layer in plain:
        setattr(parent, name, fast[layer])
    return plain


def _check_heads(checkpoint: Checkpoint) -> None:
    """A head without a description would silently be none at all."""
    family, tasks = checkpoint.architecture.family, checkpoint.spec.tasks
    missing = []
    if tasks.extract and not tasks.extract.head:
        missing.append("token_classifier" if tasks.extract.kind == "entities" else "classifier")
    if tasks.score and tasks.score.kind != "maxsim":
        missing.append("words" if tasks.score.kind == "yes_no" else "classifier")
    for head in missing:
        if not getattr(family, head):
            raise ModelLoadFailedError(
                f"{checkpoint.spec.id} needs a head that nobody described for {checkpoint.spec.family!r} "
                f"({checkpoint.architecture.config.model_type}).",
                hint=f"Its {head} belongs into a record of engine.family; or write an adapter (docs/models.md).",
            )
