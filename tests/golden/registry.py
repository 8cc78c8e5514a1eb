"""A small npm registry on this machine, and packages for it. Only for tests."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.golden.archives import Archive
from tests.golden.checkpoint_schema import Checkpoint
from tests.golden.checkpoint_table import CHECKPOINTS
from tests.golden.checkpoints import checkpoint


class Registry:
    """Serves files by path at ``url`` while it is open; counts requests and refuses the next ``refuse`` ones."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.asked = 0
        self.refuse = 0
        registry = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked += 1
                registry.refuse -= (refused := registry.refuse > 0)
                body = registry.files.get(self.path, b"")
                self.send_response(503 if refused else 200 if body else 404)
                self.send_header("Content-Length", "0" if refused else str(len(body)))
                self.end_headers()
                self.wfile.write(b"" if refused else body)

            def log_message(self, format: str, *values: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Registry:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def archive(self, folder: str, files: tuple[str, ...]) -> Archive:
        """The record of the package "tiny" that is served."""
        sha256 = hashlib.sha256(self.files["/tiny/-/tiny-1.0.0.tgz"]).hexdigest()
        return Archive("npm", "tiny", "1.0.0", sha256, folder, files, 1)


def tarball(files: dict[str, bytes]) -> bytes:
    """A compressed tar archive of the files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def tiny_export() -> bytes:
    """The ONNX export of one linear layer, "layer.0.dense"."""
    weight, bias = np.arange(12, dtype=np.float32).reshape(4, 3), np.ones(3, np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["states", "onnx::MatMul_1"], ["product"]),
            helper.make_node("Add", ["product", "layer.0.dense.bias"], ["out"]),
        ],
        "tiny",
        [helper.make_tensor_value_info("states", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [2, 3])],
        [numpy_helper.from_array(weight, "onnx::MatMul_1"), numpy_helper.from_array(bias, "layer.0.dense.bias")],
    )
    return bytes(helper.make_model(graph).SerializeToString())


def fetch(record: Checkpoint) -> str:
    """The folder of a record that is in no table, for a process of its own."""
    CHECKPOINTS["tiny"] = record
    return str(checkpoint("tiny"))
