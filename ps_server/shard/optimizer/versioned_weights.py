"""The weights of a partition, and the memory that replies about it still leave from.

Legend: E = elements of the partition.

A reply is bound to the version it was queued with, and may be sent from these very weights much later.
Whoever is about to change them asks `make_writable` first: where a reply is still held, the weights go on in
other memory, and what the reply holds stays as it is. So an apply waits for no peer, and no reply is torn. In
BSP this hardly ever happens: a step closes when all workers have the version before it.

Weights that workers map lie in two halves (`double_buffer.py`): the next version goes into the other one, and
nothing moves. A member's reply is over before its half is written again, for it has pushed since; whoever may
ask without pushing gets a copy.

Not thread-safe: its cell has a lock. Only holds end on other threads, which is why each change looks at them
once: memory that it found held is still read, by a reply or by who makes the next version of it, and it is
nobody else's before the cell looks again.
"""

from __future__ import annotations

import weakref

import torch

from ps_server.shard.optimizer.spares import Spares
from ps_wire.frames.carrier import Message
from ps_wire.process import trace


class VersionedWeights:
    """The weights of a partition, version after version, without overwriting memory that is still read.

    Attributes:
        now: the weights, shape (E,).
        other: the half that the next version is to be written into, shape (E,); None: there is none.
        ahead: that version is there already, in what `room` gave.
    """

    def __init__(self, values: torch.Tensor, spares: Spares | None = None) -> None:
        """Takes `values`, shape (E,), over; `spares` are those of others, too. None: its own."""
        self._spares = Spares() if spares is None else spares
        self.now = values
        self.other: torch.Tensor | None = None
        self.ahead = False
        self._room: torch.Tensor | None = None
        self._replies: list[weakref.ref[Message]] = []  # who holds one also refers to it
        self._left: list[tuple[torch.Tensor, list[Message]]] = []  # memory, and who still holds it

    def double(self, halves: tuple[torch.Tensor, torch.Tensor], version: int, *, loaded: bool) -> None:
        """Goes on in two halves, each of shape (E,); the weights are those of `version`.

        Replies that are held keep the memory of the version before. Weights that were never loaded are
        zeros, as halves are, and not copied.
        """
        before, self.now, self.other = self.now, halves[version & 1], halves[~version & 1]
        if loaded:
            self.now.copy_(before)

    def next(self) -> torch.Tensor:
        """Where the next version is to be written at once, shape (E,): it is `now` from here on.

        It is the other half, what was written ahead, or the same memory; where a reply is still sent from
        that, memory of its own.
        """
        if self.other is not None:
            self.now, self.other = self.other, self.now
        elif (held := self._held()) or self.ahead:
            self._move(held)
        self.ahead = False
        return self.now

    def room(self) -> torch.Tensor:
        """Where the next version may be written ahead: the other half, or memory that nobody reads."""
        if self.other is not None:
            return self.other
        if self._room is None:
            self._look_at_left()
            self._room = self._spares.take(self.now)
        return self._room

    def wrote_ahead(self, whole: bool) -> bool:
        """Notes that `room` holds the next version, if it is `whole`; returns that."""
        self.ahead = whole
        if not whole and self._room is not None:
            self._spares.give(self._room)
            self._room = None
        return whole

    @trace.traced("carry weights")
    def carry(self) -> None:
        """The next version is like this one."""
        if self.other is not None:
            before = self.now
            self.next().copy_(before)
        elif self.ahead:
            self.wrote_ahead(False)

    def sent(self, reply: Message) -> None:
        """A reply whose payload is `now` has been made, and will be given to outlets before the next one."""
        if self.other is None:
            self._replies = [weakref.ref(other) for other in self._held()] + [weakref.ref(reply)]

    def _held(self) -> list[Message]:
        replies = [reference() for reference in self._replies]
        return [reply for reply in replies if reply is not None and reply.held]

    def make_writable(self) -> bool:
        """Makes sure that nobody reads `now`; True: it is other memory, with the same values."""
        if self.other is not None or not (held := self._held()):
            return False
        before = self.now
        self._move(held)
        self.now.copy_(before)
        return True

    def _move(self, held: list[Message]) -> None:
        """Goes on in other memory; what is left, which these still read, is a spare once nobody does."""
        before, self.now, self._room = self.now, self.room(), None
        self._leave(before, held)
        self._replies = []

    def _leave(self, memory: torch.Tensor, held: list[Message]) -> None:
        if held:
            self._left.append((memory, held))
        else:
            self._spares.give(memory)

    def _look_at_left(self) -> None:
        left, self._left = self._left, []
        for memory, replies in left:
            self._leave(memory, [reply for reply in replies if reply.held])
