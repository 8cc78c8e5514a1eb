"""Build the images of the functions with docker or buildah, whichever is here, and print their sizes by layer.

    python knative/images/build.py --help

Owns how the builders are called; what is built is in the Dockerfile. A folder of wheels that ``PIP_FIND_LINKS`` names
is mounted into a build with buildah, where the index of torch may be out of reach.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = "knative/images/Dockerfile"
BASE = "docker.io/library/python:3.11-slim"
SMALL = ("sie-ingress", "sie-config", "sie-demand")
TARGETS = (*SMALL, "sie-bundle")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# Rights that a container without a daemon may lack are asked of nobody.
ENVIRONMENT = {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "overlay"}


class BuildError(Exception):
    """A builder is not here, or failed; the text says what to do."""


def said(*command: str) -> str:
    """What a command prints.

    Raises:
        BuildError: it failed.
    """
    done = subprocess.run(command, env=ENVIRONMENT | os.environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command[:3])}: {done.stderr.strip()}")
    return done.stdout.strip()


def builder() -> str:
    """``docker`` where its daemon answers, else ``buildah``.

    Raises:
        BuildError: neither is here.
    """
    if shutil.which("docker") and subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0:
        return "docker"
    if shutil.which("buildah"):
        return "buildah"
    raise BuildError("Neither docker (with its daemon) nor buildah is here: apt-get install buildah.")


def whole_history(base: str) -> str:
    """The base as buildah can build on in cached layers: an image that was imported without a history is given one."""
    try:
        known = json.loads(said("buildah", "inspect", "--type", "image", base))["OCIv1"]
    except BuildError:
        return base  # it is pulled
    layers = [each for each in known.get("history") or () if not each.get("empty_layer")]
    if len(layers) == len(known["rootfs"]["diff_ids"]):
        return base
    name = f"dev.local/sie-base:{known['rootfs']['diff_ids'][-1][-12:]}"
    if not said("buildah", "images", "-q", "--filter", f"reference={name}"):
        container = said("buildah", "from", "--pull-never", base)
        said("buildah", "commit", "-q", "--squash", container, name)
        said("buildah", "rm", container)
    return name


def command(tool: str, target: str, tag: str, base: str, torch_index: str, *more: str) -> list[str]:
    """The builder's command line for one target."""
    variant = "cuda" if target.endswith("-cuda") else "cpu"
    arguments = {
        "BASE": base,
        "VARIANT": variant,
        "TORCH_INDEX": torch_index,
        "VERSION": version(),
        "REVISION": revision(),
    }
    pairs = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    options = ["--target", target, "-t", tag, "-f", DOCKERFILE, *pairs, *more, "."]
    if tool == "docker":
        return ["docker", "build", *options]
    wheels = os.environ.get("PIP_FIND_LINKS", "")
    mounted = ["-v", f"{wheels}:{wheels}:ro"] if Path(wheels).is_absolute() and Path(wheels).is_dir() else []
    # false: a base that is here is taken as it is, and any other is pulled.
    return ["buildah", "bud", "--layers", "--network", "host", "--pull=false", *mounted, *options]


def version() -> str:
    """The project's version."""
    text = (ROOT / "sdk/sie_sdk/version.py").read_text()
    return text.split('"')[1]


def revision() -> str:
    """The commit that is built, marked where the tree differs from it; ``unknown`` outside of git."""
    try:
        return said("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except BuildError:
        return "unknown"


def layers(tool: str, image: str) -> list[tuple[int, str]]:
    """Bytes, unpacked, and origin of each layer that has any, the lowest first."""
    if tool == "docker":
        rows = said("docker", "history", "--no-trunc", "--human=false", "--format", "{{.Size}}\t{{.CreatedBy}}", image)
        found = [(int(size), by) for size, by in (row.split("\t", 1) for row in rows.splitlines()[::-1])]
        return [each for each in found if each[0]]
    known = json.loads(said("buildah", "inspect", "--type", "image", image))["OCIv1"]
    store = Path(said("buildah", "info", "--format", "{{.store.GraphRoot}}"))
    told = json.loads((store / "overlay-layers/layers.json").read_text())
    sizes = {each["diff-digest"]: each["diff-size"] for each in told if "diff-digest" in each}
    origins = [each["created_by"] for each in known["history"] if not each.get("empty_layer")]
    return list(zip((sizes[each] for each in known["rootfs"]["diff_ids"]), origins, strict=True))


def table(tool: str, images: Sequence[str]) -> str:
    """Sizes in MB (10^6 bytes) of the images and of their layers; what they share is counted once in the last line."""
    lines, once = [], {}
    for image in images:
        found = layers(tool, image)
        lines.append(f"{sum(size for size, _ in found) / 1e6:8.1f} MB  {image}")
        for size, origin in found:
            shown = re.sub(r"^/bin/sh -c #\(nop\) |dir:[0-9a-f]+ | # buildkit$", "", origin)
            lines.append(f"{size / 1e6:8.1f}       {shown.strip()}")
            once[size, origin] = size
    lines.append(f"{sum(once.values()) / 1e6:8.1f} MB  on a node that has them all")
    return "\n".join(lines)


def main() -> None:
    """Build what is named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}; all of them when none is named")
    parser.add_argument("--tag", default="dev")
    parser.add_argument("--prefix", default="dev.local", help="registry and project before the image's name")
    parser.add_argument("--base", default=BASE, help="by tag or, for what is deployed, by digest: name@sha256:...")
    parser.add_argument("--torch-index", help="where torch's wheels are; empty: where pip looks anyway")
    parser.add_argument("--cuda", action="store_true", help="the bundle with a CUDA torch alone (some 8 GB)")
    parser.add_argument("--build-arg", action="append", default=[], help="more for the Dockerfile: EXTRA, FIND_LINKS")
    asked = parser.parse_args()
    wanted = ("sie-bundle-cuda",) if asked.cuda else (asked.targets or TARGETS)
    index = asked.torch_index
    if index is None:
        have = any(Path(os.environ.get("PIP_FIND_LINKS") or "/nowhere").glob("torch-*.whl"))
        index = "" if asked.cuda or have else CPU_INDEX  # PyPI's torch brings CUDA
    try:
        tool = builder()
        base = whole_history(asked.base) if tool == "buildah" else asked.base
        images = []
        for target in wanted:
            images.append(f"{asked.prefix}/{target}:{asked.tag}")
            more = [word for each in asked.build_arg for word in ("--build-arg", each)]
            line = command(tool, target, images[-1], base, index, *more)
            subprocess.run(line, cwd=ROOT, env=ENVIRONMENT | os.environ, stdout=sys.stderr, check=True)
        sys.stdout.write(table(tool, images) + "\n")
    except BuildError as error:
        sys.exit(str(error))
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error.cmd[0]} failed with status {error.returncode}; what it said is above.")


if __name__ == "__main__":
    main()
