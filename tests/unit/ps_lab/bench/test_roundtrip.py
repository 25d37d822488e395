"""What a round-trip bench refuses, and what it writes."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from ps_lab.bench import limit
from ps_lab.bench.figures import Round
from ps_lab.bench.peers import PEERS
from ps_lab.bench.roundtrip import PROJECT, RoundtripOutcome, check_memory
from ps_lab.bench.setup import Setup, parse_peers
from ps_lab.errors import BenchFailed
from ps_wire.errors import UsageError

SETUP = Setup(
    model="tiny",
    shapes=((250, 500), (500,)),
    num_servers=1,
    num_workers=2,
    asked_carrier="grpc",
    consistency="bsp",
    optimizer="sgd",
    rounds=2,
    peers=("gloo",),
    with_limit=True,
)
OUTCOME = RoundtripOutcome(
    setup=SETUP,
    carrier="grpc",
    rounds={
        PROJECT: [Round(seconds=0.5, cpu_s=0.25), Round(seconds=1.5, cpu_s=0.25)],
        "gloo": [Round(seconds=2.0, cpu_s=0.5), Round(seconds=2.0, cpu_s=0.5)],
        limit.NAME: [Round(seconds=0.5, cpu_s=0.5), Round(seconds=0.5, cpu_s=0.5)],
    },
    server_peak_rss_bytes=300_000_000,
    server_borrowed_bytes=4096,
    server_state_bytes=502_000,
)


def test_the_json_has_these_keys_and_no_others() -> None:
    figures = json.loads(json.dumps(OUTCOME.to_json()))
    assert list(figures) == [
        *("model", "parameters", "tensors", "bytes", "num_servers", "num_workers", "carrier", "optimizer"),
        *("consistency", "rounds", "hosts", "wire_dtype", "round_s", "cpu_s_per_gb", "server_peak_rss_bytes"),
        *("server_borrowed_bytes", "server_state_bytes", "peers", "limit"),
        "one_pass",
    ]
    assert list(figures["round_s"]) == ["min", "median", "p90", "max"]
    assert list(figures["peers"]) == ["gloo"]
    for party in (figures["peers"]["gloo"], figures["limit"]):
        assert list(party) == ["round_s", "ratio"]
        assert list(party["round_s"]) == ["min", "median", "p90", "max"]


def test_a_ratio_is_the_projects_median_over_the_others() -> None:
    figures = OUTCOME.to_json()
    assert figures["round_s"]["median"] == 1.0
    assert figures["peers"]["gloo"]["ratio"] == 0.5
    assert figures["limit"]["ratio"] == 2.0


def test_cpu_seconds_are_per_gb_pushed_and_pulled_by_all_workers() -> None:
    moved_gb = 2 * 2 * 2 * 502_000 / 1e9  # rounds, workers, both ways
    assert OUTCOME.to_json()["cpu_s_per_gb"] == pytest.approx(0.5 / moved_gb)


def test_without_a_limit_the_json_says_null() -> None:
    outcome = dataclasses.replace(OUTCOME, setup=dataclasses.replace(SETUP, with_limit=False))
    assert outcome.to_json()["limit"] is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_workers": 0}, "--num-workers must be >= 1"),
        ({"rounds": 0}, "--rounds must be >= 1"),
        ({"asked_carrier": "pigeon"}, "'pigeon'"),
        ({"optimizer": "lbfgs"}, "sgd, adam"),
        ({"consistency": "often"}, "valid are"),
        ({"tls_dir": "certificates"}, "add --carrier tcp, not grpc"),
    ],
)
def test_a_setup_that_makes_no_sense_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        dataclasses.replace(SETUP, **change)


def test_peers_are_read_in_their_order() -> None:
    assert parse_peers(" torch-rpc, gloo,", ("gloo", "torch-rpc")) == ("torch-rpc", "gloo")
    assert parse_peers("", ("gloo",)) == ()


@pytest.mark.parametrize(("text", "said"), [("gloo,mpi", "'mpi'.*gloo"), ("gloo,gloo", "twice")])
def test_peers_that_make_no_sense_are_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_peers(text, ("gloo", "torch-rpc"))


def test_what_does_not_fit_into_memory_is_refused_with_a_remedy() -> None:
    big = dataclasses.replace(SETUP, shapes=((1 << 30,),))
    with pytest.raises(BenchFailed, match=r"project 24\.0, gloo 16\.0, limit.*8\.0 GiB are free.*--versus"):
        check_memory(big, PEERS, available_bytes=8 << 30)
    check_memory(big, PEERS, available_bytes=None)
    check_memory(SETUP, PEERS, available_bytes=8 << 30)


@pytest.mark.parametrize("peer", list(PEERS))
def test_a_peer_has_as_many_processes_that_do_rounds_as_the_project_has_workers(peer: str) -> None:
    plans = PEERS[peer].plan(dataclasses.replace(SETUP, num_workers=3))
    assert sum(plan.takes_turns for plan in plans) == 3
    assert len({plan.name for plan in plans}) == len(plans)


def test_the_json_names_the_carrier_that_carried() -> None:
    setup = dataclasses.replace(SETUP, asked_carrier="auto")
    assert dataclasses.replace(OUTCOME, setup=setup, carrier="uds").to_json()["carrier"] == "uds"


@pytest.mark.parametrize("num_servers", [1, 3])
def test_the_socket_limit_moves_a_rounds_bytes_over_a_connection_per_worker_and_server(
    num_servers: int,
) -> None:
    setup = dataclasses.replace(SETUP, num_servers=num_servers, num_workers=2)
    plans = limit.plan(setup, "tcp")
    moved = 0
    for plan in plans:
        assert plan.configuration is not None
        if plan.takes_turns:
            addresses = plan.configuration["addresses"]
            assert isinstance(addresses, list)
            assert isinstance(plan.configuration["bytes"], int)
            assert len(addresses) == num_servers
            moved += len(addresses) * plan.configuration["bytes"]
    assert 0 <= moved - 2 * setup.weight_bytes < 2 * 4 * num_servers
    assert sum(not plan.takes_turns for plan in plans) == num_servers
