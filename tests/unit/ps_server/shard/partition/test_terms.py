"""A gradient that is the mean of what the ranks of a group have, which the shard takes while it steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from ps_wire.errors import NonFiniteGradient
from ps_wire.frames import frame as wire
from ps_wire.frames.messages import parse_message, refused_from_proto
from ps_wire.frames.terms import whole
from ps_wire.process import kernels
from ps_wire.process.rank_mean import rank_mean
from ps_wire.spec.table import TableSpec
from ps_wire.v1 import coordinator_pb2
from tests.unit.ps_server.local import Local
from tests.unit.ps_server.tables import Push, Servers, draw, group, same, table_spec

SHAPES = ((33, 17), (5000,))
PLAIN = table_spec("SGD", group(lr=0.5), shapes=SHAPES)
ADAM = table_spec(
    "Adam",
    group(lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, amsgrad=False),
    shapes=SHAPES,
)
CLIPPED = table_spec("SGD", group(lr=0.5), shapes=SHAPES, clip_grad_norm=1.0)


def of_ranks(spec: TableSpec, worker: int, size: int, step: int) -> list[list[torch.Tensor]]:
    return [draw(spec, 1000 * worker + 100 * step + rank) for rank in range(size)]


def mean(ranks: Sequence[list[torch.Tensor]]) -> list[torch.Tensor]:
    return [rank_mean(parts, torch.empty_like(parts[0])) for parts in zip(*ranks, strict=True)]


def frames(servers: Servers, step: int, worker: int, ranks: Sequence[Any], **push: Any) -> list[wire.Frame]:
    """Frames of a push whose terms are these gradients."""
    every = [servers.frames(step, Push(worker=worker, gradients=it, **push)) for it in ranks]
    if len(every) == 1:
        return every[0]
    return [
        parts[0].but(payload=b"", terms=tuple(memoryview(it.payload) for it in parts))
        for parts in zip(*every, strict=True)
    ]


def give(servers: Servers, sent: Sequence[wire.Frame]) -> None:
    for frame in sent:
        shard = servers.shards[servers.plan.partition(frame.partition).shard]
        shard.receive(frame, servers.outlets[frame.worker], member=True)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (2.0, 1.0)])
@pytest.mark.parametrize("sizes", [(3,), (3, 3), (2, 3), (1, 2)])
@pytest.mark.parametrize(("spec", "doubled"), [(PLAIN, True), (PLAIN, False), (ADAM, True), (CLIPPED, True)])
def test_a_step_is_that_of_the_mean_of_workers_means_in_rank_order_to_the_bit(
    spec: TableSpec,
    doubled: bool,
    sizes: tuple[int, ...],
    weights: tuple[float, ...],
    compiled: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not compiled:
        monkeypatch.setattr(kernels, "KERNELS", None)
    start, hyper = draw(spec, 1), spec.optimizer.hyperparameters
    servers, local = Servers(spec, start, num_workers=len(sizes)), Local(spec, start)
    for shard in servers.shards if doubled else ():
        shard.halves()
    for step in range(2):
        ranks = [of_ranks(spec, worker, size, step) for worker, size in enumerate(sizes)]
        for worker, of in enumerate(ranks):
            give(servers, frames(servers, step, worker, of, weight=weights[worker]))
        pushes = [Push(worker=it, gradients=mean(of), weight=weights[it]) for it, of in enumerate(ranks)]
        local.step(pushes, hyper)
        pulled = servers.pull(0, step + 1)
        assert pulled is not None
        if spec.clip_grad_norm is None:
            assert same(pulled, local.weights)
        for one, other in zip(pulled, local.weights, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_what_counts_of_an_evicted_group_is_read_of_no_rank_any_more() -> None:
    spec = table_spec("SGD", group(lr=1.0), shapes=((16,),))
    start = draw(spec, 1)
    servers, local = Servers(spec, start, num_workers=2), Local(spec, start)
    ranks = of_ranks(spec, 1, 3, 0)
    (frame,) = frames(servers, 0, 1, ranks)
    memories = [bytearray(it) for it in frame.terms]
    terms = tuple(map(memoryview, memories))
    give(servers, [frame.but(flags=wire.SHARED, terms=terms)])

    servers.shards[0].fence(1, 1)
    servers.shards[0].evict(1, 1, 1, 1)
    for memory in memories:
        memory[:] = bytes(len(memory))
    zeros = Push(worker=0, gradients=[torch.zeros(16)])
    servers.step(0, [zeros], spec.optimizer.hyperparameters)

    local.step([zeros, Push(worker=1, gradients=mean(ranks))], spec.optimizer.hyperparameters)
    assert same(servers.pull(0, 1), local.weights)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_on_one_rank_is_not_applied_and_its_worker_hears_of_it(value: float) -> None:
    spec = table_spec("SGD", group(lr=1.0), shapes=((16,),))
    start = draw(spec, 1)
    servers, local = Servers(spec, start, num_workers=2), Local(spec, start)
    servers.shards[0].halves()
    bad, good = of_ranks(spec, 0, 2, 0), of_ranks(spec, 1, 2, 0)
    bad[1][0][3] = value

    give(servers, frames(servers, 0, 0, bad) + frames(servers, 0, 1, good))

    local.step([Push(worker=1, gradients=mean(good))], spec.optimizer.hyperparameters)
    assert same(servers.pull(1, 1), local.weights)
    servers.ask(0, 1)
    (refusal,) = [it for it in servers.outlets[0].take() if it.kind is wire.Kind.REFUSE]
    said = refused_from_proto(parse_message(coordinator_pb2.Refused, bytes(refusal.meta)))
    assert isinstance(said, NonFiniteGradient)


def test_what_nobody_else_can_read_is_made_whole_and_stays_as_it_is() -> None:
    terms = [torch.randn(100, generator=torch.Generator().manual_seed(it)) for it in range(3)]
    memories = tuple(memoryview(it.numpy()).cast("B") for it in terms)
    frame = wire.Frame(kind=wire.Kind.PUSH, terms=memories)

    made = [whole(frame) for _ in range(2)]

    assert frame.nbytes == 400
    for one in made:
        values = torch.frombuffer(bytearray(one.payload), dtype=torch.float32)
        assert torch.equal(values, ((terms[0] + terms[1]) + terms[2]) / 3)
        assert (one.terms, one.nbytes) == ((), 400)
    with pytest.raises(AssertionError, match="made whole"):
        wire.encode(frame)
    plain = wire.Frame(kind=wire.Kind.PUSH, payload=b"1234")
    assert whole(plain) is plain
