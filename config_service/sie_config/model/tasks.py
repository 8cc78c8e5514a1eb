"""What a model can do, as records: one per task, with how its states become the answer.

Owns the fields and their defaults. What runs them stands in ``sie_bundle.models.heads`` and ``sie_bundle.operations``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Literal

import msgspec

Positive = Annotated[int, msgspec.Meta(ge=1)]
Pooling = Literal["cls", "mean", "last", "weighted_mean"]


class Dense(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dense embeddings: how token states become one vector of ``dim`` numbers."""

    dim: Positive
    """Numbers of a vector."""
    pooling: Pooling = "mean"
    """The state of the first token, the mean of all, the last one's, or the mean with later ones heavier."""
    normalize: bool = True
    """Bring vectors to length 1."""
    query_prompt: str = ""
    """Put before each text when ``options.is_query`` is set."""
    document_prompt: str = ""
    """Put before each text otherwise."""
    query_template: str = ""
    """Instead of ``query_prompt``: the text with its places ``{text}`` and ``{instruction}``."""
    document_template: str = ""
    """Instead of ``document_prompt``, with the same places."""
    instruction: str = ""
    """What stands for ``{instruction}`` where a request gives none."""
    dims: tuple[Positive, ...] = ()
    """Shorter lengths the model was trained for (Matryoshka); ``options.dimensions`` may ask for them."""
    projection: str = ""
    """The linear layers after pooling, one after the other, by the names of their tensors without ``.weight``; empty:
    none."""
    end_token: str = ""
    """Stands behind every text, ``</s>`` for instance, where tokenizer.json does not say so; what ``last`` reads."""


class Sparse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sparse embeddings: a weight for each of ``dim`` vocabulary entries.

    ``splade``: the masked-language-model head, maximum over the tokens of log(1 + relu(logit)) (SPLADE v2, 2109.10086).
    ``lexical``: one weight per token of the text, the maximum where a token occurs twice (BGE-M3, 2402.03216).
    """

    dim: Positive
    """Entries of the vocabulary."""
    kind: Literal["splade", "lexical"] = "splade"
    """How a token's weight is computed."""
    projection: str = "sparse_linear"
    """``lexical``: the linear layer that weighs a token, as `Dense.projection`."""


class Multivector(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One vector of ``dim`` numbers per token, of length 1 (ColBERT, 2004.12832)."""

    dim: Positive
    """Numbers of a token's vector."""
    projection: str = "linear"
    """The linear layer on token states, as `Dense.projection`; empty: none."""
    query_marker: str = ""
    """A token put behind the first one of a query, ``[unused0]`` for instance; empty: none."""
    document_marker: str = ""
    """The same of a document."""
    query_length: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Queries of fewer tokens are filled up with mask tokens, whose vectors count (query augmentation); 0: not."""
    document_length: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Documents are cut to so many tokens, where queries may have more of them; 0: to ``max_sequence_length``."""
    mask: str = "[MASK]"
    """The mask token."""
    attend_to_mask: bool = False
    """Whether a query's tokens see the mask tokens too."""
    skip_punctuation: bool = False
    """Leave out the vectors of documents' punctuation tokens."""
    skip_first: bool = False
    """Leave out the vector of the first token (BGE-M3)."""


class Score(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Relevance of a document to a query.

    ``cross_encoder``: both in one row, one logit of the classification head. ``yes_no``: a causal language model's
    logit of "yes" less that of "no" behind a template. ``maxsim``: the sum over the query's vectors of the largest
    inner product with the document's; needs the multivector task.
    """

    kind: Literal["cross_encoder", "yes_no", "maxsim"] = "cross_encoder"
    """How a pair is scored."""
    activation: Literal["none", "sigmoid"] = "none"
    """What is done to a score, unless the request says otherwise."""
    template: str = "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
    """``yes_no``: the text, with its three places; the first part to be cut when it is too long."""
    by_line: bool = False
    """``yes_no``: the template's lines, and the breaks between them, are tokenized each by itself, as some libraries
    have it; a full stop before a break is otherwise one token with it."""
    prefix: str = ""
    """``yes_no``: what stands before it, never cut."""
    suffix: str = ""
    """``yes_no``: what stands behind it, never cut."""
    instruction: str = ""
    """The default for ``{instruction}``."""
    yes: str = "yes"
    """``yes_no``: the token for a relevant document. In YAML in quotes, as ``no``: both are truth values there."""
    no: str = "no"
    """``yes_no``: the token for any other."""


class Extract(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Structure out of text.

    ``entities``: a label per token, merged to spans. ``classes``: labels of the whole text. ``entailment``: the
    caller's own labels, each tried as a hypothesis by a natural-language-inference model (1909.00161). ``spans``: the
    caller's own labels over spans of the text (GLiNER, 2311.08526). Known, and computed by nothing here yet:
    ``zero_shot``: the caller's labels of the whole text in one pass (GLiClass); ``relations`` between entities;
    ``objects``: boxes in an image; ``document``: the text and structure of a page.
    """

    kind: Literal["entities", "classes", "entailment", "spans", "zero_shot", "relations", "objects", "document"]
    """What is extracted."""
    labels: tuple[str, ...] = ()
    """The head's labels in order; empty: ``id2label`` of config.json."""
    head: str = ""
    """Layers and activations of a head that is not the family's own: ``2_Dense.linear relu 3_Dense.linear``."""
    pooling: Literal["", "cls", "mean", "last"] = ""
    """``classes``, ``entailment``: which vector the head reads, where it is not the family's."""
    aggregation: Literal["none", "simple", "first", "average", "max"] = "simple"
    """``entities``: how sub-word labels become one, as in transformers' token classification pipeline."""
    overlap: Annotated[int, msgspec.Meta(ge=0)] = 32
    """Tokens that neighbouring windows of a long text share, of ``entities``; of ``spans`` words."""
    multi_label: bool = False
    """Labels do not exclude each other: a sigmoid for each instead of a softmax over all; of ``spans``, the same span
    may have several."""
    hypothesis: str = "This example is {}."
    """``entailment``: what is made of a label."""


class Tasks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the model can do; a task that is absent is refused with a typed error."""

    dense: Dense | None = None
    """One vector for each text."""
    sparse: Sparse | None = None
    """Weights of words for each text."""
    multivector: Multivector | None = None
    """A vector for each token."""
    score: Score | None = None
    """How well documents answer a query."""
    extract: Extract | None = None
    """Structure: spans, classes, boxes."""


@lru_cache(maxsize=1024)
def outputs(tasks: Tasks) -> tuple[str, ...]:
    """What a model with these tasks offers, in the protocol's words."""
    given = [name for name in Tasks.__struct_fields__ if getattr(tasks, name) is not None]
    return tuple("json" if name == "extract" else name for name in given)
