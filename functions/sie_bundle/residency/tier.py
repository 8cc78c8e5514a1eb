"""A tier: the models one kind of memory holds, with a limit in bytes. Thread-safe.

Owns the account: the bytes of a model that was let go count until the last request that computes with it has let go
of it too, and those of a model on its way in are reserved before it is loaded. Who goes first is ``eviction``.

What stands before an ``@`` in a name is what it is a version of: a new one comes while an old one still serves.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

import msgspec

from sie_bundle.residency import eviction
from sie_bundle.residency.eviction import Held

T = TypeVar("T")


class _Entry(msgspec.Struct, Generic[T]):
    thing: T | None
    placed: Held
    """As it was when it was put here."""
    used: float

    @property
    def held(self) -> Held:
        return self.placed._replace(used=self.used)


def base(name: str) -> str:
    """What the name is a version of."""
    return name.partition("@")[0]


class Tier(Generic[T]):
    """What is held, by name.

    Args:
        limit: bytes.
        pinned: names, without versions, of models that never go.
        clock: seconds.
    """

    def __init__(self, limit: int, pinned: Collection[str], clock: Callable[[], float]) -> None:
        self.limit = limit
        self._pinned = frozenset(pinned)
        self._clock = clock
        self._lock = threading.RLock()
        self._entries: dict[str, _Entry[T]] = {}
        self._reserved: dict[str, int] = {}
        self._leaving: list[tuple[Callable[[], T | None], int]] = []
        self._made_way: dict[str, tuple[Callable[[], T | None], Held]] = {}
        """What was let go for others though it was in use, and would be found again as long as it is."""
        self.known: frozenset[str] = frozenset()
        """The names of what is held, versions included."""
        self.gone = 0
        """How many were let go so far."""

    def pin(self, names: Collection[str]) -> None:
        """From now on exactly these never go, whether they are held yet or not."""
        with self._lock:
            self._pinned = frozenset(names)
            for name, entry in self._entries.items():
                entry.placed = entry.placed._replace(pinned=base(name) in self._pinned)

    def names(self) -> tuple[str, ...]:
        """What is held, least recently used first."""
        with self._lock:
            return tuple(sorted(self._entries, key=lambda name: self._entries[name].used))

    @property
    def bytes(self) -> int:
        """What all that is held, leaving or on its way in takes."""
        with self._lock:
            self._leaving = [(ref, size) for ref, size in self._leaving if ref() is not None]
            held = sum(entry.placed.bytes for entry in self._entries.values())
            return held + sum(self._reserved.values()) + sum(size for _, size in self._leaving)

    def find(self, name: str) -> T | None:
        """What is held under that name; counts as a use."""
        with self._lock:
            if (entry := self._entries.get(name) or self._taken_back(name)) is None:
                return None
            entry.used = self._clock()
            return entry.thing

    def _taken_back(self, name: str) -> _Entry[T] | None:
        """What made way and is still in use: a copy would take as much again, and until then that frees nothing."""
        ref, placed = self._made_way.pop(name, (None, None))
        if ref is None or placed is None or (thing := ref()) is None:
            return None
        self._leaving = [each for each in self._leaving if each[0] is not ref]
        placed = placed._replace(pinned=base(name) in self._pinned)
        self._entries[name] = entry = _Entry(thing, placed, placed.used)
        self.known = frozenset(self._entries)
        return entry

    def put(self, name: str, thing: T, size: int) -> None:
        """Hold ``thing``; what was reserved for it, or held under its name, is not any more."""
        with self._lock:
            self.let_go(name)
            self._reserved.pop(name, None)
            now = self._clock()
            self._entries[name] = _Entry(thing, Held(name, size, now, now, base(name) in self._pinned), now)
            self.known = frozenset(self._entries)

    def most(self, name: str) -> int:
        """So many bytes fit under that name, once all else is gone that may go."""
        with self._lock:
            return eviction.most(self._beside(name), self.limit)

    def may_fit(self, name: str, size: int) -> bool:
        """Whether so many bytes fit under that name beside what is on its way in, once all is gone that may go."""
        with self._lock:
            arriving = sum(each for other, each in self._reserved.items() if other != name)
            return arriving + size <= self.most(name)

    @property
    def arriving(self) -> bool:
        """Whether room is reserved for any."""
        return bool(self._reserved)

    @property
    def leaving(self) -> bool:
        """Whether any that was let go is still in use."""
        with self._lock:
            return any(ref() is not None for ref, _ in self._leaving)

    def reserve(self, name: str, size: int) -> None:
        """Count ``size`` bytes under ``name`` from now on, whether they fit or not."""
        with self._lock:
            self._reserved[name] = size

    def make_room(self, name: str, size: int, *, scarce: int = 0) -> bool:
        """Let so many go that ``size`` bytes fit, and reserve them under ``name``.

        Those in use are let go last, since that frees nothing until they are released.

        Args:
            scarce: bytes to free although the limit allows them, because the machine is short of them.

        Returns:
            False: not yet. What was let go is still in use, or what is on its way in takes the room; then nobody goes.
        """
        with self._lock:
            if not self.may_fit(name, size):
                return False
            leaving = sum(size for ref, size in self._leaving if ref() is not None)
            excess = self.bytes - leaving + size - self.limit
            for each in eviction.order(self._beside(name), self._clock(), scarce > 0):
                if max(excess, scarce) > 0 and self.let_go(each.name, idle=True):
                    excess -= each.bytes
                    scarce -= each.bytes
            for each in eviction.victims(self._beside(name), excess, self._clock(), scarce > 0):
                self.let_go(each.name, making_way=True)
            if self.bytes + size > self.limit:
                return False
            self._reserved[name] = size
            return True

    def release(self, name: str) -> None:
        """Give up what was reserved under that name."""
        with self._lock:
            self._reserved.pop(name, None)

    def relieve(self) -> str | None:
        """Let one go that is not in use, the largest first; returns its name, None when there is none."""
        with self._lock:
            for each in eviction.order(self._held(), self._clock(), scarce=True):
                if self.let_go(each.name, idle=True):
                    return each.name
            return None

    def trim(self) -> None:
        """Let those go that nobody uses while more is held than the limit allows: some were taken back."""
        with self._lock:
            for each in eviction.order(self._held(), self._clock()):
                if self.bytes > self.limit:
                    self.let_go(each.name, idle=True)

    def retire(self, idle_s: float) -> list[str]:
        """Let go what has a version that was used later, and was not used itself for so long; returns the names."""
        with self._lock:
            newest = {base(held.name): held.name for held in sorted(self._held(), key=lambda held: held.used)}
            since = self._clock() - idle_s
            old = [held for held in self._held() if newest[base(held.name)] != held.name and held.used < since]
            return [held.name for held in old if self.let_go(held.name, idle=True)]

    def let_go(self, name: str, *, idle: bool = False, making_way: bool = False) -> bool:
        """Hold it no longer; with ``idle`` only if nobody else holds it. Returns whether it was let go.

        ``making_way``: nothing is wrong with it, and who asks for it while it is still in use gets it.
        """
        with self._lock:
            self._made_way.pop(name, None)
            if (entry := self._entries.pop(name, None)) is None:
                return False
            ref, entry.thing = _weak(entry.thing), None
            # Nobody else knew it if it is gone now; no other account of who uses it can be as right as this one.
            thing = ref()
            if thing is not None and idle:
                entry.thing = thing
                self._entries[name] = entry
                return False
            self.gone += 1
            self.known = frozenset(self._entries)
            if thing is not None:
                self._leaving.append((ref, entry.placed.bytes))
                if making_way:
                    self._made_way[name] = (ref, entry.held)
            return True

    def _beside(self, name: str) -> list[Held]:
        """All others. That it is pinned keeps no other version of it."""
        return [
            held._replace(pinned=held.pinned and base(held.name) != base(name))
            for held in self._held()
            if held.name != name
        ]

    def _held(self) -> list[Held]:
        return [entry.held for entry in self._entries.values()]


def _weak(thing: T) -> Callable[[], T | None]:
    try:
        return weakref.ref(thing)
    except TypeError:  # a class of an adapter that does not allow it: counted as gone at once
        return lambda: None
