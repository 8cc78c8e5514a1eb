"""Weights from the Hugging Face Hub, at a pinned commit. Also from its own cache on this machine, when they are there.

Owns what its library's errors mean, whoever asks it (``repository``, too).
A hub that cannot be reached costs seconds, not the library's half minute of retries: the next source may be near.
"""

from __future__ import annotations

import errno
import logging
import re
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from sie_bundle.weights import layout
from sie_bundle.weights.source import Reason, SourceError
from sie_config.model.sources import HubSource
from sie_sdk.errors import ConfigurationError, ConnectionFailedError, SIEError, WeightsUnavailableError

CONNECT_S = 3.0
ANSWER_S = 15.0
"""Seconds the hub may take to answer a question."""

_NOTES = ".cache"
"""In a folder that is fetched into: what the hub's library knows of the files that came whole."""

_SECRETS = re.compile(r"(?<=://)[^\s/]*@|\?[\w%]\S*?(?=['\")>.,;]*(?:\s|$))")
"""Of an address in a text: who asks, and the query, which where files lie is a signature."""


def fetch(source: HubSource, files: Sequence[str], into: Path, *, cached: bool = True) -> None:
    """Put ``files`` of the repository into ``into``, but for those that an earlier try has put there whole.

    Args:
        cached: take them from Hugging Face's own cache, if they are there.

    Raises:
        SourceError: neither Hugging Face's cache nor the hub has them, or the hub is not to be reached.
    """
    if cached and (folder := _cached(source, files)) is not None:
        shutil.rmtree(into / _NOTES, ignore_errors=True)  # of a copy that is cut short nobody knows what came whole
        for name in _named(files, folder):
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, into / name)
    else:
        _download(source, files, into)
    shutil.rmtree(into / _NOTES, ignore_errors=True)


def begun(into: Path) -> bool:
    """Whether a fetch into this folder that broke off, or whose process was killed, can be gone on with."""
    return (into / _NOTES).is_dir()


def _download(source: HubSource, files: Sequence[str], into: Path) -> None:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its warnings tell addresses as they are
    if constants.HF_HUB_OFFLINE:
        raise SourceError("HF_HUB_OFFLINE is set, and Hugging Face's cache does not hold it", "network")
    _reach(constants.ENDPOINT)
    whole = layout.WHOLE in files
    try:
        get = partial(snapshot_download, source.repo, revision=source.revision, local_dir=into)
        get(allow_patterns=[*files, *(layout.SAFE if whole else ())])
        if whole and not layout.files(into) and (parts := layout.parts(into)):
            get(allow_patterns=parts)  # the index may call them as it likes
        if whole and not layout.files(into):
            get(allow_patterns=layout.PICKLED)
    except Exception as error:  # the library's errors, its HTTP client's and the system's have no common base
        raise SourceError(_said(error), _reason(error)) from error


@contextmanager
def translated(repo: str, revision: str | None) -> Iterator[None]:
    """What asking the hub about a repository may raise, as an error that says what to do next.

    Raises:
        ConnectionFailedError: the hub is not to be reached.
        WeightsUnavailableError: it has no such repository or revision, or does not give it to us.
        ConfigurationError: its library is not installed.
    """
    try:
        from huggingface_hub import constants

        if not constants.HF_HUB_OFFLINE:
            _reach(constants.ENDPOINT)
        yield
    except SIEError:
        raise
    except ImportError as error:
        raise ConfigurationError(
            f"The Hugging Face Hub is asked through its library ({error}).", hint="pip install huggingface_hub"
        ) from error
    except Exception as error:  # the library's errors, its HTTP client's and the system's have no common base
        raise _told(repo, revision, error) from error


def _told(repo: str, revision: str | None, error: Exception) -> SIEError:
    from huggingface_hub import constants, errors

    endpoint = _without_secrets(constants.ENDPOINT)
    kind = error.reason if isinstance(error, SourceError) else _reason(error)
    said = str(error) if isinstance(error, SourceError) else _said(error)
    at = f"{repo}{f' at {revision}' if revision else ''}"
    if kind == "network":
        offline = constants.HF_HUB_OFFLINE
        return ConnectionFailedError(
            f"{at} cannot be read from {endpoint}: {'HF_HUB_OFFLINE is set' if offline else said}.",
            hint="Unset HF_HUB_OFFLINE, or name a folder that holds the model's files."
            if offline
            else "Check the network and HF_ENDPOINT, or name a folder that holds the model's files.",
        )
    if kind == "gated":
        told = f"The hub does not give {at} to this account"
        hint = f"Accept its terms at {endpoint}/{repo}, then set HF_TOKEN to a token of that account."
    elif isinstance(error, errors.RevisionNotFoundError):
        told, hint = f"{repo} has no revision {revision}", f"Its commits: {endpoint}/{repo}/commits/main."
    elif kind == "not_found":
        told = f"The hub has no model {at}, or shows it to others only"
        hint = "Check the spelling, ORG/MODEL. A private model needs HF_TOKEN; a folder is named by its path."
    else:
        told, hint = f"{at} cannot be read: {said}", "Name a folder that holds the model's files."
    return WeightsUnavailableError(f"{told.rstrip('.')}.", hint=hint, reason=kind)


def _cached(source: HubSource, files: Sequence[str]) -> Path | None:
    """The folder of Hugging Face's own cache, if all files are there.

    Raises:
        SourceError: the hub gives no repository such a name.
    """
    from huggingface_hub import snapshot_download

    try:
        found = Path(snapshot_download(source.repo, revision=source.revision, local_files_only=True))
    except FileNotFoundError:
        return None
    except ValueError as error:  # its library's, of a name that no repository can have
        raise SourceError(str(error), "not_found") from error
    named = _named(files, found)
    return found if named and all((found / name).is_file() for name in named) else None


def _named(files: Sequence[str], folder: Path) -> list[str]:
    """The files by their names in this folder; empty: its tensors are not whole."""
    if layout.WHOLE not in files:
        return list(files)
    tensors = layout.whole(folder)
    return [*(name for name in files if name != layout.WHOLE), *tensors] if tensors else []


def _reach(endpoint: str) -> None:
    """Open one connection to the hub, or to the proxy that stands before it."""
    setting = "HF_ENDPOINT"
    try:
        url = urlsplit(endpoint)
        if not proxy_bypass(url.netloc.rpartition("@")[2]) and (proxy := getproxies().get(url.scheme)):
            setting = f"{url.scheme.upper()}_PROXY"
            url = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    except ValueError:  # its text would quote what may be part of a password
        raise SourceError(f"{setting} is no URL with a port that is a number", "network") from None
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except socket.gaierror:
        raise SourceError(f"cannot resolve {host}", "network") from None
    except OSError as error:
        raise SourceError(f"cannot connect to {host}:{port} ({error.strerror or error})", "network") from None


def _reason(error: BaseException) -> Reason:
    """What kind of failure the library's error is. What its HTTP client raises is of the network."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError | errors.DisabledRepoError | errors.LocalTokenNotFoundError):
        return "gated"
    if isinstance(error, errors.LocalEntryNotFoundError):  # not in the cache; why not from the hub, its cause says
        return "network" if error.__cause__ is None else _reason(error.__cause__)
    if isinstance(error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError | errors.EntryNotFoundError):
        return "not_found"
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code if error.response is not None else 0
        return "gated" if status in (401, 403) else "not_found" if status == 404 else "network"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
        return "unknown"
    return "unknown" if isinstance(error, ValueError | TypeError) else "network"


def _said(error: BaseException) -> str:
    """The first line of the error everything else was caused by, fit for everybody's eyes."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return _without_secrets((str(error).strip() or type(error).__name__).splitlines()[0])


def _without_secrets(text: str) -> str:
    return _SECRETS.sub("", text)
