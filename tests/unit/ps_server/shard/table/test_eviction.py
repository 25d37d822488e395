"""A member that is evicted, or comes, in two rounds: on the machine, on tables of real shards, on a shard."""

from __future__ import annotations

import random

import pytest
import torch

from ps_server.coordinator.jobs.actions import TwoRounds, entrance, eviction
from ps_server.coordinator.jobs.member import Member
from ps_server.shard.orders import execute_order
from ps_server.shard.partition.machine import Complete, Ledger, StepMachine
from ps_server.shard.shard import Shard
from ps_wire.errors import Evicted, PushOutOfOrder, ServerNotReady, StaleIncarnation, StrangerRefused
from ps_wire.spec.consistency import ASP, BSP, SSP
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2
from tests.unit.ps_server.alone import ack, answer, ask, gradient, partition
from tests.unit.ps_server.desk import table
from tests.unit.ps_server.local import Local
from tests.unit.ps_server.tables import Push, Servers, draw, group, same, table_spec

# -- the machine ---------------------------------------------------------------------------------------


def test_a_fenced_member_is_refused_and_no_step_closes_until_the_verdict():
    """Also one that all have pushed."""
    machine = partition(BSP())
    machine.push(gradient(1, 0), 0.0)
    assert machine.fence(1, 1) == 1
    with pytest.raises(StaleIncarnation, match="being evicted"):
        machine.push(gradient(1, 1), 0.0)
    assert machine.push(gradient(0, 0), 0.0) == [ack(0, 0)]
    assert machine.version == 0
    machine.evict(1, 1, 1, 0.0)
    assert machine.version == 1
    assert machine.ledgers[1] == Ledger(received=1, applied=1, max_gap=1, refused=1)


def test_what_is_not_everywhere_is_dropped_and_counted():
    """The step closes with the others; the push of the evicted one is in its ledger."""
    machine = partition(BSP())
    machine.push(gradient(1, 0), 0.0)
    machine.push(gradient(0, 0), 0.0) if machine.fence(1, 1) is None else None
    machine.push(gradient(0, 0), 0.0)
    (apply,) = [item for item in machine.evict(1, 1, 0, 0.0) if hasattr(item, "contributions")]
    assert [item.worker for item in apply.contributions] == [0]
    assert (machine.ledgers[1].received, machine.ledgers[1].dropped) == (1, 1)
    assert machine.mixed_steps == 0


@pytest.mark.parametrize("model", [BSP(), SSP(1), ASP()])
def test_what_was_taken_here_and_not_everywhere_is_counted_as_mixed(model):
    """It stays applied: a step that has closed does not open again."""
    machine = partition(model)
    for worker in (0, 1):
        machine.push(gradient(worker, 0), 0.0)
    machine.fence(1, 1)
    machine.evict(1, 1, 0, 0.0)
    assert machine.mixed_steps == 1
    assert machine.ledgers[1].applied == 1


def test_an_eviction_opens_the_gate():
    """SSP: those who waited for the evicted one are answered at the verdict, not before."""
    machine = partition(SSP(0))
    machine.push(gradient(0, 0), 0.0)
    machine.pull(ask(0, 1))
    assert machine.fence(1, 1) == 0
    assert machine.evict(1, 1, 0, 5.0) == [answer(ask(0, 1), version=1)]


def test_a_newcomer_holds_the_gate_at_the_first_step_that_it_can_take():
    """From `prepare` on; at the step that is named in the end the others wait for it."""
    machine = partition(BSP())
    for worker in (0, 1):
        machine.push(gradient(worker, 0), 0.0)
    assert machine.prepare(2, 1) == 1
    for worker in (0, 1):
        machine.push(gradient(worker, 1), 0.0)
    assert machine.version == 1
    machine.join(2, 1, 2, 0.0)  # another partition had closed step 1
    assert machine.version == 2
    for worker in (0, 1):
        machine.push(gradient(worker, 2), 0.0)
    assert machine.version == 2
    machine.push(gradient(2, 2), 0.0)
    assert machine.version == 3


def test_a_newcomer_enters_behind_a_step_that_waits_for_its_decision():
    """All have pushed it, and nobody waits for another one."""
    machine = partition(BSP(), kind=StepMachine)
    machine.push(gradient(0, 0), 0.0)
    assert Complete(step=0, workers=frozenset({0, 1})) in machine.push(gradient(1, 0), 0.0)
    assert machine.prepare(2, 1) == 1
    machine.decide(0, frozenset({0, 1}), 1.0, 0.0)
    machine.join(2, 1, 1, 0.0)
    assert machine.version == 1


def test_a_newcomer_is_never_named_a_step_that_its_earlier_incarnation_has_staged():
    """What counts of the evicted incarnation is not pushed over."""
    machine = partition(BSP())
    machine.push(gradient(1, 0), 0.0)
    machine.fence(1, 1)
    machine.evict(1, 1, 1, 0.0)
    assert machine.prepare(1, 2) == 1
    machine.join(1, 2, 1, 0.0)
    with pytest.raises(PushOutOfOrder):
        machine.push(gradient(1, 1, incarnation=2), 0.0)
    machine.push(gradient(0, 0), 0.0)
    assert machine.version == 1
    assert machine.ledgers[1].applied == 1


def test_a_newcomer_enters_ssp_at_the_slowest_and_a_suspended_job_at_the_newest():
    """Of the live members; where there are none, of all that there were."""
    machine = partition(SSP(2))
    for step in range(2):
        machine.push(gradient(0, step), 0.0)
    machine.push(gradient(1, 0), 0.0)
    assert machine.prepare(2, 1) == 1
    machine.join(2, 1, 1, 0.0)
    for worker in (0, 1, 2):
        machine.leave(worker, 1, 0.0)
    assert machine.prepare(0, 2) == 2


# -- tables --------------------------------------------------------------------------------------------


def evict(servers: Servers, worker: int, epoch: int = 1) -> int:
    clocks = [shard.fence(worker, 1) for shard in servers.shards]
    limit = min(clock for clock in clocks if clock is not None)
    for shard in servers.shards:
        shard.evict(worker, 1, limit, epoch)
    return limit


@pytest.mark.parametrize("max_norm", [None, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_the_step_that_a_worker_dies_in_is_that_of_the_others_alone(max_norm, seed):
    """Wherever its frames have come to, if not to all partitions; the norm of a clipped step, too."""
    rng = random.Random(seed)
    spec = table_spec("SGD", group(lr=0.1, momentum=0.9), clip_grad_norm=max_norm)
    start = draw(spec, 1)
    servers, local = Servers(spec, start, num_shards=2, num_workers=3, seed=seed), Local(spec, start)
    hyper = spec.optimizer.hyperparameters
    first = [Push(worker=worker, gradients=draw(spec, worker)) for worker in range(3)]
    servers.step(0, first, hyper)
    local.step(first, hyper)
    second = [Push(worker=worker, gradients=draw(spec, 10 + worker)) for worker in range(3)]
    frames = [frame for push in second[:2] for frame in servers.frames(1, push)]
    theirs = servers.frames(1, second[2])
    rng.shuffle(theirs)
    frames += theirs[: len(theirs) - 1 - rng.randrange(3)]  # the last ones never come
    last = [frame for frame in frames if frame.worker < 2][-1]  # so that no partition closes with it
    held = {frame.partition for frame in frames if frame.worker == 2} | {last.partition}
    late = [frame for frame in frames if frame.worker == 1 and frame.partition in held]
    for frame in frames:
        if frame not in late:
            servers._give(frame.partition, frame)
    if max_norm is not None and seed % 2:
        for frame in late:  # a shard reports a norm with the worker that dies in it
            servers._give(frame.partition, frame)
        late = []
    assert evict(servers, 2) == 1
    for frame in late:
        servers._give(frame.partition, frame)
    local.step(second[:2], hyper)
    pulled = servers.pull(0, 2)
    assert pulled is not None
    if max_norm is None:
        assert same(pulled, local.weights)
    for one, other in zip(pulled, local.weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_what_counts_of_an_evicted_worker_is_no_longer_read_in_its_memory():
    """It was copied at the verdict: the worker may write there as soon as it has joined again."""
    from ps_wire.frames import frame as wire  # noqa: PLC0415

    spec = table_spec("SGD", group(lr=1.0), shapes=((16,),))
    start = draw(spec, 1)
    servers = Servers(spec, start, num_workers=2)
    memory = bytearray(servers.frames(0, Push(worker=1, gradients=draw(spec, 3)))[0].payload)
    push = wire.Frame(
        kind=wire.Kind.PUSH, flags=wire.SHARED, worker=1, incarnation=1, payload=memoryview(memory)
    )
    servers.shards[0].receive(push, servers.outlets[1], member=True)
    assert evict(servers, 1) == 1
    memory[:] = bytes(len(memory))
    zeros = Push(worker=0, gradients=[torch.zeros(16)])
    servers.step(0, [zeros], spec.optimizer.hyperparameters)
    local = Local(spec, start)
    local.step([zeros, Push(worker=1, gradients=draw(spec, 3))], spec.optimizer.hyperparameters)
    assert same(servers.pull(0, 1), local.weights)


# -- a shard -------------------------------------------------------------------------------------------


def admitted(shard: Shard, *workers: int, reader: bool = False) -> list[Member]:
    job = spec_pb2.Job(name="j", consistency="bsp", num_workers=3)
    members = []
    for worker in workers:
        order = pb.Order(admit=pb.AdmitMember(job=job, worker=worker, incarnation=1, reader=reader))
        assert not execute_order(shard, order).HasField("refused")
        members.append(Member(worker=worker, incarnation=1, host="h", pid=1))
    return members


def both_rounds(shard: Shard, change: TwoRounds) -> dict[int, int]:
    first = execute_order(shard, change.first)
    assert not first.HasField("refused"), first
    second = execute_order(shard, change.second(dict(first.clocks)))
    assert not second.HasField("refused"), second
    return dict(first.clocks)


class Session:
    carrier = "test"

    def __init__(self) -> None:
        self.said: list[object] = []

    def retire(self) -> None:
        self.said.append("retired")

    def sever(self) -> None:
        self.said.append("severed")


def test_an_evicted_incarnation_may_do_nothing_any_more_and_learns_why():
    """At the fence its frames are no longer taken and its tokens void; the verdict ends its connection.

    It hears of it when it connects again, whatever it had left unread.
    """
    shard = Shard(index=0, num_shards=1, memory_limit_bytes=None)
    _, one = admitted(shard, 0, 1)
    shard.open_table("j", table(), 1)
    token = shard.make_token("j", 1, 1)
    session = Session()
    shard.replace_session("j", 1, 1, session)
    change = eviction("j", one, 1)
    assert dict(execute_order(shard, change.first).clocks) == {0: 0}
    assert session.said == ["retired"]
    with pytest.raises(ServerNotReady, match="is being evicted"):
        shard.make_token("j", 1, 1)
    execute_order(shard, change.second({0: 0}))
    assert session.said == ["retired", "severed"]
    for refused in (lambda: shard.use_token("j", 1, 1, token), lambda: shard.make_token("j", 1, 1)):
        with pytest.raises(Evicted):
            refused()
    with pytest.raises(StrangerRefused):
        shard.make_token("j", 1, 2)
    assert not shard.is_member("j", 1, 1)


def test_who_comes_late_is_a_member_of_the_tables_that_it_has_entered():
    """It may connect before; and a table that is made later has it from the beginning."""
    shard = Shard(index=0, num_shards=1, memory_limit_bytes=None)
    admitted(shard, 0)
    shard.open_table("j", table(), 1)
    (late,) = admitted(shard, 2, reader=True)
    shard.make_token("j", 2, 1)
    assert not shard.is_member("j", 2, 1)
    assert both_rounds(shard, entrance("j", late, 0)) == {0: 0}
    assert shard.is_member("j", 2, 1)
    shard.open_table("j", table(1), 2)
    (cell,) = shard.table("j", 1).cells()
    assert cell.machine.clocks == ((0, 0), (2, 0))
    assert both_rounds(shard, entrance("j", late, 1)) == {1: 0}
