"""Settings: keywords, else `PS_*` variables; what makes no sense names its variable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ps_worker as ps
from ps_wire.frames.carrier import Carrier
from ps_wire.spec.consistency import ASP, BSP, SSP
from ps_wire.spec.nonfinite import NonFinite
from ps_worker import settings

FULL = {
    "PS_SERVERS": "a:1,b:2",
    "PS_JOB": "digits",
    "PS_CONSISTENCY": "ssp:3",
    "PS_NUM_WORKERS": "4",
    "PS_WORKER": "2",
    "PS_NONFINITE": "apply",
    "PS_CARRIER": "tcp",
    "PS_CONNECT_LIMIT": "1.5",
    "PS_START_LIMIT": "60",
    "PS_RETRY_LIMIT": "2e1",
    "PS_TOKEN_FILE": "/run/token",
    "PS_TLS_DIR": "/run/tls",
}


def test_everything_comes_from_the_environment():
    got = settings.read(FULL)
    assert got.servers == ("a:1", "b:2")
    assert (got.job, got.consistency, got.num_workers, got.worker) == ("digits", SSP(3), 4, 2)
    assert got.nonfinite is NonFinite.APPLY
    assert got.carrier is Carrier.TCP
    assert (got.connect_limit_s, got.start_limit_s, got.retry_limit_s) == (1.5, 60.0, 20.0)
    assert (got.token_file, got.tls_dir) == (Path("/run/token"), Path("/run/tls"))


def test_keywords_come_before_the_environment():
    got = settings.read(
        FULL,
        servers="c:3",
        job="other",
        consistency="asp",
        num_workers=1,
        worker=0,
        nonfinite="skip",
        carrier="auto",
        connect_limit=5,
        start_limit=6.5,
        retry_limit=7,
        token_file=Path("mine"),
        tls_dir="own",
    )
    assert got.servers == ("c:3",)
    assert (got.job, got.consistency, got.num_workers, got.worker) == ("other", ASP(), 1, 0)
    assert got.nonfinite is NonFinite.SKIP
    assert got.carrier is None
    assert (got.connect_limit_s, got.start_limit_s, got.retry_limit_s) == (5.0, 6.5, 7.0)
    assert (got.token_file, got.tls_dir) == (Path("mine"), Path("own"))


def test_defaults():
    got = settings.read({"PS_SERVERS": "a:1"})
    assert (got.job, got.consistency, got.num_workers, got.worker) == ("default", BSP(), 1, None)
    assert got.nonfinite is NonFinite.ERROR
    assert got.carrier is None
    assert (got.connect_limit_s, got.start_limit_s, got.retry_limit_s) == (30.0, 600.0, 30.0)
    assert (got.token_file, got.tls_dir) == (None, None)


def test_none_means_not_given():
    assert settings.read(FULL, servers=None, job=None, worker=None) == settings.read(FULL)


def test_the_processs_environment_is_the_default(monkeypatch: Any):
    for name, value in FULL.items():
        monkeypatch.setenv(name, value)
    assert settings.read() == settings.read(FULL)


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("h:1", ("h:1",)),
        (" h:1 , g:2 ", ("h:1", "g:2")),
        ("ps-{0..2}.ps:50051", ("ps-0.ps:50051", "ps-1.ps:50051", "ps-2.ps:50051")),
        ("[::1]:1,x-{3..3}:2", ("[::1]:1", "x-3:2")),
    ],
)
def test_servers_are_a_list_or_a_range(text: str, servers: tuple[str, ...]):
    assert settings.read({"PS_SERVERS": text}).servers == servers


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("servers", "nowhere", "'nowhere' is not HOST:PORT"),
        ("servers", "a:1,a:1", "a:1 is listed twice"),
        ("servers", "a:70000", "port"),
        ("servers", "ps-{3..1}:1", "range"),
        ("job", "a b", "job name 'a b'"),
        ("job", "x" * 65, "job name"),
        ("consistency", "bps", "valid are: bsp, bsp:backup=B"),
        ("consistency", "ssp:-1", "staleness must be >= 0, got -1"),
        ("consistency", "ssp:x", "whole number"),
        ("num_workers", "0", ">= 1, got 0"),
        ("num_workers", "-2", ">= 1, got -2"),
        ("num_workers", "two", "whole number, got 'two'"),
        ("num_workers", "2.0", "whole number"),
        ("num_workers", "12345678901", "whole number"),
        ("num_workers", "0:2", ">= 1, got 0:2"),
        ("num_workers", "3:2", "the least of a range comes first, as in 2:8, got 3:2"),
        ("num_workers", "2:", "whole number, got '2:'"),
        ("lease", "0", "seconds > 0, got '0'"),
        ("worker", "-1", ">= 0, got -1"),
        ("worker", "first", "whole number, got 'first'"),
        ("nonfinite", "drop", "valid are: error, skip, apply"),
        ("connect_limit", "0", "seconds > 0, got '0'"),
        ("connect_limit", "soon", "seconds > 0, got 'soon'"),
        ("start_limit", "nan", "seconds > 0"),
        ("start_limit", "-1", "seconds > 0"),
        ("retry_limit", "inf", "seconds > 0"),
    ],
)
def test_an_invalid_value_is_a_usage_error_that_names_its_variable(name: str, value: str, text: str):
    variable = f"PS_{name.upper()}"
    for read in (
        lambda: settings.read(FULL | {variable: value}),
        lambda: settings.read(FULL, **{name: value}),
    ):
        with pytest.raises(ps.UsageError) as caught:
            read()
        assert text in caught.value.message
        assert variable in caught.value.message
        assert caught.value.exit_code == 64


@pytest.mark.parametrize("given", [{}, {"PS_SERVERS": "none"}, {"PS_SERVERS": ""}])
def test_without_servers_a_worker_is_alone(given: dict[str, str]):
    got = settings.read(given)
    assert (got.servers, got.consistency, got.num_workers, got.worker) == ((), BSP(), 1, None)
    assert settings.read(FULL, servers="none", num_workers=1, worker=0).servers == ()


@pytest.mark.parametrize(("name", "value"), [("num_workers", 2), ("worker", 1)])
def test_more_than_one_worker_needs_servers(name: str, value: int):
    """Each would train alone, and nobody would notice."""
    for read in (
        lambda: settings.read({f"PS_{name.upper()}": str(value)}),
        lambda: settings.read({}, **{name: value}),
    ):
        with pytest.raises(ps.UsageError, match=rf"{name} \(PS_{name.upper()}\) is {value}.* PS_SERVERS"):
            read()


def test_connect_reads_the_same(monkeypatch: Any):
    monkeypatch.setenv("PS_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("PS_NUM_WORKERS", "none")
    with pytest.raises(ps.UsageError, match="PS_NUM_WORKERS"):
        ps.connect()


def test_a_server_that_does_not_answer_is_named(monkeypatch: Any):
    monkeypatch.delenv("PS_SERVERS", raising=False)
    with pytest.raises(ps.ServerUnreachable, match=r"127\.0\.0\.1:1 .*within 0\.2 s, PS_CONNECT_LIMIT"):
        ps.connect(servers="127.0.0.1:1", connect_limit=0.2)


def test_a_list_of_servers_that_does_not_fit_is_refused(cluster: Any):
    first, second = cluster.servers.split(",")
    with pytest.raises(ps.ConfigurationRefused, match="lists 1 address; "):
        ps.connect(servers=first)
    with pytest.raises(ps.ConfigurationRefused, match="in shard order"):
        ps.connect(servers=f"{second},{first}")


@pytest.mark.parametrize(
    ("text", "sizes"), [("4", (0, 4)), ("2:8", (2, 8)), (" 3:3 ", (3, 3)), ("1", (0, 1))]
)
def test_a_number_of_workers_may_be_a_range(text: str, sizes: tuple[int, int]):
    """The job starts with the first number, and takes up to the second."""
    made = settings.read({"PS_SERVERS": "h:1", "PS_NUM_WORKERS": text})
    assert (made.min_workers, made.num_workers) == sizes


def test_several_processes_do_not_each_train_alone_unless_they_are_told_to():
    """As torchrun starts them, in a place where PS_SERVERS was forgotten."""
    torchrun = {"RANK": "1", "WORLD_SIZE": "4"}
    with pytest.raises(ps.UsageError, match=r"started 4 processes.*set PS_SERVERS and PS_NUM_WORKERS=4"):
        settings.read(torchrun)
    assert settings.read(torchrun | {"PS_SERVERS": "none"}).servers == ()
    assert settings.read(torchrun, servers="none").servers == ()
    assert settings.read(torchrun | {"PS_SERVERS": "a:1"}).servers == ("a:1",)
    for alone in ("1", "", "many"):
        assert settings.read({"WORLD_SIZE": alone}).servers == ()
