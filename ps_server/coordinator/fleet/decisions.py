"""Scales of clipped steps, as the coordinator decides them once all shards have reported their norms.

A shard that connects again reports again, and what was decided is answered again: nothing is lost with a
stream. One step of a table is open at a time (R1), so there is one decision to remember. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ps_server.agreement.clipping import Norm, coefficient, holders
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import TableSpec
from ps_wire.v1 import coordinator_pb2 as pb


@dataclass(slots=True)
class _Opening:
    number: int
    max_norm: float
    holders: tuple[int, ...]
    epoch: int = 0
    squares: dict[int, float] = field(default_factory=dict)
    decided: pb.Decide | None = None

    @property
    def step(self) -> int:
        """The open one."""
        return 0 if self.decided is None else self.decided.step + 1


@dataclass(slots=True)
class Decisions:
    """Of all jobs. Not thread-safe."""

    num_shards: int
    _openings: dict[tuple[str, int], _Opening] = field(default_factory=dict)

    def reopened(self, job: str, table: int) -> None:
        """The shards are told to open a table: what was known of one before it is void."""
        self._openings.pop((job, table), None)

    def opened(self, job: str, spec: TableSpec, opening: int, step: int = 0) -> None:
        """The shards are told to open a table, whose first step is `step`."""
        self.reopened(job, spec.number)
        if spec.clip_grad_norm is not None:
            shards = holders(Plan(spec, self.num_shards))
            opened = self._openings[job, spec.number] = _Opening(opening, spec.clip_grad_norm, shards)
            if step > 0:  # no shard asks for the one before
                opened.decided = pb.Decide(job=job, table=spec.number, opening=opening, step=step - 1)

    def capture(self) -> list[str]:
        """The last decision about each table, for JSON: a shard may not have heard it."""
        made = [opened.decided for opened in self._openings.values() if opened.decided is not None]
        return [decided.SerializeToString().hex() for decided in made]

    def restore(self, captured: Iterable[str]) -> None:
        """What a coordinator before this one has decided, of tables that are open."""
        for text in captured:
            decided = pb.Decide.FromString(bytes.fromhex(text))
            self._openings[decided.job, decided.table].decided = decided

    def dropped(self, job: str) -> None:
        """The shards are told to forget a job."""
        for key in [key for key in self._openings if key[0] == job]:
            del self._openings[key]

    def reported(self, shard: int, norm: Norm) -> tuple[pb.Decide, tuple[int, ...]] | None:
        """A shard's part of a norm: the decision that follows and the shards that it goes to, if any."""
        table = self._openings.get((norm.job, norm.table))
        if table is None or table.number != norm.opening or shard not in table.holders:
            return None
        if norm.epoch > table.epoch:  # parts with a worker that was evicted are void
            table.epoch = norm.epoch
            table.squares.clear()
        if table.decided is not None and norm.step == table.decided.step:
            return table.decided, (shard,)
        if norm.step != table.step or norm.epoch < table.epoch:
            return None
        table.squares[shard] = norm.squares
        if len(table.squares) < len(table.holders):
            return None
        squares = sum(table.squares[holder] for holder in table.holders)
        table.squares.clear()
        table.decided = pb.Decide(
            job=norm.job,
            table=norm.table,
            opening=norm.opening,
            step=norm.step,
            scale=coefficient(table.max_norm, squares),
        )
        return table.decided, table.holders
