"""What several operations say alike is said once: replies and parameters become components and references. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

_encode = msgspec.json.Encoder(order="deterministic").encode
Components = dict[str, dict[str, Any]]


def share(paths: dict[str, dict[str, Any]]) -> Components:
    """Replace what occurs twice or more in ``paths`` by references; returns the components they refer to."""
    operations = [operation for methods in paths.values() for operation in methods.values()]
    parameters, replies = _Shared("parameters"), _Shared("responses")
    for operation in operations:
        parameters.count(operation["parameters"])
        replies.count(operation["responses"].values())
    for operation in operations:
        operation["parameters"] = [parameters.of(each["name"], each) for each in operation["parameters"]]
        operation["responses"] = {
            status: replies.of(f"Reply{status}", each) for status, each in operation["responses"].items()
        }
    return {"parameters": parameters.components, "responses": replies.components}


class _Shared:
    """One kind of component. Things of one name that differ are numbered."""

    def __init__(self, kind: str) -> None:
        self.components: dict[str, Any] = {}
        self._kind = kind
        self._uses: Counter[bytes] = Counter()
        self._names: dict[bytes, str] = {}

    def count(self, things: Iterable[dict[str, Any]]) -> None:
        """See what there is."""
        self._uses.update(_encode(thing) for thing in things)

    def of(self, name: str, thing: dict[str, Any]) -> dict[str, Any]:
        """A reference to it, or itself when nobody else says the same."""
        written = _encode(thing)
        if self._uses[written] < 2:
            return thing
        if written not in self._names:
            plain, number = re.sub(r"[^A-Za-z0-9.-]", "", name), 1
            while (own := plain if number == 1 else f"{plain}-{number}") in self.components:
                number += 1
            self._names[written] = own
            self.components[own] = thing
        return {"$ref": f"#/components/{self._kind}/{self._names[written]}"}
