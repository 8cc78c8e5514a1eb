"""Weights from the Hugging Face Hub, at a pinned commit. Also from its own cache on this machine, when they are there.

A hub that cannot be reached costs seconds, not the library's half minute of retries: the next source may be near.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from sie_bundle.source import SourceError
from sie_config.model_spec import HubSource

CONNECT_S = 3.0


def fetch(source: HubSource, files: Sequence[str], into: Path) -> None:
    """Put ``files`` of the repository into ``into``.

    Raises:
        SourceError: neither Hugging Face's cache nor the hub has them, or the hub is not to be reached.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    patterns = list(files)
    try:
        cached = Path(
            snapshot_download(source.repo, revision=source.revision, allow_patterns=patterns, local_files_only=True)
        )
    except FileNotFoundError:
        cached = None
    if cached is not None and all((cached / name).is_file() for name in files):
        for name in files:
            shutil.copyfile(cached / name, into / name)
        return
    if constants.HF_HUB_OFFLINE:
        raise SourceError("HF_HUB_OFFLINE is set, and Hugging Face's cache does not hold it")
    _reach(constants.ENDPOINT)
    try:
        snapshot_download(source.repo, revision=source.revision, allow_patterns=patterns, local_dir=into)
    except Exception as error:  # the library's errors, its HTTP client's and the system's have no common base
        raise SourceError(_reason(error)) from error
    shutil.rmtree(into / ".cache", ignore_errors=True)  # the library's notes


def _reach(endpoint: str) -> None:
    """Open one connection to the hub, or to the proxy that stands before it."""
    url = urlsplit(endpoint)
    if proxy := getproxies().get(url.scheme):
        url = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except socket.gaierror:
        raise SourceError(f"cannot resolve {host}") from None
    except OSError as error:
        raise SourceError(f"cannot connect to {host}:{port} ({error.strerror or error})") from None


def _reason(error: BaseException) -> str:
    """The first line of the error everything else was caused by."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return (str(error).strip() or type(error).__name__).splitlines()[0]
