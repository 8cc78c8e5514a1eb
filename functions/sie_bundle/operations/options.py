"""Options: the per-request choices in ``options``, read with their types and refused by name when they are unknown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from sie_bundle.models.tokenization import Overflow
from sie_sdk.errors import InvalidInputError

T = TypeVar("T")

OVERFLOW_POLICIES = ("default", "truncate_text", "error")


def longest_text(given: Mapping[str, Any] | None, *own: str | None) -> int:
    """The characters of the longest text among options as they came, and others."""
    values = [*given.values(), *own] if given else own
    return max([len(value) for value in values if isinstance(value, str)], default=0)


class Options:
    """A request's options. ``known``: the names the operation reads with this model; any other is refused.

    Raises:
        InvalidInputError: an option is unknown; names it and those there are.
    """

    def __init__(self, given: Mapping[str, Any] | None, known: tuple[str, ...], field: str) -> None:
        self._given = given or {}
        self._field = field
        for name in self._given:
            if name not in known:
                raise InvalidInputError(
                    f"There is no option {name!r} for this model.",
                    field=f"{field}.{name}",
                    limit=", ".join(known),
                    hint=f"Its options: {', '.join(known)}.",
                )

    def flag(self, name: str, default: bool = False) -> bool:
        """A truth value."""
        return self._typed(name, bool, default, "true or false")

    def text(self, name: str, default: str) -> str:
        """A string."""
        return self._typed(name, str, default, "a string")

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """A number from ``low`` to ``high``."""
        value = self._typed(name, (int, float), default, f"a number from {low:g} to {high:g}", high)
        if isinstance(value, bool) or not low <= value <= high:
            raise self.wrong(name, f"a number from {low:g} to {high:g}", limit=high)
        return float(value)

    def count(self, name: str, default: int, high: int) -> int:
        """A whole number from 1 to ``high``."""
        if self._given.get(name) is None:
            return default
        value = self._typed(name, int, default, f"a whole number from 1 to {high}", high)
        if isinstance(value, bool) or not 1 <= value <= high:
            raise self.wrong(name, f"a whole number from 1 to {high}", limit=high)
        return value

    def longest(self, most: int) -> int:
        """The tokens of a text, of which the model takes ``most``."""
        return self.count("max_seq_length", most, most)

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        """One of some strings."""
        if (value := self._given.get(name)) is None:
            return default
        if value not in choices:
            raise self.wrong(name, f"one of {', '.join(choices)}", limit=", ".join(choices))
        return str(value)

    def given(self, name: str) -> Any:
        """The value as it came; None when it did not."""
        return self._given.get(name)

    def field(self, name: str) -> str:
        """The option as errors call it."""
        return f"{self._field}.{name}"

    def overflow(self) -> Overflow:
        """What to do with a text over the model's token limit: cut it (the default) or refuse it."""
        return "error" if self.choice("overflow_policy", "default", OVERFLOW_POLICIES) == "error" else "truncate_text"

    def wrong(self, name: str, wanted: str, *, limit: float | str | None = None) -> InvalidInputError:
        """The error for an option with a value it cannot have."""
        return InvalidInputError(
            f"{name}={self._given.get(name)!r} is not {wanted}.",
            field=self.field(name),
            limit=limit,
            hint=f"Give {wanted}.",
        )

    def _typed(
        self, name: str, kind: type[T] | tuple[type[T], ...], default: T, wanted: str, limit: float | None = None
    ) -> T:
        value = self._given.get(name)
        if value is None:
            return default
        if not isinstance(value, kind):
            raise self.wrong(name, wanted, limit=limit)
        return value
