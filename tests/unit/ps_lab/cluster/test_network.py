"""Hosts of a bench that are network namespaces: how their links are shaped, and what is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer.testing

from ps_lab.bench.cli import app
from ps_lab.cluster import network
from ps_lab.cluster.network import Link
from ps_lab.errors import BenchFailed
from ps_wire.errors import UsageError
from tests.until import LIMIT_S

RATE_BYTES = 1_250_000  # of 10 Mbit/s
SENT_BYTES = 2_500_000
OVER_A_LINK = f"""
import subprocess, sys, time
from ps_lab.cluster.network import Link
from ps_lab.cluster.network import network
receive = (
    "import socket, time; l = socket.create_server(('', 5000)); got = 0\\n"
    "began = time.monotonic()\\n"  # before any byte comes: who accepts late finds what the kernel has taken
    "print('listens', flush=True)\\n"
    "c, _ = l.accept()\\n"
    "while data := c.recv(1 << 16): got += len(data)\\n"
    "print(got, time.monotonic() - began)"
)
send = "import socket, sys; socket.create_connection((sys.argv[1], 5000)).sendall(bytes({SENT_BYTES}))"
python = [sys.executable, "-I", "-S", "-c"]
with network(2, Link(gbps=0.01, ms=0)) as (first, second):
    assert first.address != second.address
    there = subprocess.Popen([*first.enter, *python, receive], stdout=subprocess.PIPE, text=True)
    there.stdout.readline()
    subprocess.run([*second.enter, *python, send, first.address], check=True)
    print("got", there.communicate()[0])
"""


def test_a_token_bucket_holds_what_a_link_sends_in_a_tick_of_the_kernel() -> None:
    words = network.shape(Link(gbps=10.0, ms=0.0), "eth0")

    assert words[:7] == ("qdisc", "replace", "dev", "eth0", "root", "tbf", "rate")
    assert words[7] == "10000000000bit"
    assert int(words[words.index("burst") + 1]) == 10_000_000_000 / 8 / 250


def test_what_is_under_way_for_some_time_waits_in_netem() -> None:
    words = network.shape(Link(gbps=1.0, ms=2.5), "eth0")

    assert words[5:10] == ("netem", "delay", "2.5ms", "rate", "1000000000bit")


@pytest.mark.parametrize("count", [0, 1, 101])
def test_a_number_of_hosts_that_makes_no_sense_is_refused(count: int) -> None:
    with pytest.raises(UsageError, match="--hosts takes 2 to 100"):
        network.check(count)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["step", "--hosts", "2"], "between hosts goes TCP: add --carrier tcp"),
        (["step", "--apart"], "--apart is about hosts: add --hosts"),
        (["roundtrip", "--link-gbps", "1", "--carrier", "tcp"], "links of hosts: add --hosts"),
        (["roundtrip", "--hosts", "1", "--carrier", "tcp", "--no-limit"], "--hosts takes 2 to 100, got 1"),
    ],
)
def test_options_of_hosts_that_do_not_go_together_are_refused(
    monkeypatch: pytest.MonkeyPatch, words: list[str], reason: str
) -> None:
    # It would go on in another process, and leave this one without a result.
    monkeypatch.setattr(network, "enter", lambda _: pytest.fail("it begins"))

    error = typer.testing.CliRunner().invoke(app, words).exception

    assert isinstance(error, UsageError)
    assert reason in error.message


def test_where_namespaces_are_not_permitted_the_reason_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(network.INSIDE, raising=False)
    monkeypatch.setattr(network, "UNSHARE", ("sh", "-c", "echo unshare failed: not permitted >&2; exit 1"))
    monkeypatch.setattr(network.shutil, "which", lambda name: name)

    with pytest.raises(BenchFailed, match="not permitted here, or not all of it: unshare failed"):
        network.enter(None)


@pytest.mark.integration
def test_a_link_between_two_hosts_is_as_slow_as_it_should_be() -> None:
    done = subprocess.run(
        [*network.UNSHARE, sys.executable, "-c", OVER_A_LINK],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode and "unshare" in done.stderr.splitlines()[0]:
        pytest.skip(f"namespaces are not to be had: {done.stderr.strip()}")

    assert done.returncode == 0, done.stderr
    _, got, seconds = done.stdout.split()
    assert int(got) == SENT_BYTES
    assert float(seconds) >= 0.5 * SENT_BYTES / RATE_BYTES
