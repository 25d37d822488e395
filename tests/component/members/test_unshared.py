"""Where nothing can be shared, or descriptors run out, payloads travel over the same socket."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from typing import Any

import pytest
import torch

import ps_worker as ps
from ps_wire.errors import ConfigurationRefused
from ps_wire.sockets import shared_memory
from ps_wire.sockets.shared_memory import AVAILABLE
from ps_worker.memory.os_memory import OverlaidMemory
from tests.component.mapped import SMALL, Wide, mapped, script, sgd
from tests.component.reference import assert_same, seeded
from tests.component.service import Cluster, run_workers
from tests.inside import link_of
from tests.until import LIMIT_S

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="memfd_create is Linux's")


def none_left(*_: Any) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def without_descriptors(connected: socket.socket, buffers: list[bytes], _descriptors: Any) -> int:
    """What a peer whose table of descriptors is full gets."""
    return connected.sendmsg(buffers)


def train(worker: ps.Worker) -> torch.Tensor:
    """Three steps of a table; the weights are then the sum of what all have pushed."""
    table = worker.table({"w": torch.zeros(3000)}, optimizer=ps.SGD(lr=1.0))
    for step in range(3):
        table.push({"w": torch.full((3000,), -1.0 - worker.rank)}).result(LIMIT_S)
        assert table.pull().result(LIMIT_S).version >= step + 1
    worker.finish()
    values: torch.Tensor = table.pull().result(LIMIT_S).values["w"]
    return values


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_a_worker_that_can_make_no_memory_to_share_copies(
    cluster: Cluster, consistency: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so, once for each table."""
    monkeypatch.setattr(os, "memfd_create", none_left)
    with caplog.at_level("INFO", "ps_worker"):
        for values in run_workers(cluster, train, num_workers=2, consistency=consistency):
            assert (values == (4.5 if consistency == "bsp" else 9.0)).all()
    assert caplog.text.count("table 0 shares no memory (Too many open files): its payloads travel") == 2
    assert "data goes over shm" in caplog.text


def test_a_worker_that_was_told_to_share_memory_and_cannot_is_refused_by_name(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "memfd_create", none_left)
    with pytest.raises(ConfigurationRefused, match="Too many open files"):
        run_workers(cluster, train, carrier="shm")


@pytest.mark.parametrize("consistency", ["bsp", "asp"])
def test_a_shard_that_has_no_descriptors_left_gets_payloads(
    cluster: Cluster, consistency: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was under way comes again over the next connection, and is applied once."""
    monkeypatch.setattr(socket, "send_fds", without_descriptors)
    with caplog.at_level("ERROR", "ps_server"):
        for values in run_workers(cluster, train, num_workers=2, consistency=consistency):
            assert (values == (4.5 if consistency == "bsp" else 9.0)).all()
    assert "descriptors of its shared memory were lost" in caplog.text


def train_model(worker: ps.Worker) -> None:
    """Three steps of a model large enough to be mapped; the weights must be those of plain torch."""
    model, twin = seeded(Wide), seeded(Wide)
    optimizer = worker.wrap(sgd(model), model, buckets=SMALL)
    script(0, model, optimizer)
    worker.finish()
    script(0, twin, sgd(twin, fused=True))
    assert_same(model, twin)


@pytest.mark.parametrize("lost", [1, 2], ids=["of its gradients", "of the shard's halves"])
def test_a_worker_that_would_map_weights_and_cannot_copies_them(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lost: int
) -> None:
    send_fds = socket.send_fds

    def lossy(connected: socket.socket, buffers: list[bytes], descriptors: Any) -> int:
        send = without_descriptors if len(descriptors) == lost else send_fds
        return send(connected, buffers, descriptors)

    monkeypatch.setattr(socket, "send_fds", lossy)
    with caplog.at_level("WARNING", "ps_worker"):
        run_workers(cluster, train_model)
    assert "the weights of table 0" in caplog.text
    assert "they are copied" in caplog.text


def test_a_worker_whose_system_maps_no_more_copies_weights(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The limit of mappings (vm.max_map_count) is reached in the middle of laying."""
    laid, lay = [], OverlaidMemory.lay

    def some(memory: OverlaidMemory, descriptor: int, **where: int) -> None:
        laid.append(where)
        lay(memory, -1 if len(laid) % 3 == 0 else descriptor, **where)

    monkeypatch.setattr(OverlaidMemory, "lay", some)
    with caplog.at_level("WARNING", "ps_worker"):
        run_workers(cluster, train_model)
    assert "cannot be mapped" in caplog.text


def test_a_shard_that_can_make_no_memory_to_be_mapped_sends_weights(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memfd_create = os.memfd_create

    def for_workers(*options: Any) -> int:
        return none_left() if threading.current_thread().name == "ps-data" else memfd_create(*options)

    monkeypatch.setattr(os, "memfd_create", for_workers)
    with caplog.at_level("WARNING"):
        run_workers(cluster, train_model)
    assert "no memory for halves of its weights (Too many open files)" in caplog.text
    assert "are not shared by a shard" in caplog.text


def test_where_memory_cannot_be_sealed_against_writers_weights_are_copied_over_shm(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Linux before 5.1."""
    monkeypatch.setattr(shared_memory, "_NO_LATER_WRITER", 0x1000)  # a seal that no kernel knows
    with caplog.at_level("INFO"):
        run_workers(cluster, train_model)
    assert "data goes over shm" in caplog.text
    assert "Invalid argument" not in caplog.text


def no_memory(_address: int, _nbytes: int) -> None:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def comes_as_payload(worker: ps.Worker) -> None:
    """From the third step on, as where a shard no more maps what this worker shares."""
    model, twin = seeded(Wide), seeded(Wide)
    optimizer = worker.wrap(sgd(model), model, buckets=SMALL, overlap=False)
    exchange = mapped(optimizer)
    steps = []

    def cut(*_: Any) -> None:
        steps.append(0)
        if len(steps) == 3:
            exchange.memory.withhold_descriptors()
            for connection in link_of(worker).presence.connections:
                connection._call.cancel()

    model.register_forward_hook(cut)
    script(0, model, optimizer)
    worker.finish()
    script(0, twin, sgd(twin, fused=True))
    assert_same(model, twin)


def test_weights_that_come_another_way_than_before_are_the_same(cluster: Cluster) -> None:
    run_workers(cluster, comes_as_payload)


def test_memory_that_cannot_become_private_ends_the_worker_by_name(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OverlaidMemory, "_own", staticmethod(no_memory))
    with pytest.raises(ConfigurationRefused, match=r"cannot be kept.*Cannot allocate memory"):
        run_workers(cluster, comes_as_payload)


@pytest.mark.parametrize("end", ["finish", "leave"])
def test_a_worker_that_cannot_keep_its_weights_leaves_all_the_same_and_says_so(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """What shards write from then on shows in the model."""

    def body(worker: ps.Worker) -> None:
        model = seeded(Wide)
        optimizer = worker.wrap(sgd(model), model, buckets=SMALL)
        assert mapped(optimizer)
        if worker.rank == 0:
            with monkeypatch.context() as patch:
                patch.setattr(OverlaidMemory, "_own", staticmethod(no_memory))
                with pytest.raises(ConfigurationRefused, match="table 0: its weights cannot be kept"):
                    getattr(worker, end)()
                with contextlib.suppress(ConfigurationRefused):
                    worker.leave()
            gone.set()
        else:
            assert gone.wait(LIMIT_S)
            script(1, model, optimizer)  # nobody waits for it

    gone = threading.Event()
    run_workers(cluster, body, num_workers=2)
