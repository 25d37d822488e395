"""Where a server may listen, what its options mean, and that nothing shows its token."""

from __future__ import annotations

from pathlib import Path

import pytest

from ps_server.cli import check_host, gaps, parse_bytes, parse_coordinator, parse_durability, parse_shard
from ps_server.coordinator.snapshots.durability import Durability
from ps_server.coordinator.snapshots.policy import policy_of
from ps_server.process.server import ServerOptions
from ps_wire.access.access import Access
from ps_wire.errors import ConfigurationRefused, ShardMismatch, UsageError


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "ps-server-0.ps-server"])
def test_where_others_reach_it_a_server_wants_one_of_three_things(host: str):
    """Certificates, a token, or a person's word for it."""
    with pytest.raises(ConfigurationRefused) as refused:
        check_host(host, guarded=False, insecure=False)
    assert refused.value.exit_code == 78
    assert all(name in refused.value.message for name in (host, "--tls-dir", "--token-file", "--insecure"))
    check_host(host, guarded=True, insecure=False)
    check_host(host, guarded=False, insecure=True)


def test_on_loopback_a_server_wants_nothing():
    check_host("127.0.0.1", guarded=False, insecure=False)


def test_options_do_not_show_the_token():
    options = ServerOptions(
        shard=0,
        num_shards=1,
        host="h",
        port=0,
        coordinator=None,
        advertise="h",
        memory_limit_bytes=None,
        access=Access(token="not-to-be-seen"),
    )
    assert "not-to-be-seen" not in repr(options)


@pytest.mark.parametrize(
    ("every", "state_dir", "said"),
    [
        (None, Path("state"), ["add --snapshot-every"]),
        ("5m", None, ["add --state-dir"]),
        (None, None, ["add --snapshot-every", "add --state-dir"]),
        ("500steps", Path("state"), []),
    ],
)
def test_what_durability_does_not_protect_from_is_said_with_its_remedy(every, state_dir, said):
    """By shard 0, and only where jobs are to go back to snapshots at all."""
    policy = policy_of(every, 3)
    found = gaps(0, Durability.SNAPSHOT, policy, state_dir)
    assert len(found) == len(said)
    assert all(remedy in line for remedy, line in zip(said, found, strict=True))
    assert gaps(1, Durability.SNAPSHOT, policy, state_dir) == []
    assert gaps(0, Durability.NONE, policy, state_dir) == []


def test_durability_follows_from_where_snapshots_go_unless_it_is_said():
    assert parse_durability(None, None) is Durability.NONE
    assert parse_durability(None, "/snapshots") is Durability.SNAPSHOT
    assert parse_durability("none", "/snapshots") is Durability.NONE
    with pytest.raises(UsageError, match="unknown durability 'log'; valid are: none, snapshot"):
        parse_durability("log", None)
    with pytest.raises(UsageError, match="needs --snapshot-dir"):
        parse_durability("snapshot", None)


@pytest.mark.parametrize(
    ("text", "count"),
    [("1", 1), ("3K", 3 << 10), ("500M", 500 << 20), ("8GiB", 8 << 30), ("2TB", 2 << 40), (" 7B ", 7)],
)
def test_units_of_memory_are_powers_of_1024(text: str, count: int):
    assert parse_bytes(text) == count


def test_shards_count_from_zero():
    assert parse_shard("0/1") == (0, 1)
    assert parse_shard("4095/4096") == (4095, 4096)
    for text in ("2/2", "1/1", "0/0", "0/4097", "-1/2", "1"):
        with pytest.raises(UsageError, match=r"write K/N with K in 0\.\.N-1"):
            parse_shard(text)


def test_a_list_of_another_number_of_servers_than_the_shard_says_is_refused():
    """A server takes the coordinator's address from it: counts that disagree would show much later."""
    listed = "ps-{0..1}:50051"
    assert parse_coordinator(1, 2, None, listed) == "ps-0:50051"
    assert parse_coordinator(1, 3, "other:1", listed) == "other:1"
    with pytest.raises(ShardMismatch, match="are 3 servers, and PS_SERVERS lists 2") as refused:
        parse_coordinator(1, 3, None, listed)
    assert refused.value.exit_code == 78
