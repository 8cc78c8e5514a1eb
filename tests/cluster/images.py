"""The images of this checkout, in the kit's container runtime.

Owns the way from the Dockerfile to the node: built as ``make images`` does, written to an archive, imported. NATS's
image is made of the server that the tests' own environment has.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sie_local.programs import nats_server
from tests.cluster.kit import KIT
from tests.cluster.place import NATS_IMAGE
from tests.images import containers

NAMES = ("sie-ingress", "sie-config", "sie-demand", "sie-bundle")


def build_and_load(tag: str) -> None:
    """Build all of them and import them; what they weigh is printed."""
    with tempfile.TemporaryDirectory() as folder:
        containers.base_image(Path(folder))
        sys.stderr.write(containers.build(tag))
        for name in NAMES:
            load(f"dev.local/{name}:{tag}", Path(folder))
        program = Path(folder) / "nats"
        program.mkdir()
        shutil.copy(nats_server(), program / "nats-server")
        subprocess.run([KIT, "image", NATS_IMAGE, program, "/nats-server", "-js"], stdout=sys.stderr, check=True)


def load(image: str, folder: Path) -> None:
    """Import an image that buildah has."""
    archive = folder / "image.tar"
    archive.unlink(missing_ok=True)
    containers.buildah("push", "-q", image, f"docker-archive:{archive}:{image}")
    subprocess.run([KIT, "load", archive], stdout=sys.stderr, check=True)
