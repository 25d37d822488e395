"""Sessions of a job on this shard: live connections of its workers, and those that a fence has ended.

It must not know frames, tables or who is a member. Guarded by the lock of jobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol


class Retirable(Protocol):
    """A connection that another one can replace; see `Flow` for its figures.

    Attributes:
        carrier: its name.
    """

    carrier: str

    @property
    def received_bytes(self) -> int:
        """See `Flow`; so is the next one."""
        ...

    @property
    def sent_bytes(self) -> int:
        """See above."""
        ...

    def retire(self) -> None:
        """Takes no more frames; waits for the one that is being taken."""
        ...

    def sever(self) -> None:
        """Ends the connection at once, once it is retired, and frees what it holds. Never blocks."""
        ...


@dataclass(slots=True)
class Sessions:
    """The connections of a job's workers.

    Attributes:
        live: (worker, rank) -> its connection.
        expelled: worker -> the connections that its fence has ended, until the verdict.
        connected: (worker, rank) -> the incarnation that has had a connection.
    """

    live: dict[tuple[int, int], Retirable] = field(default_factory=dict)
    expelled: dict[int, tuple[Retirable, ...]] = field(default_factory=dict)
    connected: dict[tuple[int, int], int] = field(default_factory=dict)

    @classmethod
    def of_expelled(cls, workers: Iterable[int]) -> Sessions:
        """Where these wait for the verdict, and nobody has a connection."""
        return cls(expelled=dict.fromkeys(workers, ()))

    def replace(self, worker: int, rank: int, incarnation: int, session: Retirable) -> Retirable | None:
        """Makes `session` the live one of this rank; returns the one before. Those of other ranks stay."""
        self.connected[worker, rank] = incarnation
        before, self.live[worker, rank] = self.live.get((worker, rank)), session
        return before

    def forget(self, worker: int, rank: int, session: Retirable) -> None:
        """It is gone; one that another has replaced is gone already."""
        if self.live.get((worker, rank)) is session:
            del self.live[worker, rank]

    def pop(self, worker: int) -> tuple[Retirable, ...]:
        """Removes and returns the live ones of all ranks of a worker."""
        gone = [key for key in self.live if key[0] == worker]
        return tuple(self.live.pop(key) for key in gone)

    def expel(self, worker: int) -> tuple[Retirable, ...]:
        """The same, of a worker that is fenced: they are kept until `judge`."""
        self.expelled[worker] = self.pop(worker)
        return self.expelled[worker]

    def judge(self, worker: int) -> tuple[Retirable, ...]:
        """Those that its fence has ended: the verdict is there."""
        return self.expelled.pop(worker, ())

    def of(self, worker: int) -> dict[int, Retirable]:
        """Rank -> its live one, of one worker; in no order."""
        return {rank: it for (whose, rank), it in self.live.items() if whose == worker}

    def every(self) -> list[Retirable]:
        """All that are live, or wait for a verdict."""
        expelled = [*self.expelled.values()]  # at once: others come and go
        return [*self.live.values(), *(it for ended in expelled for it in ended)]

    def copy(self) -> Sessions:
        """Of this moment, with the same connections."""
        return Sessions(dict(self.live), dict(self.expelled), dict(self.connected))
