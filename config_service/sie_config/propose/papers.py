"""What the files of a model's folder say, each as a record of the fields that matter here. Pure.

Owns the names of the fields, as transformers, sentence-transformers, PyLate and ColBERT write them. What follows from
them is decided elsewhere (``architecture``, ``chain``, ``late``, ``length``).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import yaml

from sie_config.propose.folder import (
    SENTENCE_CONFIGS,
    TOKENIZER_CONFIG,
    Folder,
    Module,
    modules,
    parsed,
    record,
)
from sie_sdk.errors import ConfigurationError

Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
Label = str | int | float | bool


class Config(msgspec.Struct, frozen=True):
    """config.json."""

    model_type: str = ""
    architectures: tuple[str, ...] = ()
    auto_map: dict[str, Any] = {}
    hidden_size: Size = 0
    dim: Size = 0
    n_embd: Size = 0
    vocab_size: Size = 0
    type_vocab_size: Size = 2
    max_position_embeddings: Annotated[int, msgspec.Meta(le=1 << 31)] = 0
    original_max_position_embeddings: Size = 0
    n_positions: Annotated[int, msgspec.Meta(le=1 << 31)] = 0
    id2label: dict[str, Label] = {}
    num_labels: Size = 0
    problem_type: str = ""
    is_encoder_decoder: bool = False
    is_causal: bool = True
    hidden_act: str = ""
    hidden_activation: str = ""
    activation: str = ""
    position_embedding_type: str = "absolute"
    feed_forward_type: str = ""
    rope_scaling: dict[str, Any] = {}
    rope_parameters: dict[str, Any] = {}
    num_experts: Size = 0
    local_attention: Size = 0
    matryoshka_dimensions: tuple[Size, ...] = ()
    sentence_transformers: dict[str, Any] = {}
    sbert_ce_default_activation_function: str = ""
    text_config: dict[str, Any] = {}
    vision_config: Any = None
    audio_config: Any = None
    quantization_config: Any = None
    quantization: Any = None
    """MLX's name for it."""

    @property
    def architecture(self) -> str:
        """The class the weights are of; empty: it is not said."""
        return self.architectures[0] if self.architectures else ""

    @property
    def labels(self) -> list[str]:
        """The labels in order; empty: none are named."""
        numbered = sorted(self.id2label.items(), key=lambda own: (len(own[0]), own[0]))
        return [str(label) for _, label in numbered]


class Transformer(msgspec.Struct, frozen=True):
    """sentence_bert_config.json and its namesakes."""

    max_seq_length: Size = 0
    do_lower_case: bool = False
    transformer_task: str = ""
    query_length: Size = 0
    document_length: Size = 0
    query_expansion: dict[str, Any] = {}
    tokenizer_args: dict[str, Any] = {}
    processor_kwargs: dict[str, Any] = {}
    """What the tokenizer is given beside its own settings; ``tokenizer_args`` until sentence-transformers 5."""


class Sentence(msgspec.Struct, frozen=True):
    """config_sentence_transformers.json, of sentence-transformers and of PyLate."""

    model_type: str = ""
    prompts: dict[str, str | None] | None = None
    default_prompt_name: str = ""
    truncate_dim: Size = 0
    activation_fn: str = ""
    query_prefix: str | None = None
    document_prefix: str | None = None
    query_length: Size = 0
    document_length: Size = 0
    do_query_expansion: bool = True
    attend_to_expansion_tokens: bool = False
    skiplist_words: tuple[str, ...] | None = None


class Token(msgspec.Struct, frozen=True):
    """A token as tokenizer_config.json describes it."""

    content: str


class Tokenizer(msgspec.Struct, frozen=True):
    """tokenizer_config.json."""

    model_max_length: float = 0
    mask_token: str | Token = ""
    eos_token: str | Token = ""
    add_eos_token: bool = False
    truncation_side: Literal["left", "right"] | None = None
    tokenizer_class: str = ""
    model_input_names: tuple[str, ...] | None = None
    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool | None = None
    add_prefix_space: bool | None = None
    added_tokens_decoder: dict[str, Token] = {}
    additional_special_tokens: tuple[str | Token, ...] = ()
    extra_special_tokens: tuple[str | Token, ...] | dict[str, str | Token] = ()
    """Where transformers 5 keeps them."""

    @property
    def kind(self) -> str:
        """Its class in transformers without what many names end with; empty: it is not said."""
        return self.tokenizer_class.removesuffix("Fast").removesuffix("Tokenizer")

    @property
    def mask(self) -> str:
        """The mask token; empty: it is not said."""
        return self.mask_token if isinstance(self.mask_token, str) else self.mask_token.content

    @property
    def end(self) -> str:
        """The token that is to end every text; empty: none, or it is not said which."""
        end = self.eos_token if isinstance(self.eos_token, str) else self.eos_token.content
        return end if self.add_eos_token else ""

    @property
    def added(self) -> frozenset[str]:
        """The tokens that were added to the vocabulary, or made one."""
        extra = self.extra_special_tokens
        named = [*(extra.values() if isinstance(extra, dict) else extra), *self.additional_special_tokens]
        every = [*named, *self.added_tokens_decoder.values()]
        return frozenset(token if isinstance(token, str) else token.content for token in every)


class Colbert(msgspec.Struct, frozen=True):
    """artifact.metadata of Stanford's ColBERT; the defaults are its own."""

    query_maxlen: Size = 32
    doc_maxlen: Size = 0
    dim: Size = 0
    query_token_id: str = "[unused0]"
    doc_token_id: str = "[unused1]"
    mask_punctuation: bool = True
    attend_to_mask_tokens: bool = False
    similarity: str = "cosine"


class Step(msgspec.Struct, frozen=True):
    """config.json of one module's folder: a pooling, a linear layer, SPLADE's pooling."""

    pooling_mode: str | tuple[str, ...] = ()
    pooling_mode_cls_token: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_mean_tokens: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False
    pooling_mode_weightedmean_tokens: bool = False
    pooling_mode_lasttoken: bool = False
    include_prompt: bool = True
    word_embedding_dimension: Size = 0
    embedding_dimension: Size = 0
    in_features: Size = 0
    out_features: Size = 0
    activation_function: str = ""
    use_residual: bool = False
    module_input_name: str = ""
    pooling_strategy: str = "max"
    skiplist_words: tuple[str, ...] = ()
    skiplist_tasks: str | tuple[str, ...] = ("document",)
    keep_only_token_ids: tuple[int, ...] = ()


class Papers(msgspec.Struct, frozen=True):
    """Every file of the folder that was read; what is not there has its defaults."""

    folder: Folder
    config: Config
    modules: tuple[Module, ...]
    steps: Mapping[str, Step]
    """The modules' own settings, by their paths."""
    transformer: Transformer
    transformer_file: str
    sentence: Sentence
    tokenizer: Tokenizer
    colbert: Colbert | None
    card: Mapping[str, Any]
    card_fault: str
    card_text: str

    @property
    def tags(self) -> frozenset[str]:
        """The card's tags and its pipeline, in lower case."""
        tags = self.card.get("tags")
        named = [*(tags if isinstance(tags, list) else [tags]), self.card.get("pipeline_tag")]
        return frozenset(tag.lower() for tag in named if isinstance(tag, str) and tag)


def read(folder: Folder) -> Papers:
    """Read every file.

    Raises:
        ConfigurationError: one is not what its name says (file and field are named), or nothing here is a model.
    """
    if "config.json" not in folder.files and not folder.files.keys() & {"modules.json", "gliner_config.json"}:
        raise _no_model(folder)
    chain = modules(folder)
    steps = {
        own.path: record(folder, posixpath.join(own.path, "config.json"), Step) or Step() for own in chain if own.path
    }
    name = next((name for name in SENTENCE_CONFIGS if name in folder.files), "")
    card, fault, text = _card(folder.files.get("README.md", b""))
    return Papers(
        folder=folder,
        config=record(folder, "config.json", Config) or Config(),
        modules=tuple(chain),
        steps=steps,
        transformer=(record(folder, name, Transformer) if name else None) or Transformer(),
        transformer_file=name,
        sentence=record(folder, "config_sentence_transformers.json", Sentence) or Sentence(),
        tokenizer=record(folder, TOKENIZER_CONFIG, Tokenizer) or Tokenizer(),
        colbert=record(folder, "artifact.metadata", Colbert),
        card=card,
        card_fault=fault,
        card_text=text,
    )


def _card(content: bytes) -> tuple[dict[str, Any], str, str]:
    """README.md: its metadata, what is wrong with that, and the text below it."""
    text = content.decode(errors="replace").removeprefix("\ufeff")
    if (front := re.match(r"---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|$)", text, re.DOTALL)) is None:
        return {}, "", text
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(front[1], Loader=yaml.CSafeLoader)):
            return {}, "it has aliases, which may stand for more than anybody can read", text[front.end() :]
        found = yaml.load(front[1], Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        return {}, str(error).splitlines()[0] if str(error) else type(error).__name__, text[front.end() :]
    return (found if isinstance(found, dict) else {}), "", text[front.end() :]


def _no_model(folder: Folder) -> ConfigurationError:
    if "adapter_config.json" in folder.files:
        found = parsed(folder, "adapter_config.json")
        base = found.get("base_model_name_or_path") if isinstance(found, dict) else None
        return ConfigurationError(
            f"This is a LoRA adapter{f' of {base}' if isinstance(base, str) else ''}, and no model by itself.",
            field="adapter_config.json",
            hint="Add the model it belongs to, and to that spec a profile with `lora` (docs/models.md).",
        )
    return ConfigurationError(
        "There is no config.json, so this is no model's folder.",
        field="config.json",
        hint="Name the folder that holds config.json, or the model as the Hugging Face Hub calls it: ORG/MODEL.",
    )
