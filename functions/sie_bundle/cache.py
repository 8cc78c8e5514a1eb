"""Where a bundle keeps what it has fetched or made. Imports nothing: images are made by those who have nothing else."""

from __future__ import annotations

import os


def default_cache() -> str:
    """The folder: the one that ``SIE_CACHE_DIR`` says, else one in the user's cache."""
    own = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "sie-knative")
    return os.environ.get("SIE_CACHE_DIR", own)
