"""A script that trains beside the servers is told so; one that trains on them, or only looks, is not."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import ps_worker as ps
from ps_wire.errors import ServerUnreachable
from ps_worker import steps
from ps_worker.transport.server_check import check_servers
from tests.component.service import fresh_name, together
from tests.inside import link_of
from tests.until import LIMIT_S, until


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "WARNING" in text]


@pytest.mark.parametrize("batches", [3, 100])
@pytest.mark.parametrize("finishes", [True, False])
@pytest.mark.parametrize("wraps", [True, False])
def test_a_script_that_trains_beside_the_servers_is_told_so_once(
    one_shard: Any, caplog: pytest.LogCaptureFixture, batches: int, finishes: bool, wraps: bool
):
    """It has forgotten `wrap`, or what `wrap` gives."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said_at = 0
    with (
        caplog.at_level("INFO", "ps_worker"),
        ps.connect(servers=one_shard.servers, job=fresh_name()) as worker,
    ):
        if wraps:
            worker.wrap(optimizer, model)
        for number, _ in enumerate(worker.loader(range(batches), batch_size=1)):
            said_at = said_at or (number if warned(caplog) else 0)
        if finishes:
            worker.finish()
    (text,) = warned(caplog)
    assert ("no step on the servers" if wraps else "optimizer = worker.wrap(optimizer, model) first") in text
    assert said_at == (steps.MANY_BATCHES if batches == 100 and not wraps else 0)


def test_the_end_of_a_job_without_a_table_is_not_said_to_be_a_broken_connection(
    one_shard: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """The shard forgets a job that has nothing there, and ends its stream."""
    ended = threading.Event()
    with (
        caplog.at_level("INFO", "ps_worker"),
        ps.connect(servers=one_shard.servers, job=fresh_name()) as worker,
    ):
        (connection,) = link_of(worker).presence.connections
        say = connection._say_broken

        def says() -> None:
            say()
            ended.set()

        monkeypatch.setattr(connection, "_say_broken", says)
        until(lambda: connection._outbox is not None, "it is connected")
        worker.finish()
        assert ended.wait(LIMIT_S)
    assert not any("broke" in text for text in caplog.messages)


def test_a_script_that_makes_a_step_or_has_no_data_is_not_warned(
    one_shard: Any, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level("INFO", "ps_worker"):
        with ps.connect(servers=one_shard.servers, job=fresh_name()) as worker:
            model = torch.nn.Linear(1, 1)
            optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
            for x in worker.loader(torch.ones(30, 1), batch_size=1):
                model(x).sum().backward()
                optimizer.step()
            worker.finish()
        with ps.connect(servers=one_shard.servers, job=fresh_name()):
            pass
    assert warned(caplog) == []


@pytest.mark.parametrize(
    ("count", "deals", "says"), [(2, False, 1), (2, True, 0), (1, False, 0)], ids=["own", "dealt", "alone"]
)
def test_who_trains_beside_others_on_data_that_is_not_dealt_is_told_so_once(
    one_shard: Any, caplog: pytest.LogCaptureFixture, count: int, deals: bool, says: int
):
    """It may read a part of its own, so it is no warning."""
    job = fresh_name()

    def body(rank: int) -> None:
        model = torch.nn.Linear(1, 1)
        with ps.connect(servers=one_shard.servers, job=job, num_workers=count, worker=rank) as worker:
            optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
            given = torch.ones(8, 1)
            data = worker.loader(given, batch_size=2) if deals else DataLoader(given, batch_size=2)
            for x in data:
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
            worker.finish()

    with caplog.at_level("INFO", "ps_worker"):
        together([lambda rank=rank: body(rank) for rank in range(count)], LIMIT_S)
    assert [text[:9] for text in caplog.messages if "worker.shard(loader) deals it" in text] == [
        "worker 0:"
    ] * says
    assert warned(caplog) == []


class Down:
    """A service whose one server does not answer."""

    addresses = ("a:1",)

    def __init__(self, heard: list[str]) -> None:
        self._heard = heard

    def shard(self, _: int) -> Any:
        return self

    def Describe(self, _: Any, *, timeout: float, wait_for_ready: bool = False) -> Any:  # noqa: N802
        assert timeout > 0
        self._heard.append("waits" if wait_for_ready else "asks")
        raise ServerUnreachable("a:1 does not answer", address="a:1")


def test_who_waits_for_a_server_at_the_start_says_so_before_it_waits():
    heard: list[str] = []
    with pytest.raises(ServerUnreachable, match="within 30 s"):
        check_servers(Down(heard), 30.0, heard.append)
    assert [heard[0], heard[2]] == ["asks", "waits"]
    assert "a:1 does not answer yet" in heard[1]
