"""Who is compared, and how each is had and started: its defaults, its fastest public way in, the same weights.

Owns versions, commands and dialects. How one runs and is asked is ``running``; what is measured, and when, ``compare``.
"""

from __future__ import annotations

import base64
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from bench import installs
from bench.corpus import Workload
from bench.installs import Say
from bench.processes import Pinned
from bench.running import Dialect, Server, Worker
from bench.servers import MODEL
from sie_local.ports import free_port

TORCH = "torch==2.13.0"
SENTENCE_TRANSFORMERS = ("sentence-transformers==6.2.0", TORCH)
# The newest that this release runs with: its BetterTransformer needs transformers < 4.49, its numpy < 2 the rest.
INFINITY = (
    "infinity-emb[torch,server,optimum]==0.0.78",
    "transformers<4.49",
    "optimum<2",
    "datasets<4",
    "pyarrow<21",
    "numpy<2",
    TORCH,
)
SIE_SERVER = ("sie-server==0.10.1",)
TEI_LIBRARIES = ("onnxruntime==1.22.1", "intel-openmp==2024.0.3")
OURS, OURS_FP32, OURS_FP16, OURS_TORCH, OURS_UP = "sie", "sie-fp32", "sie-fp16", "sie-torch", "sie-up"
REFERENCE = "sentence-transformers"
SERVED_NAME = "minilm"
# No peer may see packages of ours: sie-server brings a sie_sdk of its own.
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1", "PYTHONPATH": ""}
_SIE_SPEC = """\
sie_id: {model}
weights_path: {folder}
inputs: {{text: true}}
tasks: {{encode: {{dense: {{dim: 384}}}}}}
max_sequence_length: 256
profiles:
  default:
    max_batch_tokens: 16384
    adapter_path: sie_server.adapters.sentence_transformer:SentenceTransformerDenseAdapter
    adapter_options: {{loadtime: {{trust_remote_code: false}}, runtime: {{pooling: mean, normalize: true}}}}
"""


class Peer(NamedTuple):
    """One row of the tables. ``install`` raises `Unavailable` with the reason where the peer cannot be had."""

    name: str
    about: str
    install: Callable[[Say], object]
    start: Callable[[Sequence[int]], Server | Worker]
    part: str = ""
    """A word in the command line of those of its processes whose memory is shown apart."""


def peers(workloads: Sequence[Workload]) -> list[Peer]:
    """All of them, ours first."""
    return [
        Peer(OURS, "sie serve, msgpack", _nothing, partial(_sie_serve, name=OURS)),
        Peer(
            OURS_FP32,
            "sie serve with SIE_PRECISION=float32",
            _nothing,
            partial(_sie_serve, name=OURS_FP32, env={"SIE_PRECISION": "float32"}),
        ),
        Peer(
            OURS_FP16,
            "sie serve with SIE_PRECISION=float16: weights, for products of float32",
            _nothing,
            partial(_sie_serve, name=OURS_FP16, env={"SIE_PRECISION": "float16"}),
        ),
        Peer(
            OURS_TORCH,
            "sie serve with SIE_KERNELS=off",
            _nothing,
            partial(_sie_serve, name=OURS_TORCH, env={"SIE_KERNELS": "off"}),
        ),
        Peer(OURS_UP, "sie up: NATS, ingress and one bundle, msgpack", _nothing, _sie_up, part="sie_bundle"),
        Peer(
            REFERENCE,
            "sentence-transformers 6.2.0 in process, no server",
            partial(installs.environment, "sentence-transformers", installs.OWN_PYTHON, SENTENCE_TRANSFORMERS),
            partial(_reference, calls=_calls_file(workloads)),
        ),
        Peer("tei", "TEI 1.9.3, ONNX Runtime, /v1/embeddings base64", _tei_installed, partial(_tei, onnx=True)),
        Peer("tei-candle", "TEI 1.9.3, candle, /v1/embeddings base64", _tei_installed, partial(_tei, onnx=False)),
        Peer(
            "infinity",
            "Infinity 0.0.78, torch with BetterTransformer, /embeddings base64",
            _infinity_installed,
            _infinity,
        ),
        Peer(
            "infinity-bf16",
            "Infinity 0.0.78 with --dtype bfloat16",
            _infinity_installed,
            partial(_infinity, options=("--dtype", "bfloat16")),
        ),
        Peer(
            "sie-server",
            "sie-server 0.10.1, /v1/encode msgpack",
            partial(installs.environment, "sie-server", "3.12", SIE_SERVER),
            _sie_server,
        ),
    ]


def machine(cores: Sequence[int], workloads: Sequence[Workload]) -> Worker:
    """``bench.machine`` on some cores."""
    command = [sys.executable, "-m", "bench.machine", installs.own_weights(), _calls_file(workloads)]
    return Worker(_pinned("machine", command, cores, pipes=True))


def _sie_body(texts: Sequence[str]) -> bytes:
    return msgspec.msgpack.encode({"items": [{"text": text} for text in texts]})


def _sie_vectors(answer: bytes) -> list[npt.NDArray[np.float32]]:
    items: list[Any] = msgspec.msgpack.decode(answer)["items"]
    return [np.frombuffer(item["dense"]["values"][b"data"], "<f4") for item in items]


def _openai_body(texts: Sequence[str]) -> bytes:
    return json.dumps({"model": SERVED_NAME, "input": list(texts), "encoding_format": "base64"}).encode()


def _openai_vectors(answer: bytes) -> list[npt.NDArray[np.float32]]:
    data = sorted(json.loads(answer)["data"], key=lambda entry: int(entry["index"]))
    return [np.frombuffer(base64.b64decode(entry["embedding"]), "<f4") for entry in data]


_SIE = Dialect(f"/v1/encode/{MODEL}", "application/msgpack", _sie_body, _sie_vectors)
_OPENAI = Dialect("/v1/embeddings", "application/json", _openai_body, _openai_vectors)
_INFINITY = _OPENAI._replace(path="/embeddings")


def _pinned(name: str, command: Sequence[object], cores: Sequence[int], **options: Any) -> Pinned:
    return Pinned([str(word) for word in command], cores, installs.cache() / "logs" / f"{name}.log", **options)


def _sie_serve(cores: Sequence[int], name: str, env: Mapping[str, str] | None = None) -> Server:
    port, program = free_port(), Path(sys.executable).with_name("sie")
    command = [program, "serve", "--port", str(port), "--models", MODEL]
    return Server(_pinned(name, command, cores, env=env), port, _SIE)


def _sie_up(cores: Sequence[int]) -> Server:
    port, program = free_port(), Path(sys.executable).with_name("sie")
    state = Path(tempfile.mkdtemp(prefix="sie-bench-"))
    command = [program, "up", "--port", str(port), "--models", MODEL, "--state", state, "--max-scale", "1"]
    # It is paused for longer than a bundle may be idle.
    return Server(_pinned(OURS_UP, [*command, "--quiet-s", "36000"], cores, scratch=state), port, _SIE)


def _reference(cores: Sequence[int], calls: Path) -> Worker:
    python = installs.cache() / "sentence-transformers" / "bin" / "python"
    command = [python, "-m", "bench.reference", installs.model_folder(), calls]
    return Worker(_pinned("sentence-transformers", command, cores, env=_OFFLINE, pipes=True))


def _tei_installed(say: Say) -> None:
    installs.tei_program(say)
    installs.environment("tei", installs.OWN_PYTHON, TEI_LIBRARIES, say)
    installs.onnx_folder(say)


def _tei(cores: Sequence[int], onnx: bool) -> Server:
    port, libraries = free_port(), installs.cache() / "tei" / "lib"
    (runtime,) = libraries.glob("python*/site-packages/onnxruntime/capi/libonnxruntime.so.*")
    folder = installs.onnx_folder(print) if onnx else installs.model_folder()
    command = [installs.tei_program(print), "--model-id", folder, "--served-model-name", SERVED_NAME]
    command += ["--hostname", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
    env = {"LD_LIBRARY_PATH": str(libraries), "ORT_DYLIB_PATH": str(runtime), "RUST_LOG": "warn"}
    return Server(_pinned("tei" if onnx else "tei-candle", command, cores, env=env), port, _OPENAI)


def _infinity_installed(say: Say) -> None:
    installs.environment("infinity", installs.OWN_PYTHON, INFINITY, say)


def _infinity(cores: Sequence[int], options: Sequence[str] = ()) -> Server:
    port, folder = free_port(), installs.cache() / "infinity"
    command = [folder / "bin" / "infinity_emb", "v2", "--model-id", installs.model_folder()]
    command += ["--served-model-name", SERVED_NAME, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--log-level", "warning", *options]
    env = {**_OFFLINE, "INFINITY_ANONYMOUS_USAGE_STATS": "0", "INFINITY_HOME": str(folder)}
    return Server(_pinned("-".join(["infinity", *options[1:]]), command, cores, env=env), port, _INFINITY)


def _sie_server(cores: Sequence[int]) -> Server:
    port, models = free_port(), installs.cache() / "sie-server-models"
    models.mkdir(exist_ok=True)
    (models / "minilm.yaml").write_text(_SIE_SPEC.format(model=MODEL, folder=installs.model_folder()))
    program = installs.cache() / "sie-server" / "bin" / "sie-server"
    command = [program, "serve", "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    return Server(_pinned("sie-server", [*command, "--models-dir", models], cores, env=_OFFLINE), port, _SIE)


def _nothing(say: Say) -> None:
    """Ours is here."""


def _calls_file(workloads: Sequence[Workload]) -> Path:
    """Write the workloads for those measured in process: a call holds what all clients ask for at once."""
    calls = {
        workload.name: [
            [text.text for request in workload.requests[at : at + workload.clients] for text in request]
            for at in range(0, len(workload.requests), workload.clients)
        ]
        for workload in workloads
    }
    file = installs.cache() / "calls.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(calls))
    return file
