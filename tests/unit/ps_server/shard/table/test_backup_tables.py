"""Backup workers on real shard tables: laws 1, 3, 12 and 13 against the sets that were chosen, to the bit.

Workers run at speeds of their own, frame by frame, in an order drawn from a seed. What the servers leave must
be what one process leaves that averages, in each step, the gradients of the workers chosen for it.
"""

from __future__ import annotations

import pytest
import torch

from ps_wire.frames import frame as wire
from ps_wire.spec.consistency import BSP
from tests.unit.ps_server.shard.table.backup_walk import SHAPES, Walk, sgd, spec_hyper
from tests.unit.ps_server.tables import Push, Servers, draw, group, same, table_spec


@pytest.mark.parametrize(
    ("num_shards", "num_workers", "backup", "seed"),
    [(1, 3, 1, 1), (2, 3, 1, 2), (2, 4, 2, 3), (3, 3, 1, 4), (2, 2, 5, 5), (1, 4, 1, 6)],
)
def test_laws_1_12_and_13_each_step_is_the_mean_of_its_chosen_workers(num_shards, num_workers, backup, seed):
    """Whoever is slow, repeats itself or loses answers; whatever was pulled is one version, kept or new."""
    walk = Walk(sgd(), num_shards=num_shards, num_workers=num_workers, backup=backup, seed=seed)
    walk.run(6)
    walk.check()
    sizes = {len(workers) for workers in walk.servers.chosen.values()}
    assert max(1, num_workers - backup) in sizes
    assert sum(shard.ledger(w).dropped for shard in walk.servers.shards for w in range(num_workers)) > 0


def test_clipped_steps_are_clipped_over_their_chosen_workers():
    """The norm is that of the mean of those; adam, which remembers every step."""
    spec = table_spec("Adam", group(lr=0.1), shapes=SHAPES, clip_grad_norm=0.5)
    for shards in (1, 2):
        walk = Walk(spec, num_shards=shards, num_workers=3, backup=1, seed=7)
        walk.run(4)
        versions = walk.replay()
        for version, weights in walk.seen:
            for ours, theirs in zip(weights, versions[version], strict=True):
                torch.testing.assert_close(ours, theirs)


def test_a_non_finite_gradient_that_was_chosen_is_left_out_and_one_that_was_dropped_is_no_error():
    """Only what a step takes is looked at."""
    spec = sgd()
    servers = Servers(spec, draw(spec, 0), num_shards=2, num_workers=3, consistency=BSP(1))
    bad = [torch.full(item.shape, float("nan")) for item in spec.parameters]
    good = draw(spec, 1)
    servers.step(0, [Push(worker=0, gradients=good), Push(worker=1, gradients=good)], spec_hyper(spec))
    servers.step(0, [Push(worker=2, gradients=bad)], spec_hyper(spec))
    for worker in range(3):
        assert servers.pull(worker, 1) is not None, worker
    servers.step(1, [Push(worker=1, gradients=bad), Push(worker=2, gradients=good)], spec_hyper(spec))
    assert servers.pull(2, 2) is not None
    servers.ask(1, 2)
    kinds = {frame.kind for frame in servers.outlets[1].take()}
    assert wire.Kind.REFUSE in kinds
    assert wire.Kind.PULLED not in kinds


def test_law_3_the_bytes_depend_on_the_sets_alone():
    """The same workers chosen at every step, in other orders of arrival."""
    outcomes = []
    for order in (1, 2):
        spec = sgd()
        servers = Servers(spec, draw(spec, 0), num_shards=2, num_workers=3, consistency=BSP(1), seed=order)
        for step in range(3):
            late = step % 3
            first = [Push(worker=w, gradients=draw(spec, 10 * step + w)) for w in range(3) if w != late]
            servers.step(step, first, spec_hyper(spec))
            servers.step(step, [Push(worker=late, gradients=draw(spec, 99))], spec_hyper(spec))
            for worker in range(3):
                assert servers.pull(worker, step + 1) is not None
        assert [sorted(servers.chosen[step]) for step in range(3)] == [[1, 2], [0, 2], [0, 1]]
        outcomes.append(servers.pull(0, 0, read=True))
    assert same(*outcomes)


def test_the_weights_that_a_late_worker_works_on_are_kept_until_it_has_pushed():
    """It may ask again, for its connection may break, and gets the version that it had."""
    spec = sgd()
    servers = Servers(spec, draw(spec, 0), num_shards=2, num_workers=3, consistency=BSP(1))
    start = servers.pull(2, 0)
    for step in range(3):
        pushes = [Push(worker=w, gradients=draw(spec, 10 * step + w)) for w in (0, 1)]
        servers.step(step, pushes, spec_hyper(spec))
    assert same(servers.pull(2, 0), start)
    kept = sum(cell.values.kept_bytes for shard in servers.shards for cell in shard.cells())
    assert kept == sum(cell.values.now.nbytes for shard in servers.shards for cell in shard.cells())
    servers.step(0, [Push(worker=2, gradients=draw(spec, 2))], spec_hyper(spec))
    caught_up = servers.pull(2, 1)
    assert same(caught_up, servers.pull(0, 3))
    assert [(caught.late.worker, caught.late.clock, caught.step) for caught in servers.caught] == [(2, 1, 3)]
    servers.step(3, [Push(worker=0, gradients=None), Push(worker=1, gradients=None)], spec_hyper(spec))
    assert same(servers.pull(2, 1), caught_up)  # asked as before
    ledger = servers.shards[0].ledger(2)
    cells = len(servers.shards[0].cells())
    assert (ledger.received, ledger.dropped, ledger.missed) == (cells, cells, 2 * cells)
