"""Law 15: a job that is restored from a snapshot goes on to the bit as if nothing had been."""

import random
import threading

import numpy as np
import pytest
import torch

import ps_worker as ps
from ps_server.shard.state.snapshot_writer import Saving
from ps_wire.snapshot.store import SnapshotStore
from tests.component.law_15 import STEPS, WAIT_S, Training, continues, start, take
from tests.component.service import Cluster, fresh_name, run_workers
from tests.inside import link_of
from tests.until import until


@pytest.mark.parametrize(
    ("consistency", "optimizer", "before", "after"),
    [
        ("bsp", "momentum", 2, 2),
        ("bsp", "adam", 2, 3),
        ("bsp", "momentum", 2, 1),
        ("ssp:1", "adam", 1, 2),
        ("ssp:1", "momentum", 2, 2),
        ("asp", "adam", 2, 1),
    ],
)
def test_law_15_a_restored_job_continues_bit_exact(
    loop_thread, tmp_path, consistency, optimizer, before, after
):
    cluster = start(loop_thread, before, tmp_path)
    job = fresh_name()
    straight = Training(job, consistency, optimizer)
    try:
        counts = straight.run(cluster, STEPS, snapshot_at=2)
    finally:
        cluster.close()
    cluster = start(loop_thread, after, tmp_path)
    restored = Training(job, consistency, optimizer)
    try:
        restored.run(cluster, min(counts))
    finally:
        cluster.close()
    continues(straight, restored, min(counts))


@pytest.mark.parametrize(
    ("consistency", "optimizer", "carrier"),
    [("bsp", "adam", "auto"), ("bsp", "momentum", "tcp"), ("ssp:1", "adam", "auto"), ("asp", "adam", "auto")],
)
def test_law_15_holds_for_a_snapshot_that_is_written_when_training_has_gone_on(
    loop_thread, tmp_path, monkeypatch, consistency, optimizer, carrier
):
    """It holds what was there at the cut, not what steps have made of it by the time that it is written."""
    monkeypatch.setenv("PS_CARRIER", carrier)
    job, steps = fresh_name(), STEPS + 6
    straight = Training(job, consistency, optimizer)
    write = Saving._write

    def late(saving: Saving) -> None:
        cut = max(clock for _, clock in next(iter(saving._tables.values())).cells()[0].machine.clocks)
        until(lambda: all((rank, cut + 4) in straight.seen for rank in (0, 1)))
        write(saving)

    monkeypatch.setattr(Saving, "_write", late)
    cluster = start(loop_thread, 2, tmp_path)
    try:
        counts = straight.run(cluster, steps, snapshot_at=2)
    finally:
        cluster.close()
    monkeypatch.undo()
    store = SnapshotStore(str(tmp_path / "snapshots"))
    manifest = store.verify(job, store.names(job)[0])
    counters = manifest.counters[0]
    assert counters["unequal"] == 0
    assert counters["applied"] == counters["partitions"] * sum(manifest.clocks[0].values())
    cluster = start(loop_thread, 2, tmp_path)
    restored = Training(job, consistency, optimizer)
    try:
        restored.run(cluster, min(counts))
    finally:
        cluster.close()
    continues(straight, restored, min(counts))


class Noisy(torch.utils.data.Dataset):
    """Samples with noise from the generators that nobody names."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return (
            torch.full((40,), float(index)) / 24 + 0.1 * torch.rand(40) + random.random() * np.random.rand()
        )


def test_law_15_a_script_goes_on_in_the_middle_of_an_epoch_with_the_numbers_it_would_have_drawn(
    loop_thread, tmp_path
):
    job = fresh_name()
    epochs, per_epoch, cut_after = 3, 6, 8
    seen: list[dict[int, list[torch.Tensor]]] = []
    positions: list[list[tuple[int, int]]] = []
    taken = threading.Event()

    def train(worker: ps.Worker, cluster: Cluster, *, snapshot: bool) -> None:
        torch.manual_seed(5)
        random.seed(6)
        np.random.seed(7)
        seen.append({})
        positions.append([])
        net = torch.nn.Sequential(torch.nn.Linear(40, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        optimizer = worker.wrap(torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9), net)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
        worker.register_state("scheduler", scheduler)
        own = torch.Generator().manual_seed(8)
        worker.register_state("own", own)
        loader = worker.loader(Noisy(), batch_size=24 // per_epoch)
        taking = None
        for epoch in worker.epochs(epochs):
            for batch in loader:
                step = optimizer.step_number
                positions[-1].append((epoch, step))
                noise = torch.rand(1, generator=own)
                loss = net(batch + noise).square().mean()
                optimizer.zero_grad()
                loss.backward()
                seen[-1][step] = [
                    loss.detach(),
                    batch,
                    noise,
                    *[p.detach().clone() for p in net.parameters()],
                ]
                if snapshot and step == cut_after:
                    taking = threading.Thread(target=take, args=(cluster, job, taken))
                    taking.start()
                    assert prepared(worker)
                optimizer.step()
            scheduler.step()
        if taking is not None:
            assert taken.wait(WAIT_S)

    for snapshot in (True, False):
        cluster = start(loop_thread, 1, tmp_path)
        try:
            run_workers(cluster, lambda w: train(w, cluster, snapshot=snapshot), job=job)  # noqa: B023
        finally:
            cluster.close()
    first, second = positions
    assert first == [(step // per_epoch, step) for step in range(epochs * per_epoch)]
    assert second == first[cut_after + 1 :]
    for step, tensors in seen[1].items():
        for place, (ours, theirs) in enumerate(zip(tensors, seen[0][step], strict=True)):
            assert torch.equal(ours, theirs), (step, place)


def prepared(worker: ps.Worker) -> bool:
    """Waits until the worker was asked where it can be cut."""
    capture = link_of(worker).promise
    with capture._changed:
        return capture._changed.wait_for(lambda: capture._number is not None, WAIT_S)
