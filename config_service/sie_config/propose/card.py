"""What the model card's metadata says: the licence and the languages. Pure."""

from __future__ import annotations

from sie_config.propose.draft import Draft
from sie_config.propose.papers import Papers

SHOWN = 8
"""Languages that are named; more are counted."""


def propose(papers: Papers, draft: Draft) -> None:
    """Propose the licence."""
    card = papers.card
    said, name = card.get("license"), card.get("license_name")
    licences = [own for own in (said if isinstance(said, list) else [said]) if isinstance(own, str) and own]
    if licences == ["other"] and isinstance(name, str) and name:
        licences = [name]
    if licences:
        draft.put("licence", " OR ".join(licences), "README.md: license")
    elif papers.card_fault:
        draft.doubt("licence", f"README.md's metadata cannot be read ({papers.card_fault})")
    else:
        draft.doubt("licence", "no file says it; the model card may")


def languages(papers: Papers) -> str:
    """The languages as a line of people's text; empty: none are named."""
    said = papers.card.get("language")
    named = [own for own in (said if isinstance(said, list) else [said]) if isinstance(own, str) and own]
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    return ", ".join(named[:SHOWN]) + more
