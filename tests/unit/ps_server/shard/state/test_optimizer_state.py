"""Optimizer state as messages: what is dumped can be loaded; what does not fit leaves the old state."""

from __future__ import annotations

import pytest
import torch

from ps_server.shard.optimizer.piece_optimizer import KNOWN, PieceOptimizer
from ps_server.shard.state.optimizer_state import Loading, dump
from ps_wire.errors import PayloadMismatch
from ps_wire.frames.state_messages import ENTRY_BYTES, MESSAGE_BYTES
from ps_wire.spec.table import BucketOptions
from ps_wire.v1 import shard_pb2 as pb
from tests.unit.ps_server.tables import Push, Servers, defaults, draw, table_spec

EVERY = pytest.mark.parametrize("name", KNOWN)
NUMEL = 40


def optimizer(name, **hyper):
    """One with state, over a piece that has had gradients and one that has not."""
    pieces = [torch.ones(NUMEL), torch.ones(3)]
    made = PieceOptimizer(name, defaults(name, **hyper), pieces)
    for step in range(2):
        made.step([torch.randn(NUMEL, generator=torch.Generator().manual_seed(step)), None], made._start)
    return made, pieces


def same(one, other):
    return [list(state) for state in one] == [list(state) for state in other] and all(
        torch.equal(state[key], kept[key]) and state[key].dtype is kept[key].dtype
        for state, kept in zip(one, other, strict=True)
        for key in state
    )


def served(name="Adam", *, shapes=((600,), (), (7,)), partition_bytes=4096, **hyper):
    """A table with state: one shard, one worker, after a step."""
    spec = table_spec(
        name,
        defaults(name, **hyper),
        shapes=shapes,
        buckets=BucketOptions(partition_bytes=partition_bytes),
    )
    servers = Servers(spec, draw(spec, 0))
    servers.step(0, [Push(worker=0, gradients=draw(spec, 1))], spec.optimizer.hyperparameters)
    return servers.shards[0]


def states(table):
    return [state for cell in table.cells() for state in cell.export_state()]


def messages(table):
    return [message for partition in table.partitions() for message in dump(table, partition)]


def tensor_of(message, name):
    return next(tensor for tensor in message.tensors if tensor.name == name)


@EVERY
def test_an_exported_state_goes_on_as_the_one_it_was_copied_from(name):
    """The same bits after more steps; what was exported does not change."""
    first, pieces = optimizer(name)
    exported = first.export_state()
    before = [{key: value.clone() for key, value in state.items()} for state in exported]
    copies = [piece.clone() for piece in pieces]
    second = PieceOptimizer(name, first._start, copies)
    second.import_state(exported)
    gradient = torch.linspace(-1, 1, NUMEL)
    for made in (first, second):
        made.step([gradient, torch.ones(3)], made._start)
    assert all(torch.equal(piece, copy) for piece, copy in zip(pieces, copies, strict=True))
    assert same(first.export_state(), second.export_state())
    assert same(exported, before)


@EVERY
def test_state_names_are_torchs_and_the_accounting_counts_their_tensors(name):
    """In torch's order; a tensor each of the size of the weights, beside scalars."""
    made, _ = optimizer(name)
    state = made.export_state()[0]
    assert tuple(state) == made.state_names
    assert sum(value.dim() == 1 for value in state.values()) == KNOWN[name].slots(dict(made._start))


@pytest.mark.parametrize(
    "change",
    [
        {"exp_avg": torch.zeros(NUMEL + 1)},
        {"exp_avg": torch.zeros(NUMEL, dtype=torch.float64)},
        {"exp_avg": torch.tensor(0.0)},
        {"exp_avg": None},
        {"step": None},
        {"step": torch.zeros(1)},
        {"step": torch.tensor(1)},
        {"max_exp_avg_sq": torch.zeros(NUMEL)},
    ],
    ids=lambda change: "=".join(f"{key}={value}" for key, value in change.items())[:30],
)
def test_a_state_that_does_not_fit_is_refused_and_the_old_one_stays(change):
    """A wrong size, dtype, number of dimensions, a name too few or too many."""
    made, _ = optimizer("Adam")
    before = made.export_state()
    wrong = {key: value for key, value in {**before[0], **change}.items() if value is not None}
    with pytest.raises(PayloadMismatch, match="piece 0"):
        made.import_state([wrong, {}])
    assert same(made.export_state(), before)


def test_fused_kernels_get_the_step_that_they_read():
    """A checkpoint of a run in float64 has it in float64."""
    made, _ = optimizer("Adam")
    state = made.export_state()[0]
    made.import_state([{**state, "step": state["step"].double()}, {}])
    assert made.export_state()[0]["step"].dtype is torch.float32
    made.step([torch.ones(NUMEL), None], made._start)


def test_adagrad_has_state_from_the_start():
    """So one that takes it away is refused: torch could not make a step with it."""
    made, _ = optimizer("Adagrad")
    with pytest.raises(PayloadMismatch, match="sum"):
        made.import_state([{}, {}])


@EVERY
def test_what_is_dumped_can_be_loaded(name):
    """Over several partitions and pieces, a scalar parameter among them."""
    table, fresh = served(name), served(name)
    expected = states(table)
    for cell in fresh.cells():
        cell.set_weights(cell.values.now.clone(), (0, 1))
    loading = Loading(fresh)
    _take_all(loading, messages(table))
    assert loading.partitions == set(table.partitions())
    assert same(states(fresh), expected)


def test_no_message_has_more_than_4_mib_of_data():
    """A partition of 4 MiB has two tensors of 4 MiB, and one of many small pieces much beside data."""
    for table in (
        served(shapes=((1 << 20,),), partition_bytes=4 << 20),
        served(shapes=((16,),) * 1500, partition_bytes=4 << 20),
    ):
        made = messages(table)
        assert [message.last for message in made] == [False] * (len(made) - 1) + [True]
        assert max(sum(len(item.data) for item in message.tensors) for message in made) <= MESSAGE_BYTES
        assert max(message.ByteSize() for message in made) <= MESSAGE_BYTES + ENTRY_BYTES


def _cut_off(given):
    given[-1].last = False


def _unknown_partition(given):
    given[-1].partition = 99


def _mixed_partitions(given):
    given[0].last = False


def _unknown_piece(given):
    given[-1].tensors[0].piece = 1000


def _unknown_name(given):
    given[-1].tensors[0].name = "password" * 100


def _unknown_dtype(given):
    given[-1].tensors[0].dtype = "object"


def _short_data(given):
    tensor_of(given[-1], "exp_avg").data = b"1234"


def _not_whole_elements(given):
    tensor_of(given[-1], "exp_avg").data += b"1"


def _scalar_of_the_wrong_kind(given):
    tensor_of(given[-1], "step").scalar = False


def _said_twice(given):
    given[-1].tensors.append(given[-1].tensors[0])


def _partition_twice(given):
    given.append(pb.PartitionState(partition=given[0].partition, last=True))


def _incomplete(given):
    del given[-1].tensors[1]


BAD = [
    _cut_off,
    _unknown_partition,
    _mixed_partitions,
    _unknown_piece,
    _unknown_name,
    _unknown_dtype,
    _short_data,
    _not_whole_elements,
    _scalar_of_the_wrong_kind,
    _said_twice,
    _partition_twice,
    _incomplete,
]


@pytest.mark.parametrize("spoil", BAD)
def test_a_stream_that_does_not_fit_is_refused_and_its_partition_keeps_its_state(spoil):
    """Cut off, out of order, or with anything that the table's optimizer cannot have."""
    table = served(shapes=((600,), (1500,)))
    before = states(table)
    given = messages(table)
    assert len(given) > 1
    spoil(given)
    loading = Loading(table)
    with pytest.raises(PayloadMismatch):
        _take_all(loading, given)
    assert same(states(table), before)


def _take_all(loading, given):
    for message in given:
        loading.receive(message)
    loading.end()


def test_loading_weights_starts_a_partition_without_state():
    """A starter that comes back brings all of it again."""
    table = served()
    cell = table.cell(0)
    for incarnation in (1, 2):
        assert any(cell.export_state())
        cell.set_weights(torch.zeros_like(cell.values.now), (0, incarnation))
        assert not any(cell.export_state())
        _take_all(Loading(table), messages(served()))


def test_weights_that_are_brought_again_leave_the_state_that_came_meanwhile():
    """They may be on the way twice, where Ctrl-C or a lost connection came between; the first one counts."""
    table = served()
    cell, brought = table.cell(0), torch.zeros_like(table.cell(0).values.now)
    cell.set_weights(brought, (0, 1))
    _take_all(Loading(table), messages(served()))
    state = cell.export_state()
    assert any(state)
    cell.set_weights(brought + 1.0, (0, 1))
    assert same(cell.export_state(), state)
    assert torch.equal(cell.values.now, brought)
