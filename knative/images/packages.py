"""What goes into an image beside the interpreter: which packages an extra needs, and what of them is left out.

Runs in a build stage: ``packages.py needs EXTRA < pyproject.toml`` prints requirements for pip, so that they are a
layer of their own, which a change of this project's code leaves alone. ``packages.py torch VARIANT FOLDER`` fails if
another torch was installed than was asked for; ``packages.py trim FOLDER`` removes what no process of ours reads and
compiles what it imports.
"""

from __future__ import annotations

import compileall
import py_compile
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

NAME = "sie-knative"
LEFT_OUT = (
    # torch: headers, its own tests, tools; but not torch_shm_manager, which it looks for when it is imported.
    "torch/include", "torch/test", "torch/share", "torch/bin/*protoc*", "torch/bin/*test*", "torch/lib/*.a",
    # Tests of others, headers and sources of what is compiled.
    "*/tests", "sympy/**/tests", "networkx/**/tests", "numpy/**/tests", "numpy/_core/include", "numpy/_core/lib",
    "numpy/random/lib", "numpy/f2py", "uvloop/**/*.pyx", "uvloop/**/*.pxd", "uvloop/**/*.c", "**/*.pyi",
    # Commands, pages, and the languages that a terminal could be shown in colours.
    "bin", "*.md", "pygments/lexers/[a-z]*.py",
)  # fmt: skip
SELDOM = ("sympy", "mpmath", "networkx", "functorch", "torch/_inductor", "torch/_dynamo", "transformers/models",
          "pygments", "pip", "setuptools", "typer")  # fmt: skip
"""What no start imports: compiled by whoever imports it after all, which costs a moment, not more than 100 MB."""


def needs(project: Mapping[str, object], extra: str) -> Iterator[str]:
    """The requirements of the project with ``extra``; those of its own extras in place of their names."""
    dependencies = project["dependencies"]
    extras = project["optional-dependencies"]
    assert isinstance(dependencies, list) and isinstance(extras, dict)
    yield from dependencies
    yield from _extra(extras, extra)


def _extra(extras: Mapping[str, Sequence[str]], name: str) -> Iterator[str]:
    for requirement in extras[name]:
        if own := re.fullmatch(rf"{NAME}\[(.+)\]", requirement):
            for inner in own[1].split(","):
                yield from _extra(extras, inner.strip())
        else:
            yield requirement


def torch_variant(folder: Path) -> str:
    """``cuda`` or ``cpu``: for which of them the installed torch was built."""
    told = (folder / "torch/version.py").read_text()
    return "cpu" if re.search(r"^cuda\b.*= None$", told, re.MULTILINE) else "cuda"


def trim(folder: Path) -> None:
    """Remove what is left out, and compile the rest but for what is seldom imported."""
    for pattern in LEFT_OUT:
        for path in sorted(folder.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            elif path.exists():
                path.unlink()
    seldom = re.compile("|".join(re.escape(f"{folder / name}/") for name in SELDOM))
    compileall.compile_dir(
        folder, quiet=2, workers=0, rx=seldom, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )


if __name__ == "__main__":
    if sys.argv[1] == "needs":
        whole = tomllib.loads(sys.stdin.read())
        sys.stdout.write("".join(f"{each}\n" for each in dict.fromkeys(needs(whole["project"], sys.argv[2]))))
    elif sys.argv[1] == "torch":
        if (found := torch_variant(Path(sys.argv[3]))) != sys.argv[2]:
            sys.exit(f"pip found torch for {found}, not for {sys.argv[2]}: see --torch-index of build.py")
    else:
        trim(Path(sys.argv[2]))
