"""What is captured of a table continues bit-exact elsewhere: on other servers, cut over other shards."""

import json
from collections.abc import Sequence

import pytest
import torch

from ps_server.agreement.gate import gate_of
from ps_server.shard.state.codec import TableReader, encode
from ps_server.shard.state.optimizer_state import Loading, dump
from ps_server.shard.table.table import ShardTable
from ps_server.shard.table.table_state import TableState
from ps_wire.errors import SnapshotMismatch
from ps_wire.spec.consistency import ASP, BSP, SSP
from ps_wire.spec.nonfinite import NonFinite
from ps_wire.spec.plan import Plan
from tests.unit.ps_server import tables
from tests.unit.ps_server.tables import Push, Servers, defaults, draw, group, table_spec

ADAM = ("Adam", {"lr": 0.01, "betas": (0.9, 0.999), "weight_decay": 0.1})
MOMENTUM = ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01})
WORKERS = 2


def make(optimizer, num_shards, consistency):
    name, hyper = optimizer
    spec = table_spec(name, group(**hyper))
    return Servers(spec, draw(spec, 0), num_shards=num_shards, num_workers=WORKERS, consistency=consistency)


def train(servers: Servers, steps: Sequence[int], skipped: int | None = 1) -> None:
    """Under a scripted order: each worker's pushes are a function of the step alone."""
    for step in steps:
        for worker in range(WORKERS):
            gradients = list(draw(servers.spec, 100 * step + worker + 1))
            if skipped is not None and step == 1:
                gradients[skipped] = None
            servers.step(
                step, [Push(worker=worker, gradients=gradients)], servers.spec.optimizer.hyperparameters
            )


def saved(servers: Servers, *, going_on: bool = False):
    """Through bytes: tensors copied, facts as JSON text."""
    sources = []
    for shard in servers.shards:
        tensors, facts = encode(servers.plan, servers.spec.number, shard.dump(going_on=going_on))
        copied = {name: value.clone() for name, value in tensors.items()}
        sources.append((copied, json.loads(json.dumps(facts))))
    return sources


def continued(before: Servers, sources, num_shards: int, step: int, consistency) -> Servers:
    """The job goes on, on fresh servers with so many shards."""
    after = Servers(
        before.spec, draw(before.spec, 9), num_shards=num_shards, num_workers=WORKERS, consistency=consistency
    )
    reader = TableReader(before.spec, sources)
    for number in range(num_shards):
        shard = after.shards[number] = ShardTable(
            job="j", spec=before.spec, plan=after.plan, shard=number, gate=gate_of(consistency)
        )
        shard.load(TableState(cells=dict(reader.shard(after.plan, number))))
        for worker in range(WORKERS):
            shard.join(worker, 1, step)
        shard.start()
    return after


@pytest.mark.parametrize("num_shards", [2, 1, 3])
@pytest.mark.parametrize("consistency", [BSP(), SSP(1), ASP()], ids=str)
@pytest.mark.parametrize("optimizer", [MOMENTUM, ADAM], ids=["momentum", "adam"])
def test_law_15_a_table_continues_bit_exact_also_over_other_shards(optimizer, consistency, num_shards):
    straight = make(optimizer, 2, consistency)
    train(straight, range(3))
    sources = saved(straight)
    train(straight, range(3, 6))
    restored = continued(straight, sources, num_shards, 3, consistency)
    train(restored, range(3, 6))
    assert tables.same(restored.pull(0, 6), straight.pull(0, 6))
    for one, other in zip((restored.shards[0].cells()[0],), (straight.shards[0].cells()[0],), strict=True):
        assert one.machine.version == other.machine.version
        assert one.machine.clocks == other.machine.clocks
        assert one.machine.ledgers == other.machine.ledgers
        assert one.machine.tau == other.machine.tau
    states = [
        {name: value for tensors, _ in saved(servers) for name, value in tensors.items()}
        for servers in (straight, restored)
    ]
    if num_shards == 2:
        assert states[0].keys() == states[1].keys()
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_table_in_the_middle_of_a_step_is_handed_off_with_what_is_staged():
    straight = make(MOMENTUM, 1, BSP())
    train(straight, range(2))
    first = [Push(worker=0, gradients=draw(straight.spec, 7))]
    second = [Push(worker=1, gradients=draw(straight.spec, 8))]
    hyper = tables.changed(straight.spec.optimizer.hyperparameters, lr=0.05)
    straight.step(2, first, hyper)
    sources = saved(straight, going_on=True)
    successor = ShardTable(job="j", spec=straight.spec, plan=straight.plan, shard=0, gate=gate_of(BSP()))
    state = TableReader(straight.spec, sources).going_on(straight.plan, 0)
    successor.load(state, going_on=True)
    successor.start()
    successor.resume()
    straight.step(2, second, hyper)
    expected = straight.pull(0, 3)
    straight.shards[0] = successor
    del straight._hyper[1]  # said after the hand-off was written: a worker says it again when it reconnects
    straight.step(2, [*first, *second], hyper)  # worker 0 sends again: a duplicate
    assert tables.same(straight.pull(0, 3), expected)
    ledger = successor.ledger(0)
    assert ledger.applied == 3 * len(successor.cells())
    assert ledger.duplicates == len(successor.cells())


def test_a_step_that_is_complete_when_a_table_is_handed_off_closes_there():
    before = make(MOMENTUM, 1, BSP())
    train(before, range(1))
    closes = []
    before.shards[0].closer._submit = closes.append  # nobody closes it here any more
    pushes = [Push(worker=worker, gradients=draw(before.spec, worker)) for worker in range(WORKERS)]
    before.step(1, pushes, before.spec.optimizer.hyperparameters)
    assert closes
    successor = ShardTable(job="j", spec=before.spec, plan=before.plan, shard=0, gate=gate_of(BSP()))
    successor.load(
        TableReader(before.spec, saved(before, going_on=True)).going_on(before.plan, 0),
        going_on=True,
    )
    successor.start()
    successor.resume()
    assert {cell.machine.version for cell in successor.cells()} == {2}


def test_who_pushes_on_before_its_step_has_closed_closes_it():
    """A step closes on another thread, after the acknowledgement of what completed it."""
    at_once, later = make(MOMENTUM, 1, BSP()), make(MOMENTUM, 1, BSP())
    closes = []
    later.shards[0].closer._submit = closes.append
    train(at_once, range(3))
    train(later, range(3))
    assert {cell.machine.version for cell in later.shards[0].cells()} == {2}  # nobody has pushed on after it
    for close in closes:
        close()
    assert tables.same(later.pull(0, 3), at_once.pull(0, 3))


def test_a_missing_part_of_a_parameter_is_named():
    servers = make(ADAM, 2, BSP())
    train(servers, range(1))
    half = saved(servers)[:1]
    reader = TableReader(servers.spec, half)
    with pytest.raises(SnapshotMismatch, match=r"of parameter 'p\d' were not saved"):
        list(reader.shard(Plan(servers.spec, 1), 0))


def withheld(optimizer, consistency=BSP()):  # noqa: B008 - frozen
    """Two shards; one partition of the largest parameter has not taken the first step, nor the third.

    Its gradients were not finite there, so they were left out. Over one shard it lies in one partition with
    the next one.
    """
    hyper = {"lr": 0.1, "momentum": 0.9, "dampening": 0.5} if optimizer == "SGD" else {}
    spec = table_spec(optimizer, defaults(optimizer, **hyper))
    servers = Servers(
        spec,
        draw(spec, 0),
        num_shards=2,
        num_workers=WORKERS,
        consistency=consistency,
        nonfinite=NonFinite.SKIP,
    )
    plan = servers.plan
    place = max(range(len(spec.parameters)), key=lambda at: spec.parameters[at].numel)
    held = [(it, piece) for it in plan.partitions_of_shard(0) for piece in plan.pieces(it)]
    piece = [piece for _, piece in held if piece.parameter == place][-1]
    for step in range(4):
        for worker in range(WORKERS):
            gradients = list(draw(spec, 100 * step + worker + 1))
            if step in (0, 2):
                end = piece.parameter_offset + piece.numel
                gradients[place].view(-1)[piece.parameter_offset : end] = float("nan")
            servers.step(step, [Push(worker=worker, gradients=gradients)], spec.optimizer.hyperparameters)
    return servers


def all_states(servers):
    """The optimizer's, and the weights, of every element: kind -> parameter -> in order."""
    whole = TableReader(servers.spec, saved(servers))
    cells = dict(whole.shard(Plan(servers.spec, 1), 0)).items()
    plan = Plan(servers.spec, 1)
    found = {}
    for index, cell in cells:
        for piece, state in zip(cell.tensors.parts, cell.tensors.optimizer, strict=True):
            at = plan.partition(index).bucket, piece.parameter, piece.parameter_offset
            for kind, value in state.items():
                found[kind, *at] = value.expand(piece.numel) if value.dim() == 0 else value
    return found


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "NAdam", "ASGD"])
@pytest.mark.parametrize("shards", [(1, 2), (1, 1), (3, 1), (4, 3)])
def test_law_15_parts_that_have_counted_different_steps_stay_apart_over_other_shards(optimizer, shards):
    """Twice over another number of shards, bit for bit; a part without a state begins its own, too."""
    straight = withheld(optimizer)
    restored, step = straight, 4
    for num_shards in shards:
        restored = continued(straight, saved(restored), num_shards, step, BSP())
        for servers in (straight, restored):
            train(servers, range(step, step + 2), skipped=None)
        step += 2
        assert tables.same(restored.pull(0, step), straight.pull(0, step))
    ours, theirs = all_states(restored), all_states(straight)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_parts_that_have_counted_alike_become_one_again():
    """Only where counters differ is a piece cut."""
    servers = withheld("Adam")
    plan = Plan(servers.spec, 1)
    cells = dict(TableReader(servers.spec, saved(servers)).shard(plan, 0))
    cuts = {
        index: len(cell.tensors.parts) - len(plan.pieces(plan.partition(index)))
        for index, cell in cells.items()
    }
    assert sum(cuts.values()) == 2  # before it and behind it
    for index in [index for index, number in cuts.items() if number]:
        assert {state["step"].item() for state in cells[index].tensors.optimizer} == {2.0, 4.0}
        assert all(piece.parameter_offset % 16 == 0 for piece in cells[index].tensors.parts)


def test_one_state_of_parts_that_differ_takes_the_largest_step_and_says_so(caplog):
    """As `state_dict()` asks for it; what is set again is whole."""
    servers = withheld("Adam")
    restored = continued(servers, saved(servers), 1, 4, BSP())
    (shard,) = restored.shards
    index = next(
        index for index in shard.partitions() if shard.cell(index).values.parts != shard.cell(index).pieces
    )
    messages = dump(shard, index)
    cell = shard.cell(index)
    name = restored.spec.parameters[cell.pieces[0].parameter].name
    assert f"table 0: parts of parameter {name} in partition {index} have taken" in caplog.text
    assert "2, 4 steps" in caplog.text or "4, 2 steps" in caplog.text
    loading = Loading(shard)
    for message in messages:
        loading.receive(message)
    assert cell.values.parts == cell.pieces
    assert {state["step"].item() for state in cell.export_state()} == {4.0}
