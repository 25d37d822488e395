"""The capture of a group: what each of its ranks has beside the tables, at the beginning of one common step.

    header of step s       the leader, which has heard of a cut, or wants a note, tells the others
    beginning of step c    each rank captures, as a worker alone does; nobody waits
    header of step c       the others give the leader what they have captured, and it puts all of it

The stages of a pipeline have no header: what rides with the words on their weights they hear a step later.

What lies in one state for all ranks is that of rank 0, by its names, and that of each other rank under
`@rank/R/`. Whoever takes it up takes its own (`of_rank`), but for the positions: those are rank 0's, so that
all ranks decide the same. What a rank has not packed, as a stage its buffers, it takes as rank 0 has it.

Used by the script's thread; `say` and `hear` where buckets leave beside it by those that bring the headers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ps_worker.data.position import POSITIONS
from ps_worker.group.channel import Channel, Fields
from ps_worker.job.side_state import is_owners
from ps_worker.membership.snapshot_promise import ForetoldCut, Put, SnapshotPromise
from ps_worker.model import model_table

OF_RANK = "@rank/"
CUT, NOTE = "cut", "note"  # for a snapshot; for whoever goes on when all are gone
FORETELLS, FORETELLS_STAGES = 1, 2  # see `SnapshotPromise`


@dataclass(slots=True)
class _Captured:
    """The state of one rank.

    Attributes:
        number: of the cut.
        blob: the state.
        put: takes what all ranks have.
        asked: the leader has told the others that it wants theirs.
    """

    number: int
    blob: bytes
    put: Put
    asked: bool = False


class GroupCapture:
    """The states that one rank of a group has captured, on their way to the leader; a `Rider` of headers."""

    def __init__(self, channel: Channel, promises: Mapping[str, Callable[[], SnapshotPromise]]) -> None:
        """Has captured nothing.

        Args:
            channel: to the other ranks.
            promises: of this rank, by kind; steps that begin are told to all of them.
        """
        self._channel = channel
        self._promises = promises
        self._mine: dict[str, _Captured] = {}
        self._asking = threading.Lock()  # headers of two tables may be said at once; guards `asked`
        self._wanted = 0

    @property
    def leads(self) -> bool:
        """Whether this rank puts what all have."""
        return self._channel.ranks.leads

    def take(self, kind: str, number: int, blob: bytes, put: Put) -> None:
        """This rank has captured its state; the leader's `put` takes all ranks', and does not wait."""
        self._mine[kind] = _Captured(number, blob, put)

    def want(self, kind: str, put: Callable[[bytes], None]) -> None:
        """On the leader: all ranks are to capture soon; `put` takes what they have, and does not wait."""
        self._wanted += 1
        promise = self._promises[kind]()
        promise.arm(self._wanted, promise.prepare(self._wanted, lambda _, blob: put(blob)))

    def gather(self, what: str, blob: bytes, channel: Channel | None = None) -> bytes | None:
        """All ranks give the leader a state at the same place of the script; it gets one of all."""
        heard = (channel or self._channel).gather(what, blob=blob)
        return merged([blob, *(it.blob for it in heard)]) if self.leads else None

    def say(self, table: int, step: int) -> Fields:
        """See `Rider`."""
        if not self.leads:
            return {}
        said: dict[str, Any] = {}
        for kind, promise in self._promises.items():
            cut = promise().foretell(table, step)
            captured, mine = promise().captured, self._mine.get(kind)
            known = None if cut is None else [cut.number, sorted(cut.steps.items())]
            said[kind] = {"cut": known, "gathers": None}
            with self._asking:
                if mine is not None and mine.number == captured and not mine.asked:  # else it was given up
                    mine.asked, said[kind]["gathers"] = True, captured
        return said

    def hear(self, said: Sequence[Fields], channel: Channel) -> None:
        """See `Rider`."""
        for kind, promise in self._promises.items():
            first = said[0][kind]
            if not self.leads:
                promise().hear(_cut_of(first["cut"]))
            number = first["gathers"]
            if number is None:
                continue
            mine = self._mine.pop(kind, None)
            blob = mine.blob if mine is not None and mine.number == number else b""
            every = self.gather(f"{kind} {number} of what ranks have beside tables", blob, channel)
            if mine is not None and every is not None and promise().captured == number:
                mine.put(number, every)


def merged(blobs: Sequence[bytes]) -> bytes:
    """One state of what ranks have packed, by rank; see `of_rank`."""
    every = dict(model_table.unpack(blobs[0]))
    for rank, blob in enumerate(blobs[1:], 1):
        if blob:
            every |= {f"{OF_RANK}{rank}/{name}": it for name, it in model_table.unpack(blob).items()}
    return model_table.pack(every)


def of_rank(state: Mapping[str, torch.Tensor], rank: int) -> dict[str, torch.Tensor]:
    """The part of one rank, and of rank 0 what that has not, as where there were fewer ranks.

    Of rank 0 not what is its alone.
    """
    prefix = f"{OF_RANK}{rank}/"
    own = {name.removeprefix(prefix): it for name, it in state.items() if name.startswith(prefix)}
    first = {name: it for name, it in state.items() if not name.startswith(OF_RANK)}
    shared = {name: it for name, it in first.items() if not (rank and is_owners(name))}
    return shared | own | {name: first[name] for name in (POSITIONS,) if name in first}


def _cut_of(said: Any) -> ForetoldCut | None:
    if said is None:
        return None
    number, steps = said
    return ForetoldCut(int(number), {int(table): int(step) for table, step in steps})
