"""Runs an image's process as a cluster would: its user and environment, process 1, a root file system nobody writes.

Owns the building of the images under test and the smallest container there is: ``unshare`` and ``chroot`` on the
mounted image. Only the cache folder and /tmp are writable. Networks are the machine's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.platform import wait_until

ROOT = Path(__file__).parents[2]
KIT = ROOT.parent / "shared/lab/cluster/cluster"
BASE = "docker.io/library/python:3.11-slim"
ENVIRONMENT = os.environ | {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "overlay"}
INSIDE = """set -e
root=$1 cache=$2 user=$3; shift 3
mount --bind "$root" "$root"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount --bind "$cache" "$root/var/cache/sie"
mount -o remount,bind,ro "$root"
chroot=$(command -v chroot || echo /usr/sbin/chroot)
exec env -i "$@" "$chroot" --userspec="$user" "$root" $COMMAND
"""


def buildah(*words: str) -> str:
    """What buildah prints; fails the test with what it complains of."""
    done = subprocess.run(["buildah", *words], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def absent() -> str:
    """Why images cannot be built here; empty: they can."""
    if os.geteuid() != 0:
        return "building and running images needs root"
    if KIT.exists():
        return ""
    if shutil.which("buildah") is None:
        return "buildah is not installed (apt-get install buildah)"
    return "" if _known(BASE) else f"the base image {BASE} is not here (buildah pull {BASE})"


def _known(image: str) -> bool:
    command = ["buildah", "inspect", "--type", "image", image]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=False).returncode == 0


def base_image(folder: Path) -> None:
    """Have the base image: where the cluster kit is, it makes one of Debian's own Python (90 s, once).

    The tests that need it are skipped where Debian's packages are not reached.
    """
    if shutil.which("buildah") and _known(BASE):
        return
    archive = folder / "base.tar"
    done = subprocess.run([KIT, "base-image", archive], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the kit cannot make the base image here: {done.stderr.strip()[-300:]}")
    buildah("pull", f"docker-archive:{archive}")
    archive.unlink()


def build(tag: str, *targets: str) -> str:
    """Build them as ``make images`` does; returns the table of sizes."""
    command = [sys.executable, "knative/images/build.py", "--tag", tag, *targets]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


class Container:
    """One running process of an image, the image's own unless ``command`` is another."""

    def __init__(
        self,
        root: str,
        config: Mapping[str, Any],
        env: Mapping[str, str],
        cache: Path,
        log: Path,
        command: Sequence[str] = (),
    ) -> None:
        self.log = log
        self.port = int(env.get("PORT", "0"))
        self.began = time.monotonic()
        variables = [*config["Env"], *(f"{name}={value}" for name, value in env.items())]
        script = INSIDE.replace("$COMMAND", shlex.join(command or config["Entrypoint"]))
        outer = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--", "sh", "-c", script, "sh"]
        with log.open("ab") as stream:
            self._outer = subprocess.Popen(
                [*outer, root, str(cache), config["User"], *variables], stdout=stream, stderr=stream
            )

    @property
    def process_id(self) -> int:
        """Of the process within; the one started here only waits for it."""
        wait_until(lambda: bool(self._within()))
        return self._within()[0]

    def get(self, path: str) -> httpx.Response | None:
        """An answer of its HTTP door, or nothing while nobody listens."""
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=5)
        return None

    def ready(self, deadline_s: float = 60.0) -> float:
        """Wait for ``/readyz``; returns the seconds since the start."""
        while (answer := self.get("/readyz")) is None or answer.status_code != 200:
            assert self._outer.poll() is None, self.log.read_text()
            assert time.monotonic() < self.began + deadline_s, self.log.read_text()
            time.sleep(0.005)
        return time.monotonic() - self.began

    def stop(self) -> int:
        """SIGTERM to its process 1, which a kernel withholds from one that does not ask for it; its exit status."""
        os.kill(self.process_id, signal.SIGTERM)
        return self._outer.wait(40)

    def kill(self) -> None:
        """End it whatever it does, and all that it started."""
        # `--kill-child` is not enough: a process that becomes another user no longer ends with its parent.
        for process in self._within():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._outer.kill()
        self._outer.wait()

    def _within(self) -> list[int]:
        try:
            return list(map(int, Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split()))
        except FileNotFoundError:
            return []


@contextlib.contextmanager
def mounted(image: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The image's root folder, and its configuration."""
    config = json.loads(buildah("inspect", "--type", "image", image))["OCIv1"]["config"]
    container = buildah("from", "--pull-never", image)
    try:
        root = buildah("mount", container)
        for name in ("hosts", "resolv.conf"):  # as every runtime of containers does
            shutil.copy(Path("/etc") / name, Path(root) / "etc" / name)
        yield root, config
    finally:
        buildah("rm", container)
