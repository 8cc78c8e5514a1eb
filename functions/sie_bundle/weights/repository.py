"""A repository of the Hugging Face Hub as a proposal reads it: its commit, its small files, the header of its weights.

Owns the questions to the hub, which are about one commit and fetch no weights. What its errors mean is ``hub``'s, what
the files mean ``sie_config.propose``'s.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from sie_bundle.weights import hub
from sie_config import propose
from sie_config.propose import Folder, Tensor
from sie_config.propose.folder import SMALL, TOKENIZER_JSON, fault
from sie_config.propose.weights import files

if TYPE_CHECKING:
    from huggingface_hub import HfApi


class Repository(NamedTuple):
    """A repository at one commit."""

    commit: str
    folder: Folder


def read(repo: str, revision: str | None = None) -> Repository:
    """Read the repository's files, but for the weights.

    Args:
        revision: a commit, branch or tag; None: what ``main`` is now.

    Raises:
        ConnectionFailedError: the hub is not to be reached.
        WeightsUnavailableError: it has no such repository or revision, or does not give it to us; what to do next is
            the hint.
        ConfigurationError: a file is not what its name says.
    """
    with hub.translated(repo, revision):
        from huggingface_hub import HfApi
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()
        api = HfApi()
        info = api.model_info(repo, revision=revision, files_metadata=True, timeout=hub.ANSWER_S)
        commit = str(info.sha)
        sizes = {own.rfilename: own.size or 0 for own in info.siblings or ()}
    folder = Folder({}, sizes)
    while names := propose.wanted(folder):
        found = {name: _small(repo, commit, name, sizes[name]) for name in names}
        folder = msgspec.structs.replace(folder, files={**folder.files, **found})
    if safe := [name for name in files(folder) if name.endswith(".safetensors")]:
        with hub.translated(repo, commit):
            folder = msgspec.structs.replace(folder, tensors=_tensors(api, repo, commit, safe))
    return Repository(commit, folder)


def _small(repo: str, commit: str, name: str, size: int) -> bytes:
    limit = SMALL * 16 if name == TOKENIZER_JSON else SMALL
    if size > limit:
        raise fault(name, "", f"it has {size} bytes, more than {limit}")
    with hub.translated(repo, commit):
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(repo, name, revision=commit)).read_bytes()


def _tensors(api: HfApi, repo: str, commit: str, names: list[str]) -> dict[str, Tensor]:
    """The headers of these files, by range requests."""
    made: dict[str, Tensor] = {}
    for name in names:
        found: Any = api.parse_safetensors_file_metadata(repo, name, revision=commit, timeout=hub.ANSWER_S)
        made |= {tensor: Tensor(own.dtype, tuple(own.shape)) for tensor, own in found.tensors.items()}
    return made
