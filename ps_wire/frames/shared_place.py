"""Memory in which one payload after the other lies, and what it is seen as, made once.

A tensor that goes lets go of the interpreter, and waits for it again: where several threads want it, that
takes longer than all else that a frame costs (0.1 to 0.3 ms). It must not know torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Kind = TypeVar("Kind")
Seen = TypeVar("Seen")


class SharedPlace:
    """A part of memory that another process writes. For one thread at a time."""

    __slots__ = ("_memory", "_seen")

    def __init__(self, memory: memoryview) -> None:
        """Keeps the memory alive."""
        self._memory = memory
        self._seen: dict[Any, Any] = {}

    def __len__(self) -> int:
        return len(self._memory)

    def seen_as(self, kind: Kind, make: Callable[[memoryview, Kind], Seen]) -> Seen:
        """Gives what `make` makes of the memory and a kind: the same object each time."""
        seen: Seen | None = self._seen.get(kind)
        if seen is None:
            seen = self._seen[kind] = make(self._memory, kind)
        return seen
