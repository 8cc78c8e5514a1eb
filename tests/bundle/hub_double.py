"""A Hugging Face Hub on this machine: a real HTTP server that speaks its API for repositories that are folders.

Answers what ``huggingface_hub`` asks: a model's description at a revision, files whole and in ranges. Only for tests.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "c0ffee" + "0" * 34
_API = re.compile(r"/api/models/(?P<repo>[^/]+/[^/?]+)(?:/revision/(?P<revision>[^/?]+))?(?:\?.*)?$")
_TREE = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/tree/(?P<revision>[^/?]+)(?:\?.*)?$")
_FILE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<name>[^?]+)(?:\?.*)?$")


@dataclass
class HubDouble:
    """What the hub holds, and what it was asked."""

    url: str = ""
    repos: dict[str, Path] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    """Repositories whose files are given to nobody without the token "friend"."""
    expired: bool = False
    """Whether files lie elsewhere, at signed addresses that are not valid any more."""
    failing: set[str] = field(default_factory=set)
    """Files that it has, and does not give."""
    down: bool = False
    """Whether it answers everything with an error."""
    asked: list[str] = field(default_factory=list)
    sent: int = 0
    """Bytes of files."""


def files(folder: Path) -> list[tuple[str, int]]:
    """The files below a folder with their sizes."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(str(path.relative_to(folder)), path.stat().st_size) for path in found]


@contextmanager
def hub_double() -> Iterator[HubDouble]:
    """A hub on a free port; point HF_ENDPOINT at its ``url``."""
    hub = HubDouble()

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, *, body: bool) -> None:
            hub.asked.append(f"{self.command} {self.path}")
            if hub.down:
                self._send(507, b"", body, {})
            elif (found := _API.match(self.path)) is not None:
                self._describe(found["repo"], found["revision"] or "main", body)
            elif (found := _TREE.match(self.path)) is not None:
                self._list(found["repo"], found["revision"], body)
            elif (found := _FILE.match(self.path)) is not None:
                self._file(found["repo"], found["revision"], found["name"], body)
            elif self.path.startswith("/elsewhere/"):
                self._send(403, b"", body, {})
            else:
                self._refuse(404, "EntryNotFound")

        def _describe(self, repo: str, revision: str, body: bool) -> None:
            if self._known(repo, revision):
                siblings = [{"rfilename": name, "size": size} for name, size in files(hub.repos[repo])]
                answer = {
                    "id": repo,
                    "modelId": repo,
                    "sha": COMMIT,
                    "siblings": siblings,
                    "tags": [],
                    "private": False,
                }
                self._send(200, json.dumps(answer).encode(), body, {"Content-Type": "application/json"})

        def _list(self, repo: str, revision: str, body: bool) -> None:
            if self._known(repo, revision):
                tree = [
                    {"type": "file", "path": name, "size": size, "oid": "0"} for name, size in files(hub.repos[repo])
                ]
                self._send(200, json.dumps(tree).encode(), body, {"Content-Type": "application/json"})

        def _file(self, repo: str, revision: str, name: str, body: bool) -> None:
            if not self._known(repo, revision):
                return
            path = hub.repos[repo] / name
            if repo in hub.gated and self.headers.get("Authorization") != "Bearer friend":
                self._refuse(403, "GatedRepo")
            elif not path.is_file():
                self._refuse(404, "EntryNotFound")
            elif body and name in hub.failing:
                self._send(507, b"", body, {})
            elif hub.expired:
                signed = f"{hub.url}/elsewhere/{name}?Expires=1&Signature=s3cr3t"
                about = {"X-Linked-ETag": '"0"', "X-Linked-Size": str(path.stat().st_size), "X-Repo-Commit": COMMIT}
                self._send(302, b"", body, {"Location": signed, **about})
            else:
                self._content(path.read_bytes(), body)

        def _content(self, content: bytes, body: bool) -> None:
            status = 200
            headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
            if (asked := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))) is not None:
                first, last = int(asked[1]), min(int(asked[2]), len(content) - 1)
                headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
                content, status = content[first : last + 1], 206
            hub.sent += len(content) * body
            self._send(status, content, body, headers)

        def _known(self, repo: str, revision: str) -> bool:
            if repo not in hub.repos:
                self._refuse(401, "RepoNotFound")
            elif revision not in ("main", COMMIT, COMMIT[:8]):
                self._refuse(404, "RevisionNotFound")
            else:
                return True
            return False

        def _refuse(self, status: int, code: str) -> None:
            self._send(status, b"", True, {"X-Error-Code": code, "X-Error-Message": f"{code}."})

        def _send(self, status: int, content: bytes, body: bool, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, format: str, *values: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        hub.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
