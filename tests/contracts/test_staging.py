"""What copies between parameters and flat memory owe (`staging.py`), on host and accelerators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ps_worker.memory.staging import (
    HostLane,
    HostStaging,
    Lane,
    Staging,
    Stagings,
    StreamLane,
    StreamStaging,
)
from tests.lazy_device import LazyDevice

SIZE = 1 << 16


class Bench:
    """A staging, tensors of its device, and work that is queued there."""

    def __init__(
        self, staging: Staging, device: str, run: Callable[[Callable[[], Any]], None], lane: Lane
    ) -> None:
        self.staging = staging
        self.lane = lane
        self.device = device
        self.run = run

    def full(self, value: float) -> torch.Tensor:
        return torch.full((SIZE,), value, device=self.device)


def on_host() -> Bench:
    return Bench(HostStaging(), "cpu", lambda work: work(), HostLane())


def on_lazy() -> Bench:
    device = LazyDevice()
    cpu = torch.device("cpu")
    return Bench(StreamStaging(device, cpu), "cpu", device.run, StreamLane(device, cpu))


def on_cuda() -> Bench:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    stagings, device = Stagings([]), torch.device("cuda")

    def run(work: Callable[[], Any]) -> None:
        torch.cuda._sleep(20_000_000)  # some 10 ms, in which whoever does not wait for it goes wrong
        work()

    return Bench(stagings.of(device), "cuda", run, stagings.lane(device))


@pytest.fixture(
    params=[on_host, on_lazy, pytest.param(on_cuda, marks=pytest.mark.gpu)], ids=lambda made: made.__name__
)
def bench(request: Any) -> Bench:
    return request.param()


def host(value: float) -> torch.Tensor:
    return torch.full((SIZE,), value)


def test_gradients_come_out_as_what_was_queued_before_has_made_them(bench: Bench):
    gradient, flat = bench.full(0.0), host(0.0)
    bench.run(lambda: gradient.fill_(3.0))
    bench.staging.out([flat], [gradient]).synchronize()
    assert (flat == 3.0).all()


def test_a_ticket_is_of_its_own_copy_only(bench: Bench):
    """What is queued after it is not waited for."""
    flats = [host(0.0), host(0.0)]
    first = bench.staging.out([flats[0]], [bench.full(1.0)])
    second = bench.staging.out([flats[1]], [bench.full(2.0)])
    first.synchronize()
    assert (flats[0] == 1.0).all()
    second.synchronize()
    assert second.query()
    assert (flats[1] == 2.0).all()


def test_what_is_queued_later_sees_the_new_weights_and_what_was_before_the_old_ones(bench: Bench):
    parameter, seen = bench.full(1.0), [bench.full(0.0), bench.full(0.0)]
    bench.run(lambda: seen[0].copy_(parameter))
    bench.staging.reads_end()
    bench.staging.into([parameter], [host(2.0)])
    bench.run(lambda: seen[1].copy_(parameter))
    flats = [host(0.0), host(0.0)]
    bench.staging.out(flats, seen).synchronize()
    assert (flats[0] == 1.0).all()
    assert (flats[1] == 2.0).all()


def test_flat_weights_may_be_written_again_after_the_wait(bench: Bench):
    parameter, flat, got = bench.full(1.0), host(2.0), host(0.0)
    bench.staging.into([parameter], [flat])
    bench.staging.wait_into()
    flat.fill_(9.0)
    bench.staging.out([got], [parameter]).synchronize()
    assert (got == 2.0).all()


def test_work_in_a_lane_begins_after_its_mark_and_is_done_at_its_end(bench: Bench):
    gradient, flat = bench.full(0.0), host(0.0)
    bench.run(lambda: gradient.fill_(3.0))
    mark = bench.lane.mark()
    with bench.lane.after(mark):
        torch._foreach_copy_([flat], [gradient], non_blocking=True)
    assert (flat == 3.0).all()


def test_a_copy_changes_the_dtype(bench: Bench):
    parameter, got = bench.full(1.0).bfloat16(), host(0.0)
    bench.staging.into([parameter], [host(2.5)])
    bench.staging.out([got], [parameter]).synchronize()
    assert (got == 2.5).all()


def test_nothing_is_copied_before_its_time_on_a_device_that_lags():
    """Else the tests above could not fail there."""
    bench = on_lazy()
    flat, parameter = host(0.0), bench.full(1.0)
    ticket = bench.staging.out([flat], [bench.full(3.0)])
    other = host(0.0)
    with bench.lane.after(bench.lane.mark()):
        torch._foreach_copy_([other], [bench.full(4.0)])
        assert not other.any()
    bench.staging.into([parameter], [host(2.0)])
    assert not ticket.query()
    assert not flat.any()
    assert (parameter == 1.0).all()
