"""Ranks that meet, where the coordinator is one of the test's own."""

from __future__ import annotations

from typing import Any

import pytest

from ps_lab.cluster.ports import free_ports
from ps_wire.errors import StartLimitExceeded, UsageError
from ps_wire.process.ranks import Ranks
from ps_wire.v1 import coordinator_pb2 as pb
from ps_worker.group import rendezvous
from ps_worker.group.rendezvous import Rendezvous
from tests.unit.ps_worker.mute import mute, patient
from tests.until import LIMIT_S


class Apart:
    """A coordinator of two ranks on two hosts; rank 0 is reached at what it has said."""

    def Meet(self, request: Any, timeout: float) -> pb.MeetReply:  # noqa: N802 - the call's name
        return pb.MeetReply(complete=True, hosts=["one", "two"], machines=["1", "2"], address=request.address)


def meet(towards: str, refused: str) -> None:
    coordinator: Any = Apart()
    Rendezvous(
        coordinator,
        Ranks(rank=0, size=2),
        job="j",
        worker=0,
        limit_s=1.0,
        say=lambda _: None,
        towards=towards,
        refused=refused,
    ).meet()


def test_where_ranks_may_not_be_on_several_hosts_they_are_named_with_the_reason() -> None:
    with pytest.raises(UsageError, match=r"\(rank 0 on one, rank 1 on two\): nothing leaves a host"):
        meet("192.0.2.1:5001", "nothing leaves a host")


@pytest.mark.parametrize("towards", ["127.0.0.1:5001", "[::1]:5001", ""])
def test_who_leads_ranks_on_several_hosts_is_reached_by_an_ipv4_address_that_is_not_loopback(
    towards: str,
) -> None:
    with pytest.raises(UsageError, match="name the servers there, too, by IPv4 addresses"):
        meet(towards, "")


def meet_as_second(address: str) -> None:
    """Rank 1; the other one has come, and has said that its store is there."""

    class Met:
        def Meet(self, request: Any, timeout: float) -> pb.MeetReply:  # noqa: N802 - the call's name
            return pb.MeetReply(complete=True, hosts=["a", "a"], machines=["1", "1"], address=address)

    coordinator: Any = Met()
    Rendezvous(coordinator, Ranks(rank=1, size=2), job="j", worker=3, limit_s=1.0, say=lambda _: None).meet()


def test_a_rank_0_that_has_come_and_says_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped: its kernel takes connections. torch would wait without end."""
    monkeypatch.setattr(rendezvous, "STORE_LIMIT_S", 0.1)
    monkeypatch.setattr(rendezvous, "STORE_GRACE_S", 0.1)
    monkeypatch.setattr(rendezvous, "TCPStore", patient)
    with (
        mute() as address,
        pytest.raises(
            StartLimitExceeded, match=f"rank 0 of worker 3 has come, and its store at {address} takes"
        ),
    ):
        meet_as_second(address)


def test_a_rank_0_that_has_come_and_is_not_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has ended, or its packets vanish: torch gives up, and says it in words of its own."""
    monkeypatch.setattr(rendezvous, "STORE_LIMIT_S", 0.1)
    monkeypatch.setattr(rendezvous, "STORE_GRACE_S", LIMIT_S)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(
        StartLimitExceeded, match=f"its store at {address} is not reached within 0.1 s: .*timed out"
    ):
        meet_as_second(address)
