"""Where a bundle keeps what it has fetched or made. Of the standard library alone: images are made by those who have
nothing else."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress


def default_cache() -> str:
    """The folder: the one that ``SIE_CACHE_DIR`` says, else one in the user's cache, or a temporary one of theirs.

    A container may run as a user whom nothing knows, and who has no home.
    """
    if own := os.environ.get("SIE_CACHE_DIR"):
        return own
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):  # to be ignored then (XDG Base Directory Specification)
        cache = os.path.expanduser("~/.cache")
    return os.path.join(cache, "sie-knative") if os.path.isabs(cache) else _temporary()


def _temporary() -> str:
    """The user's own: code is loaded from it, which nobody else may have put there."""
    try:
        folder = os.path.join(tempfile.gettempdir(), f"sie-knative-{os.getuid()}")
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = os.lstat(folder)
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            return folder
        return tempfile.mkdtemp(prefix="sie-knative-")
    except OSError:
        return os.path.join(os.devnull, "sie-knative")  # where nothing can be: who writes there says why
