"""The jobs on a shard, by name. It must not know what is done with them."""

from __future__ import annotations

import threading

from ps_server.shard.job import ShardJob
from ps_wire.errors import JobUnknown


class ShardJobs:
    """The jobs on a shard by name, and the lock that guards them.

    Attributes:
        lock: guards `by_name` and what is in its entries; never held while tensors are worked on.
        by_name: under the lock.
    """

    def __init__(self, shard: int) -> None:
        """Has none; `shard` is the number that people are told."""
        self.lock = threading.Lock()
        self.by_name: dict[str, ShardJob] = {}
        self._shard = shard

    def known(self, name: str) -> ShardJob:
        """A job that has to be there; under the lock.

        Raises:
            JobUnknown: it is not.
        """
        entry = self.by_name.get(name)
        if entry is None:
            raise JobUnknown(
                f"shard {self._shard} does not know job {name!r}: nobody has joined it here, or the server "
                "was started again without its state",
                job=name,
            )
        return entry

    def all(self) -> tuple[ShardJob, ...]:
        """Copies of all of them, as they are now; takes the lock, as the following do."""
        with self.lock:
            return tuple(entry.copy() for entry in self.by_name.values())

    def put(self, entry: ShardJob) -> None:
        """A job from now on, in place of what there was of that name."""
        with self.lock:
            self.by_name[entry.name] = entry

    def drop(self, name: str) -> ShardJob | None:
        """Forgets a job and returns it."""
        with self.lock:
            return self.by_name.pop(name, None)

    def end(self, name: str) -> ShardJob | None:
        """Takes nothing more of a job's workers, then forgets and returns it."""
        with self.lock:
            known = self.by_name.get(name)
        if known is not None:  # first: a frame that finds no job would end its worker, who is to hear why
            known.retire()
        entry = self.drop(name)
        if entry is not None:  # of who has connected meanwhile; nobody finds it any more
            entry.retire()
        return entry
