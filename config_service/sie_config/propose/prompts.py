"""What is put before queries and documents, and shorter vectors: what the settings or the card say of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sie_config.propose.draft import Draft
from sie_config.propose.papers import Papers

SENTENCE = "config_sentence_transformers.json"
_DOCUMENTS = ("document", "passage", "corpus")
"""The names sentence-transformers looks under, in its order."""

_INSTRUCTED = re.compile(r"Instruct: (.+)\nQuery:( ?)")
"""The usual prompt of a model that takes instructions (E5, Qwen3, GTE), with its default one."""

_HINTS = ("query: ", "passage: ", "search_query: ", "Represent this sentence", "Instruct: ", "for retrieval: ")
"""What cards of models with prompts say."""


def propose(papers: Papers, draft: Draft) -> None:
    """Propose the prompts and the shorter lengths of a dense task."""
    if "dense" not in draft.document.get("tasks", {}):
        return
    _prompts(papers, draft)
    _dims(papers, draft)


def _prompts(papers: Papers, draft: Draft) -> None:
    own, field = papers.sentence, "tasks.dense.query_prompt"
    given = {name: text for name, text in (own.prompts or {}).items() if text}
    usual = given.get(own.default_prompt_name, "")
    query = given.get("query", "" if "query" in (own.prompts or {}) else usual)
    name = next((name for name in _DOCUMENTS if name in (own.prompts or {})), own.default_prompt_name)
    document = given.get(name, "")
    if query and (asked := _INSTRUCTED.fullmatch(query)) is not None:
        draft.put("tasks.dense.query_template", f"Instruct: {{instruction}}\nQuery:{asked[2]}{{text}}", SENTENCE)
        draft.put("tasks.dense.instruction", asked[1], f"{SENTENCE}: prompts")
    elif query:
        draft.put(field, query, f"{SENTENCE}: prompts")
    if document:
        draft.put("tasks.dense.document_prompt", document, f"{SENTENCE}: prompts.{name}")
    if usual and usual in (query, document):
        told = f"{own.default_prompt_name!r} is put before every text by default, but not by encode_query"
        draft.doubt(field, f"{SENTENCE}: {told}")
    if others := sorted(given.keys() - {"query", name, own.default_prompt_name}):
        told = "" if query or document else ", and none for queries or documents"
        draft.doubt(field, f"{SENTENCE} has prompts for {', '.join(others[:8])}{told}: `instruction` in requests")
    if given or (own.prompts is not None and not any(hint in papers.card_text for hint in _HINTS)):
        return
    if (said := next((hint for hint in _HINTS if hint in papers.card_text), None)) is not None:
        draft.doubt(field, f"README.md mentions {said.strip()!r}, and no settings file a prompt: read it and set them")
    elif not papers.card_text:
        draft.doubt(field, "no file says whether queries or documents need words before them; the model card may")


def _dims(papers: Papers, draft: Draft) -> None:
    dim = draft.document["tasks"]["dense"]["dim"]
    found = dict.fromkeys(papers.config.matryoshka_dimensions, "config.json: matryoshka_dimensions")
    found |= {size: "README.md: results by dim" for size in _measured(papers) if size not in found}
    if default := papers.sentence.truncate_dim:
        found.setdefault(default, f"{SENTENCE}: truncate_dim")
    if shorter := sorted(size for size in found if 0 < size < dim):
        draft.put("tasks.dense.dims", shorter, found[shorter[0]])
    if 0 < default < dim:
        draft.put("profiles.default.options.dimensions", default, f"{SENTENCE}: truncate_dim")
    if not shorter and any("matryoshka" in tag for tag in papers.tags):
        draft.doubt("tasks.dense.dims", "README.md is tagged for Matryoshka, and no file says which lengths")


def _measured(papers: Papers) -> Iterator[int]:
    """The lengths a Matryoshka model was measured at: sentence-transformers' cards name results "dim 256"."""
    if not any("matryoshka" in tag for tag in papers.tags):
        return
    for text in _texts(papers.card.get("model-index"), 8):
        if (found := re.fullmatch(r"dim[ _](\d{1,5})", text.strip())) is not None:
            yield int(found[1])


def _texts(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list) and depth:
        for own in value.values() if isinstance(value, dict) else value:
            yield from _texts(own, depth - 1)
