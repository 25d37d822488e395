"""One input to a shard in a search of all states of the service, and what comes out of it.

A push has a 1 at the place of its worker, incarnation and step, and the optimizer subtracts the mean: so the
weights say which pushes are in them, and how many shared the step. Laws are checked on them at every input.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ps_server.agreement.attendance import TableAttendance
from ps_server.agreement.messages import UNANSWERED, Report, attendance_to_proto
from ps_server.shard.follower import Follower
from ps_server.shard.orders import execute_order
from ps_server.shard.partition.machine import Pull
from ps_server.shard.shard import Shard
from ps_wire.errors import CutAborted, PsError
from ps_wire.frames import frame as wire
from ps_wire.frames.carrier import Message
from ps_wire.frames.messages import refused_from_proto
from ps_wire.v1 import coordinator_pb2 as pb
from tests.search.shards import (
    CUT,
    JOB,
    PLACES,
    Follows,
    Held,
    Input,
    Output,
    Parts,
    ShardNode,
    follower_of,
    machine_of,
)


@dataclass(slots=True)
class Kept:
    """An `Outlet`: what one incarnation of a worker is sent."""

    worker: int
    incarnation: int
    outputs: list[Output]

    def send(self, message: Message) -> None:
        frame = message.frame
        match frame.kind:
            case wire.Kind.PULLED:
                self.outputs.append(("pulled", self.worker, self.incarnation, frame.version))
            case wire.Kind.ACK:
                self.outputs.append(("ack", self.worker, self.incarnation, frame.step))
            case wire.Kind.REFUSE:
                refused = pb.Refused.FromString(bytes(frame.meta))
                error = type(refused_from_proto(refused)).__name__
                self.outputs.append(("refused", self.worker, self.incarnation, error))
            case kind:
                raise AssertionError(kind)

    def write_along(self, *_: object) -> bool:
        return False


def gradient(worker: int, incarnation: int, step: int) -> bytes:
    """What a worker pushes: a 1 at its place; incarnations after a rollback have those of the first ones."""
    values = torch.zeros(1024)
    values[(worker * PLACES + incarnation % PLACES) * PLACES + step] = 1.0
    return values.numpy().tobytes()


@dataclass(slots=True)
class ShardVisit:
    """See the module's docstring.

    Attributes:
        repeats: orders may come again: what was answered is kept.
        aggregates: whether steps are taken on means.
    """

    parts: Parts
    shard: Shard
    before: ShardNode
    repeats: bool
    aggregates: bool
    follows: Follows = field(init=False)
    outputs: list[Output] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)  # pushes and pulls that a cut may have kept

    def __post_init__(self) -> None:
        self.follows = self.before.follows
        self.shard.reports.connect(self._attend)

    def take_up(self, held: Held) -> None:
        """What is not handed off."""
        machine = machine_of(self.shard)
        if machine is None:
            return
        cell = self.shard.table(JOB, 0).cells()[0]
        for worker, incarnation, clock in held.pulls:
            late = machine._members[worker].late
            pull = Pull(worker=worker, incarnation=incarnation, clock=clock)
            machine._waiting.put(pull, None if late else machine._members[worker].clock)
            cell.outlets[worker] = Kept(worker, incarnation, self.outputs)
        if held.cut is not None:
            cell.cut._cut.key, cell.cut._cut._limits = CUT, dict(held.cut)
            cell.cut._taker = CUT, self._take
        for given in held.kept:
            self.give(given)

    def held(self) -> Held:
        """See `Held`."""
        machine = machine_of(self.shard)
        if machine is None:
            return Held()
        cut = self.shard.table(JOB, 0).cells()[0].cut._cut
        kept = {(it.worker, it.step, it.pushes) for it in cut._kept}
        return Held(
            pulls=tuple((it.worker, it.incarnation, it.clock) for it in machine.waiting),
            cut=None if cut._limits is None else tuple(sorted(cut._limits.items())),
            kept=tuple(it for it in self.inputs if (it[1], it[3], it[0] == "push") in kept),
        )

    def give(self, given: Input) -> None:
        name, *what = given
        getattr(self, f"_on_{name}")(given, *what)

    def _on_push(self, given: Input, worker: int, incarnation: int, step: int, abstains: bool) -> None:
        content: dict[str, Any] = {"kind": wire.Kind.ABSTAIN}
        if not abstains:
            payload = gradient(worker, incarnation, step)
            content = {"kind": wire.Kind.PUSH, "payload": payload, "weight": 1.0}
        self._frame(given, worker, incarnation, step=step, version=step, **content)

    def _on_pull(self, given: Input, worker: int, incarnation: int, clock: int) -> None:
        self._frame(given, worker, incarnation, kind=wire.Kind.PULL, step=clock)

    def _frame(self, given: Input, worker: int, incarnation: int, **fields: Any) -> None:
        """As over a connection that is made now; one made before is retired where this is refused."""
        try:
            self.shard.make_token(JOB, worker, incarnation)
            table = self.shard.table(JOB, 0)
            (index,) = table.partitions()
            meta = index.to_bytes(4, "little") if fields["kind"] is not wire.Kind.PUSH else b""
            frame = wire.Frame(worker=worker, incarnation=incarnation, partition=index, meta=meta, **fields)
            member = self.shard.is_member(JOB, worker, incarnation)
            self.inputs.append(given)
            table.receive(frame, Kept(worker, incarnation, self.outputs), member=member)
        except PsError as error:
            self.outputs.append(("refused", worker, incarnation, type(error).__name__))

    def _on_order(self, _: Input, text: bytes) -> None:
        order = pb.Order.FromString(text)
        if order.WhichOneof("kind") in UNANSWERED:
            assert not execute_order(self.shard, order).HasField("refused"), order
            return
        number, answer = self.follows.done
        if order.number != number:
            done = execute_order(self.shard, order)
            answer = done.SerializeToString()
            if self.shard.index > 0:
                follower = follower_of(self.shard, self.follows)
                self._note(follower, (order.number, answer) if self.repeats else (-1, b""))
        self.outputs.append(("done", answer))

    def _note(self, follower: Follower, done: tuple[int, bytes]) -> None:
        self.follows = Follows(self.follows.boot, follower.coordinator, done)

    def _on_granted(self, _: Input, generation: int, coordinator: int) -> None:
        follower = follower_of(self.shard, self.follows)
        follower._begin(pb.Granted(generation=generation, coordinator=coordinator))
        self._note(follower, self.follows.done)
        self._on_attend(_)

    def _on_attend(self, _: Input) -> None:
        """Somebody else listens, who may not know who is there."""
        for attended in self.shard.pending():
            self._attend(attended)

    def _attend(self, attended: Report) -> None:
        assert isinstance(attended, TableAttendance)
        self.outputs.append(("report", attendance_to_proto(attended).SerializeToString(deterministic=True)))

    def _on_save(self, _: Input, limits: tuple[tuple[int, int], ...]) -> None:
        try:
            table = self.shard.table(JOB, 0)
            table.cells()[0].cut.save(CUT, dict(limits), self._take)
        except CutAborted:
            self.outputs.append(("aborted",))
        except PsError:
            self.outputs.append(("aborted",))
        else:
            self.outputs.append(("armed",))

    def _on_end(self, _: Input) -> None:
        if machine_of(self.shard) is not None:
            self.shard.table(JOB, 0).cells()[0].cut.end(CUT)

    def _take(self) -> None:
        self.outputs.append(("taken", self.parts.number(self.shard.table(JOB, 0).cells()[0].dump())))

    # -- laws ----------------------------------------------------------------------------------------

    def check(self, after: ShardNode) -> None:
        """What holds between two states of a shard."""
        before, machine = self.before, machine_of(self.shard)
        assert after.generation >= before.generation
        if machine is None:
            return
        entry = next(iter(self.shard.jobs()))
        assert all(it.incarnation > entry.floor for it in machine.staged), "nothing of an older generation"
        if self._is_other(entry.floor):
            return
        assert after.version >= before.version, "versions never go back"
        assert before.applied.items() <= after.applied.items(), (
            "applied once",
            before.applied,
            after.applied,
        )
        new = {key: value for key, value in after.applied.items() if key not in before.applied}
        if not self.aggregates:
            assert all(value == -1.0 for value in new.values()), new
            return
        assert len(after.taken) == len(after.applied), "a step of a worker counts once"
        for step in {step for _, _, step in new}:
            shares = [value for (_, _, taken), value in new.items() if taken == step]
            assert before.version <= step < after.version
            assert shares == [torch.tensor(-1.0).div(len(shares)).item()] * len(shares), (step, new)

    def _is_other(self, floor: int) -> bool:
        """Whether the shard holds another time of the job than before."""
        return self.before.facts is None or self.before.facts["floor"] != floor
