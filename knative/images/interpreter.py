"""Copy the interpreter that runs this, and what it links to, into a folder that becomes an image's root.

Runs in a build stage, on whatever base: Debian's Python or the official image's. Owns what a root file system must
have: users, names, certificates, the dynamic linker and the libraries that wheels may expect (PEP 600). What is left
out is listed here. Nothing of this project is copied.
"""

from __future__ import annotations

import compileall
import os
import py_compile
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

USER = 65532
UNUSED = (
    "test", "idlelib", "tkinter", "turtledemo", "turtle.py", "lib2to3", "ensurepip", "pydoc_data", "site-packages",
    "dist-packages", "__pycache__", "config-*", "lib-dynload/_test*", "lib-dynload/_ctypes_test*", "lib-dynload/_xx*",
    "lib-dynload/xx*", "lib-dynload/_tkinter*", "lib-dynload/_curses*", "lib-dynload/readline*", "lib-dynload/_dbm*",
    "lib-dynload/_gdbm*", "lib-dynload/nis*", "lib-dynload/audioop*", "lib-dynload/ossaudiodev*",
)  # fmt: skip
"""Of the standard library."""
EXPECTED = (
    "libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libutil.so.1", "libpthread.so.0", "libresolv.so.2",
    "libnss_dns.so.2", "libnss_files.so.2", "libstdc++.so.6", "libgcc_s.so.1", "libz.so.1",
)  # fmt: skip
"""Libraries that wheels do not bring along, and those that look names up."""
FILES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/ld.so.cache", "/etc/os-release")
FOLDERS = ("proc", "sys", "dev", "run", "etc", "var/cache/sie", "tmp")


def copy(path: Path, root: Path) -> None:
    """Copy one file to the same place under ``root``; where it is a link, the link and what it leads to."""
    target = root / path.parent.resolve().relative_to("/") / path.name
    if target.is_symlink() or target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        target.symlink_to(os.readlink(path))
        copy(path.parent / os.readlink(path), root)
    else:
        shutil.copy2(path, target)


def linked(binaries: Iterable[Path]) -> Iterator[Path]:
    """The libraries that these programs and libraries are linked to, and the linker."""
    shown = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False).stdout
    for line in shown.splitlines():
        if not line.endswith(":"):  # the name of one of several programs
            yield from (Path(word) for word in line.split() if word.startswith("/"))


def expected() -> Iterator[Path]:
    """Where this machine has the libraries that wheels expect."""
    known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    seen = set()
    for line in known.splitlines():
        name, _, path = line.strip().partition(" => ")
        library = name.split(" ")[0]
        if library in EXPECTED and library not in seen:
            seen.add(library)
            yield Path(path)


def standard_library(root: Path) -> None:
    """Copy it without what is unused, and compile it: the official image has no bytecode, and a pod may write none."""
    library = Path(sysconfig.get_path("stdlib"))
    target = root / library.relative_to("/")
    shutil.copytree(library, target, symlinks=False, ignore_dangling_symlinks=True)
    for pattern in UNUSED:
        for path in sorted(target.rglob(pattern) if pattern == "__pycache__" else target.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    compileall.compile_dir(
        target, stripdir=root, prependdir="/", quiet=2, workers=0,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )  # fmt: skip


def packages(root: Path) -> None:
    """Say which Debian packages the files came from, where scanners of images look for it."""
    copied = {str(path)[len(str(root)) :] for path in root.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    copied |= {path.removeprefix("/usr") for path in copied if path.startswith("/usr/lib")}  # as they were installed
    told = subprocess.run(["dpkg", "-S", *sorted(copied)], capture_output=True, text=True, check=False).stdout
    folder = root / "var/lib/dpkg/status.d"
    folder.mkdir(parents=True)
    for name in sorted({line.split(":")[0] for line in told.splitlines()}):
        status = subprocess.run(["dpkg", "-s", name], capture_output=True, text=True, check=False)
        if status.returncode == 0:
            (folder / name).write_text(status.stdout)


def main(root: Path) -> None:
    """Make ``root``."""
    for name in FOLDERS:
        (root / name).mkdir(parents=True)
    # Debian has /lib and /lib64 as links into /usr; the linker's name goes through one.
    for name in ("bin", "lib", "lib64"):
        if (whole := Path("/") / name).is_symlink():
            (root / os.readlink(whole).lstrip("/")).mkdir(parents=True, exist_ok=True)
            (root / name).symlink_to(os.readlink(whole))
    standard_library(root)
    program = Path(sys.executable)
    copy(program, root)
    for name in ("python", "python3"):
        if not (root / program.parent.relative_to("/") / name).exists():
            (root / program.parent.relative_to("/") / name).symlink_to(program.resolve().name)
    extensions = (root / Path(sysconfig.get_path("stdlib")).relative_to("/")).rglob("*.so")
    for path in (*linked([program.resolve(), *extensions]), *expected(), *map(Path, FILES)):
        if path.exists():
            copy(path, root)
    packages(root)
    (root / "etc/passwd").write_text(f"root:x:0:0:root:/:/none\nsie:x:{USER}:{USER}:sie:/tmp:/none\n")
    (root / "etc/group").write_text(f"root:x:0:\nsie:x:{USER}:\n")
    (root / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
    (root / "tmp").chmod(0o1777)
    os.chown(root / "var/cache/sie", USER, USER)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
