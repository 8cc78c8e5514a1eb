"""The task of a model by the class its weights are of, where no chain of sentence-transformers says it. Pure.

Owns classifiers, rerankers, taggers and bodies without a head, and what BGE-M3 keeps beside its dense vector.
"""

from __future__ import annotations

from typing import Final

from sie_config.propose.architecture import Family, hidden
from sie_config.propose.chain import put_dim, put_splade
from sie_config.propose.draft import Draft
from sie_config.propose.papers import Papers

_RANKS: Final = frozenset(("cross-encoder", "text-ranking", "reranker", "rerank"))
_SPARSE: Final = frozenset(("splade", "sparse-encoder", "sparse"))
_SENTENCES: Final = frozenset(("sentence-transformers", "sentence-similarity", "feature-extraction"))
_CONFIG = "config.json"
SENTENCE = "config_sentence_transformers.json"
_LEXICAL = "sparse_linear.pt"
_TOKENS = "colbert_linear.pt"


def propose(papers: Papers, family: Family, draft: Draft) -> None:
    """Propose the task of the model's class."""
    name = papers.config.architecture
    if name.endswith("ForTokenClassification"):
        _tagger(papers, family, draft)
    elif name.endswith("ForSequenceClassification"):
        _classifier(papers, family, draft)
    elif name.endswith("ForMaskedLM") and papers.tags & _SPARSE:
        put_splade(papers, draft, f"{_CONFIG}: {name}; README.md: tags")
    elif name.endswith(("ForCausalLM", "ForConditionalGeneration")) and not papers.tags & _SENTENCES:
        if papers.tags & _RANKS:
            draft.block(f"the template by which {name} ranks, which no file says (score: yes_no)")
        else:
            draft.block(f"what {name} generates: this is a language model, and its files name no embedding")
    elif not draft.blocks:
        _body(papers, family, draft)


def lexical(papers: Papers, family: Family, draft: Draft) -> None:
    """What BGE-M3 offers beside its dense vector, by the files of its two further layers."""
    width, words = hidden(papers, family), papers.config.vocab_size
    if not {_LEXICAL, _TOKENS} <= papers.folder.names or not width or not words:
        return
    draft.put("tasks.sparse.dim", words, f"{_CONFIG}: vocab_size")
    draft.put("tasks.sparse.kind", "lexical", f"{_LEXICAL} is there")
    draft.put("tasks.multivector.dim", width, f"{_CONFIG}: hidden_size")
    draft.put("tasks.multivector.projection", "colbert_linear", f"{_TOKENS} is there")
    draft.put("tasks.multivector.skip_first", True, "BGE-M3's way")
    draft.put("tasks.score.kind", "maxsim", "late interaction")
    draft.put("files", [_LEXICAL, _TOKENS], "beside the weights")


def _body(papers: Papers, family: Family, draft: Draft) -> None:
    """An encoder without a head: what sentence-transformers does with a folder that has no modules.json."""
    put_dim(draft, hidden(papers, family), f"{_CONFIG}: hidden_size")
    if "dense" not in draft.document.get("tasks", {}):
        return
    draft.put("tasks.dense.pooling", "mean", "a guess")
    draft.put("tasks.dense.normalize", True, "a guess")
    draft.doubt(
        "tasks.dense.pooling",
        "there is no modules.json to say how states become a vector; mean is what sentence-transformers takes then, "
        "and length 1 what cosines do not mind. The model card may say cls or last",
    )
    if not papers.tags & _SENTENCES:
        draft.doubt(
            "tasks.dense", f"nothing says that {papers.config.architecture or 'this body'} was trained for embeddings"
        )


def _tagger(papers: Papers, family: Family, draft: Draft) -> None:
    if family.known is None:
        draft.block(f"the head of {papers.config.architecture}")
    draft.put("tasks.extract.kind", "entities", f"{_CONFIG}: {papers.config.architecture}")
    _named(papers, draft)


def _classifier(papers: Papers, family: Family, draft: Draft) -> None:
    config = papers.config
    if family.known is None:
        draft.block(f"the head of {config.architecture}")
    labels = [label.lower() for label in config.labels]
    count = len(labels) or config.num_labels or 2
    source = f"{_CONFIG}: {config.architecture}, {count} label{'' if count == 1 else 's'}"
    if count == 1:
        _ranker(papers, family, source, draft)
    elif any(label.startswith("entail") for label in labels) and count <= 3:
        draft.put("tasks.extract.kind", "entailment", f"{_CONFIG}: id2label")
    else:
        draft.put("tasks.extract.kind", "classes", source)
        if config.problem_type == "regression":
            draft.block(f"scores that are no probabilities ({_CONFIG}: problem_type)")
        if config.problem_type == "multi_label_classification":
            draft.put("tasks.extract.multi_label", True, f"{_CONFIG}: problem_type")
        _named(papers, draft)


def _ranker(papers: Papers, family: Family, source: str, draft: Draft) -> None:
    field = "tasks.score"
    draft.put(f"{field}.kind", "cross_encoder", source)
    if not papers.tags & _RANKS and papers.sentence.model_type != "CrossEncoder":
        draft.doubt(field, "its one label is taken for the relevance of a text to a query; no tag says so")
    if family.known is not None and family.known.decoder:
        draft.doubt(field, "rerankers of this family usually want a template around query and text; no file says it")
    if any((papers.sentence.prompts or {}).values()):
        draft.block(f"a prompt before a reranker's query ({SENTENCE})")
    own = papers.config.sentence_transformers.get("activation_fn")
    older = (own if isinstance(own, str) else "") or papers.config.sbert_ce_default_activation_function
    said, name = papers.sentence.activation_fn or older, SENTENCE if papers.sentence.activation_fn else _CONFIG
    match said.rpartition(".")[2]:
        case "":
            draft.doubt(
                f"{field}.activation",
                "no file names one: none, as in transformers; sentence-transformers takes a sigmoid and ranks the same",
            )
        case "Identity":
            draft.put(f"{field}.activation", "none", f"{name}: {said}")
        case "Sigmoid":
            draft.put(f"{field}.activation", "sigmoid", f"{name}: {said}")
        case other:
            draft.block(f"the activation {other} of a score")


def _named(papers: Papers, draft: Draft) -> None:
    labels = papers.config.labels
    if not labels or any(label.startswith("LABEL_") for label in labels):
        told = ", ".join(labels[:4]) or "none"
        draft.doubt("tasks.extract.labels", f"config.json does not name what its labels mean (id2label: {told})")
