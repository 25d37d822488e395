"""Thousands of messages that are nearly right, from strangers and from members of another job.

None ends as a bug of ours, none is a traceback in a log, none changes what another job trains.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Iterator

import grpc
import pytest

from ps_lab.status.observer import is_serving
from ps_server.log import concerns_us
from ps_server.rpc import auth as gatekeeper
from ps_wire.access import token as tokens
from ps_wire.access.access import read
from ps_wire.access.channel import CLIENT
from tests.component.service import Cluster, LoopThread, fresh_name
from tests.until import LIMIT_S

from .bystander import train
from .callers import storm
from .mutation import METHODS, Method, Mutation

SERVICE = "the-token-of-the-service"
MINE = "mine"
COUNT = 3000
BUGS = {"InternalError", "INTERNAL", "UNKNOWN"}
MALFORMED = b"\xff\xff\xff\xff"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One shard that wants a token, keeps snapshots, and has a limit of memory."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "token").write_text(SERVICE)
    loop = LoopThread()
    access = read(token_file=folder / "token", tls_dir=None, serves=True, complain=print)
    options = {"memory_limit_bytes": 64 << 20, "snapshot_dir": str(folder / "snapshots")}
    made = Cluster(loop, 1, access, options=options, token_file=folder / "token")
    yield made
    made.close()
    loop.close()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gatekeeper, "ANSWER_AFTER_S", 0.0)


def of_job(job: str) -> tuple[tuple[str, str], ...]:
    return tokens.metadata(tokens.of_job(SERVICE, job), job)


def tracebacks(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Bugs that were logged; what became of tasks that nobody awaited is logged when they are collected."""
    gc.collect()
    return [record.getMessage() for record in caplog.records if record.exc_info and concerns_us(record)]


@pytest.mark.parametrize("caller", [of_job(MINE), tokens.metadata(SERVICE, None)], ids=["job", "service"])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.path.rpartition("/")[2])
def test_bytes_that_are_no_message_are_the_callers_error(
    guarded: Cluster, method: Method, caller: tuple[tuple[str, str], ...], caplog: pytest.LogCaptureFixture
):
    """INVALID_ARGUMENT, or refused within the stream; one line of the log at most, and no traceback."""
    with grpc.insecure_channel(guarded.servers, options=CLIENT) as channel:
        if method.many:
            call = channel.stream_stream(method.path)(iter([MALFORMED]), timeout=LIMIT_S, metadata=caller)
        else:
            call = channel.unary_stream(method.path)(MALFORMED, timeout=LIMIT_S, metadata=caller)
        if method.path.endswith(("Member", "Read")):
            assert b"FrameMalformed" in b"".join(call)
        else:
            with pytest.raises(grpc.RpcError) as raised:
                list(call)
            refused = method.path.endswith("Follow") and caller == of_job(MINE)
            wanted = grpc.StatusCode.UNAUTHENTICATED if refused else grpc.StatusCode.INVALID_ARGUMENT
            assert raised.value.code() is wanted, raised.value
    assert tracebacks(caplog) == []
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    of_earlier_tests = ("more of these lines", f"job {MINE}: NO SNAPSHOT: ")  # and of members they left
    assert len([text for text in said if not any(other in text for other in of_earlier_tests)]) <= 1, said


def test_thousands_of_messages_that_are_nearly_right_change_nothing_for_another_job(
    guarded: Cluster, caplog: pytest.LogCaptureFixture
):
    """From a stranger, and from who holds the token of a job of its own."""
    seed = int(os.environ.get("SECURITY_SEED", "1"))
    alone = train(guarded.servers, fresh_name(), 10, guarded.settings)
    victim = fresh_name()
    mutation = Mutation(seed, (MINE, victim))
    callers = ((), of_job(MINE), of_job(MINE), tokens.metadata("x" * 32, victim))

    async def beside() -> tuple[bytes, dict[tuple[str, str], int]]:
        attack = asyncio.create_task(storm(guarded.servers, mutation, COUNT, callers=callers))
        try:
            return await asyncio.to_thread(train, guarded.servers, victim, 10, guarded.settings), await attack
        finally:
            attack.cancel()

    with caplog.at_level(logging.INFO):
        weights, ended = asyncio.run(beside())
        assert tracebacks(caplog) == []
    assert weights == alone
    assert {name for _, name in ended} & BUGS == set(), ended
    assert sum(ended.values()) > COUNT / 3
    assert is_serving(guarded.servers, timeout_s=LIMIT_S)
