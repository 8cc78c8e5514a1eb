"""Aliases: further names of models, set by whoever runs the ingress (``SIE_MODEL_ALIASES``).

Owns the form of the setting. What an alias leads to is looked up by ``registry``: the catalogue may come later.
"""

from __future__ import annotations

import re

import msgspec

from sie_config import model_name
from sie_sdk.errors import ConfigurationError, InvalidInputError

SETTING = "SIE_MODEL_ALIASES"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")


def read(setting: str) -> dict[str, str]:
    """The aliases of a JSON map from each name to a model, as ``[bundle:/]org/model[:profile]``; empty: none.

    Raises:
        ConfigurationError: it is no such map; names the first entry that is wrong.
    """
    if not setting.strip():
        return {}
    try:
        aliases = msgspec.json.decode(setting, type=dict[str, str])
    except msgspec.DecodeError as error:
        raise ConfigurationError(
            f"{SETTING} is not a JSON map of names: {error}.",
            field=SETTING,
            hint=f'Example: {SETTING}=\'{{"small": "sentence-transformers/all-MiniLM-L6-v2"}}\'',
        ) from None
    known: set[str] = set()
    for alias, target in aliases.items():
        if not _NAME.fullmatch(alias):
            raise _wrong(alias, "is no name: letters, digits and ._/- make one, without a bundle or a profile")
        if alias.lower() in known:
            raise _wrong(alias, "is there twice; case does not matter")
        known.add(alias.lower())
        try:
            model_name.parse(target)
        except InvalidInputError as error:
            raise _wrong(alias, f"leads nowhere: {error}") from None
    return aliases


def _wrong(alias: str, what: str) -> ConfigurationError:
    return ConfigurationError(f"{SETTING}: {alias[:80]!r} {what.rstrip('.')}.", field=SETTING)
