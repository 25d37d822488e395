"""Ranks without servers wait for each other's, and each error says which rank is concerned."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace

import pytest
from torch.distributed import PrefixStore, Store

from ps_lab.cluster.ports import free_ports
from ps_wire.errors import ConfigurationRefused, JobUnknown, StartLimitExceeded, UsageError
from ps_wire.process.ranks import Ranks
from ps_worker import settings
from ps_worker.group.rendezvous import machine
from ps_worker.job import own_servers
from ps_worker.job.own_servers import OwnServers
from ps_worker.settings import STORE
from tests.unit.ps_worker.mute import mute, patient
from tests.until import LIMIT_S

SECOND = {"PS_SERVERS": "none", "PS_GROUP_SIZE": "2", "PS_GROUP_RANK": "1"}


@pytest.fixture(name="store")
def _store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """Of the launcher, with what rank 0 has said in it."""
    listening, address = own_servers.listen()
    monkeypatch.setenv(STORE, address)
    monkeypatch.setattr(own_servers, "_rounds", itertools.count())
    return PrefixStore("ps-servers/0", own_servers.keep_store(listening))


def second(**given: object) -> OwnServers:
    chosen = settings.read(SECOND, **given)
    assert chosen.ranks == Ranks(rank=1, size=2)
    return OwnServers(chosen, lambda _: None)


def meet_at(launcher: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """This rank was started by that launcher, which has said where all of them meet."""
    host, _, port = address.partition(":")
    places = {"MASTER_ADDR": host, "MASTER_PORT": port} if launcher == "torchrun" else {STORE: address}
    for name in (STORE, "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in places.items():
        monkeypatch.setenv(name, value)


def test_ranks_on_several_hosts_are_refused(store: Store) -> None:
    store.set("server/0", json.dumps({"machine": "another", "address": "127.0.0.1:1"}))

    with pytest.raises(UsageError, match="rank 0 and rank 1 are on several hosts"):
        second()


def test_a_server_that_cannot_start_is_told_to_all_ranks(store: Store) -> None:
    store.set("server/0", json.dumps({"machine": machine(), "error": "no port is left"}))

    with pytest.raises(ConfigurationRefused, match="rank 0 could not start its server: no port is left"):
        second()


def test_a_rank_that_does_not_come_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store itself, to which the limit applies as well, is there, but may take its time."""
    monkeypatch.setattr(own_servers, "TCPStore", patient)
    monkeypatch.setattr(own_servers, "STORE_GRACE_S", LIMIT_S)
    with pytest.raises(StartLimitExceeded, match=r"rank 0 of 2 did not start its server within 0\.1 s"):
        second(start_limit=0.1)


@pytest.mark.parametrize("launcher", ["ps-worker", "torchrun"])
def test_who_takes_connections_where_ranks_meet_and_says_nothing_is_named(
    launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch would wait without end, and hear no Ctrl-C. Its own limit does not come first here."""
    connect = own_servers._connect
    monkeypatch.setattr(own_servers, "_connect", lambda it: connect(replace(it, start_limit_s=LIMIT_S)))
    monkeypatch.setattr(own_servers, "STORE_GRACE_S", 0.1)
    with mute() as address:
        meet_at(launcher, address, monkeypatch)

        with pytest.raises(
            StartLimitExceeded, match=rf"at {re.escape(address)}, .* nothing is said for 0\.1 s"
        ):
            second(start_limit=0.1)


@pytest.mark.parametrize("launcher", ["ps-worker", "torchrun"])
def test_where_nobody_listens_where_ranks_meet_the_place_is_named(
    launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 may have begun too late, or ended."""
    monkeypatch.setattr(own_servers, "STORE_GRACE_S", LIMIT_S)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    meet_at(launcher, address, monkeypatch)

    with pytest.raises(
        StartLimitExceeded, match=rf"at {re.escape(address)}, .* nobody is reached for 0\.1 s"
    ):
        second(start_limit=0.1)


def test_without_a_store_it_is_said_how_ranks_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (STORE, "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(
        UsageError, match="MASTER_ADDR and MASTER_PORT say: start them with ps-worker --nproc 2"
    ):
        second()


def test_a_reader_finds_the_servers_of_all_ranks_at_the_same_store(store: Store) -> None:
    reader = settings.read(
        {"PS_SERVERS": "none", STORE: "127.0.0.1:1", "PS_ROLE": "reader", "PS_WAIT": "0.1"}
    )
    store.set("server/0", json.dumps({"machine": machine(), "size": 2, "address": "127.0.0.1:1"}))

    with pytest.raises(JobUnknown, match=r"rank 1 did not start its server within 0\.1 s"):
        own_servers.find(reader)
    store.set("server/1", json.dumps({"machine": machine(), "size": 2, "address": "127.0.0.1:2"}))

    assert own_servers.find(reader) == ("127.0.0.1:1", "127.0.0.1:2")
