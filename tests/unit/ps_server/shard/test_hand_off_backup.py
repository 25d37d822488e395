"""With backup workers, too, who takes a server's place goes on to the bit, and knows who is late."""

from __future__ import annotations

import dataclasses
import json
from functools import partial

import pytest

from ps_server.agreement.attendance import Attendance, CatchUp, Choose, Late, TableAttendance
from ps_server.agreement.messages import choice_from_proto
from ps_server.coordinator.fleet.ballots import Ballots
from ps_server.shard import hand_off
from ps_server.shard.hand_off import Inherited
from ps_server.shard.job import ShardJob
from ps_server.shard.optimizer.partition_tensors import TensorsState
from ps_server.shard.partition.backup_machine import BackupStepMachine
from ps_server.shard.partition.cell import Cell
from ps_server.shard.partition.cell_state import CellState
from ps_server.shard.partition.machine import _Member
from ps_server.shard.partition.machine_state import MachineMember, MachineState
from ps_server.shard.shard import Shard
from ps_server.shard.state.codec import TableReader, encode
from ps_server.shard.table.table_state import TableState
from ps_wire.spec.consistency import BSP
from ps_wire.v1 import spec_pb2
from tests.unit.ps_server.shard.table.backup_walk import SHAPES, Walk, sgd, spec_hyper
from tests.unit.ps_server.tables import Push, Servers, draw, group, same, table_spec

INHERITED = Inherited(boot=b"boot")


def hand_on(servers: Servers, number: int, folder) -> None:
    """A shard is stopped, and its successor says what may be waited for, as to a coordinator."""
    one = partial(Shard, index=number, num_shards=len(servers.shards), memory_limit_bytes=None)
    before, after = one(), one()
    workers = len(servers.outlets)
    job = ShardJob(name="j", consistency=BSP(1), num_workers=workers)
    before.put(job)
    job.tables[0] = servers.shards[number]
    hand_off.write(folder, before, INHERITED)
    found = hand_off.find(folder, after)
    assert found is not None
    assert found.inherited is not None
    found.use_up()
    servers.shards[number] = after.table("j", 0)
    after.reports.connect(partial(servers.take, number))
    for report in after.pending():
        servers.take(number, report)


@pytest.mark.parametrize(("num_shards", "num_workers", "seed"), [(1, 3, 1), (2, 3, 5), (3, 4, 2)])
def test_law_15_servers_are_replaced_at_any_moment_and_each_step_is_the_mean_of_its_chosen(
    tmp_path, num_shards, num_workers, seed
):
    """Frame by frame, at random moments: equal to the replay of what was chosen, and nobody is stuck."""
    walk = Walk(sgd(), num_shards=num_shards, num_workers=num_workers, backup=1, seed=seed)
    kept = late = replaced = 0

    def replace():
        nonlocal kept, late, replaced
        deaf = walk.servers.deaf
        if walk.dice.random() > (0.3 if deaf else 0.1):
            return
        if not deaf:  # choices do not reach a shard any more: it is about to stop
            deaf.add(walk.dice.randrange(num_shards))
            return
        number = deaf.pop()
        cells = walk.servers.shards[number].cells()
        kept += sum(cell.values.kept_bytes for cell in cells)
        late += sum(member.late for cell in cells for member in cell.machine._members.values())
        hand_on(walk.servers, number, tmp_path)
        walk.cut_off.update(range(num_workers))
        replaced += 1

    walk.run(6, between=replace)
    for _ in list(walk.servers.deaf):
        hand_on(walk.servers, walk.servers.deaf.pop(), tmp_path)
    walk.check()
    assert replaced > 3
    assert kept > 0
    assert late > 0


class Undecided(Servers):
    """Its coordinator can be kept from hearing of norms."""

    silent = False

    def report(self, shard, norm):
        if not self.silent:
            super().report(shard, norm)


def test_a_chosen_step_that_waits_for_its_scale_is_handed_on_as_chosen(tmp_path):
    """Who comes later is dropped by the successor as it would have been; the step closes with its set."""
    spec = table_spec("Adam", group(lr=0.1), shapes=SHAPES, clip_grad_norm=0.5)
    found = []
    for replaced in (False, True):
        servers = Undecided(spec, draw(spec, 0), num_shards=2, num_workers=3, consistency=BSP(1))
        servers.silent = True
        pushes = [Push(worker=worker, gradients=draw(spec, worker + 1)) for worker in range(3)]
        servers.step(0, pushes[:2], spec_hyper(spec))
        assert {cell.machine.version for shard in servers.shards for cell in shard.cells()} == {0}
        if replaced:
            for number in range(2):
                hand_on(servers, number, tmp_path)
        servers.step(0, pushes[2:], spec_hyper(spec))
        servers.silent = False
        for number, shard in enumerate(servers.shards):
            servers.report(number, shard.closer.undecided())
        assert servers.chosen == {0: {0, 1}}
        found.append([servers.pull(worker, 1) for worker in range(3)])
        ledger = servers.shards[1].ledger(2)
        assert (ledger.received, ledger.dropped) == (len(servers.shards[1].cells()),) * 2
    assert all(same(one, other) for one, other in zip(*found, strict=True))


def test_a_late_worker_asks_a_successor_again_for_what_it_works_on_and_at_its_old_clock(tmp_path):
    """The version that it has is handed on, and so is the clock at which it was caught up."""
    spec = sgd()
    servers = Servers(spec, draw(spec, 0), num_shards=2, num_workers=3, consistency=BSP(1))
    start = servers.pull(2, 0)
    for step in range(2):
        pushes = [Push(worker=worker, gradients=draw(spec, 10 * step + worker)) for worker in (0, 1)]
        servers.step(step, pushes, spec_hyper(spec))
    hand_on(servers, 0, tmp_path)
    assert same(servers.pull(2, 0), start)
    servers.step(0, [Push(worker=2, gradients=draw(spec, 2))], spec_hyper(spec))
    hand_on(servers, 1, tmp_path)
    caught_up = servers.pull(2, 1)
    assert same(caught_up, servers.pull(0, 2))
    hand_on(servers, 0, tmp_path)
    hand_on(servers, 1, tmp_path)
    assert same(servers.pull(2, 1), caught_up)
    assert [(caught.late.clock, caught.step) for caught in servers.caught] == [(1, 2)]


def test_a_successor_says_first_who_is_late_and_waits(tmp_path):
    """It has not heard where the worker goes on; if others went on before that, the version would be gone."""
    spec = sgd()
    servers = Servers(spec, draw(spec, 0), num_shards=2, num_workers=3, consistency=BSP(1))

    def step(number, *workers):
        pushes = [Push(worker=worker, gradients=draw(spec, 10 * number + worker)) for worker in workers]
        servers.step(number, pushes, spec_hyper(spec))

    step(0, 0, 1)
    step(0, 2)
    servers.deaf.add(0)
    assert servers.pull(2, 1) is None
    assert servers.caught
    servers.deaf.clear()
    hand_on(servers, 0, tmp_path)
    version = servers.pull(0, 1)
    step(1, 0, 1)
    assert same(servers.pull(2, 1), version)


def test_the_coordinators_choices_are_handed_on_to_shards_that_have_not_heard_them():
    """Neither which pushes a step takes, nor where a late worker goes on, is chosen again."""
    spec = sgd()
    late = Late(worker=2, incarnation=1, clock=1)

    def said(choices, shard, **report):
        given = TableAttendance(job="j", table=0, opening=4, report=Attendance(**report))
        return [
            (choice_from_proto(getattr(made.order, made.order.WhichOneof("kind"))), made.shards)
            for made in choices.reported(shard, given)
        ]

    def fresh():
        choices = Ballots(2)
        choices.admitted(spec_pb2.Job(name="j", consistency="bsp:backup=1", num_workers=3))
        choices.opened("j", spec, 4)
        return choices

    before, after = fresh(), fresh()
    ready, members = frozenset({0, 1}), frozenset({0, 1, 2})
    for shard in range(2):
        chosen = said(before, shard, step=0, ready=ready, members=members)
    for shard in range(2):
        caught = said(before, shard, step=1, late=frozenset({late}))
    choose, catch_up = Choose(step=0, workers=ready), CatchUp(late=late, step=1)
    assert (chosen, caught) == ([(choose, (0, 1))], [(catch_up, (0, 1))])
    after.load(json.loads(json.dumps(before.dump())))
    assert said(after, 0, step=1) == []
    assert said(after, 1, step=0, ready=ready, members=members) == [(choose, (1,))]
    assert said(after, 1, step=1, late=frozenset({late})) == [(catch_up, (1,))]


def test_a_shard_alone_goes_on_choosing_where_its_snapshot_is():
    """Else the first step after a rollback would never close."""
    spec = sgd()
    make = partial(Servers, spec, draw(spec, 0), num_workers=3, consistency=BSP(1))
    before, after = make(), make()
    pushes = [
        [Push(worker=worker, gradients=draw(spec, 9 * step + worker)) for worker in (0, 1)] for step in (0, 1)
    ]
    before.step(0, pushes[0], spec_hyper(spec))
    source = encode(before.plan, 0, before.shards[0].dump())
    (fresh,) = after.shards
    for worker in range(3):
        fresh.leave(worker, 1)
    fresh.load(TableState(cells=dict(TableReader(spec, [source]).shard(before.plan, 0))))
    for worker in range(3):
        fresh.join(worker, 2, 1)
    for servers, incarnation in ((before, 1), (after, 2)):
        for frame in [frame for push in pushes[1] for frame in servers.frames(1, push)]:
            servers.give(frame.but(incarnation=incarnation))
    assert {cell.machine.version for cell in fresh.cells()} == {2}
    assert same(after.pull(0, 0, read=True), before.pull(0, 0, read=True))


def test_whoever_adds_a_field_to_a_partition_is_asked_what_its_successor_gets():
    """Each is dumped, or named here with the reason why it is not."""
    state = {field.name for field in dataclasses.fields(MachineState)}
    machine = {field.name.removeprefix("_") for field in dataclasses.fields(BackupStepMachine)}
    given, asks_again = {"gate"}, {"waiting"}  # of pulls, those of late workers are kept, as `late`
    derived = {"counts", "num_fenced"}  # from the members
    assert machine == (state - {"late"}) | given | asks_again | derived
    member = {field.name for field in dataclasses.fields(_Member)}
    assert member == {field.name for field in dataclasses.fields(MachineMember)}
    assert member == {"incarnation", "clock", *hand_off.FLAGS}


def test_whoever_adds_a_field_to_a_cell_is_asked_what_its_successor_gets():
    """As for a partition's machine."""
    state = {field.name for field in dataclasses.fields(CellState)}
    given = {
        "clipping",
        "group",
        "index",
        "lock",
        "pieces",
        "scratch",
        "screening",
        "table",
    }
    comes_again = {
        "closing",
        "cut",
        "outlets",
        "replies",
        "tally",
    }  # steps complete again
    counts, copied = {"meters"}, {"loans"}
    over = {"bringer"}  # weights that came and were acknowledged do not come again over another connection
    slots = {name.removeprefix("_") for name in Cell.__slots__ if name != "__weakref__"}
    assert slots - {"values"} == (state - {"tensors"}) | given | comes_again | counts | copied | over
    tensors = {field.name for field in dataclasses.fields(TensorsState)}
    assert tensors == {"weights", "parts", "optimizer", "other", "kept"}
