"""The lines between ranks: who may have one; ranks that send each other much do not wait for each other."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
import torch.distributed as dist

from ps_wire.errors import GroupBroken
from ps_wire.process.ranks import Ranks
from ps_worker.group import lines as module
from ps_worker.group.lines import Gone, RankLines, connect
from tests.until import LIMIT_S, until

LOOPBACK = "127.0.0.1"
Pair: TypeAlias = tuple[RankLines, RankLines]
MUCH = 8 << 20  # more than sockets hold


def together(*calls: Callable[[], Any]) -> list[Any]:
    """What they give, each on a thread of its own."""
    found: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        found[index] = calls[index]()

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    return found


@pytest.fixture
def pair() -> Iterator[Pair]:
    a, b = socket.socketpair()
    made = RankLines({1: a}), RankLines({0: b})
    yield made
    for it in made:
        it.close()


def said(line: RankLines, rank: int, count: int) -> bytes:
    """So many bytes of a rank; what is queued leaves meanwhile."""
    data = bytearray(count)
    rest = memoryview(data)
    while rest or line.sending:
        taken = line.receive(rank, rest) if rest else 0
        rest = rest[taken:]
        if not taken:
            line.wait(rank if rest else None, LIMIT_S)
    return bytes(data)


def test_every_rank_has_a_line_to_every_other() -> None:
    store: Any = dist.HashStore()
    made = together(
        *[lambda rank=rank: connect(Ranks(rank=rank, size=3), store, LOOPBACK) for rank in range(3)]
    )
    try:
        for rank, line in enumerate(made):
            for other in {0, 1, 2} - {rank}:
                line.queue(other, bytes([rank]))
        for rank, line in enumerate(made):
            assert [said(line, other, 1)[0] for other in range(3) if other != rank] == [
                other for other in range(3) if other != rank
            ]
    finally:
        for line in made:
            line.close()


@pytest.mark.parametrize("rank", [0, 1])
def test_who_waits_for_a_rank_that_does_not_come_is_freed_with_its_group(rank: int) -> None:
    def ended() -> None:
        raise GroupBroken("a rank has gone")

    with pytest.raises(GroupBroken):
        connect(Ranks(rank=rank, size=2), dist.HashStore(), LOOPBACK, ended)


def test_who_does_not_know_the_secret_of_the_store_gets_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELLO_LIMIT_S", LIMIT_S)
    store: Any = dist.HashStore()
    leader: list[RankLines] = []
    thread = threading.Thread(target=lambda: leader.append(connect(Ranks(rank=0, size=2), store, LOOPBACK)))
    thread.start()
    host, _, port = store.get("lines/0").decode().rpartition(":")
    with socket.create_connection((host, int(port))) as foreign:
        foreign.sendall(bytes(module.TOKEN_BYTES) + (1).to_bytes(module.RANK_BYTES))
        assert foreign.recv(1) == b""  # it is shown out

    second = connect(Ranks(rank=1, size=2), store, LOOPBACK)
    thread.join(LIMIT_S)
    leader[0].queue(1, b"x")
    assert said(second, 0, 1) == b"x"
    for line in (*leader, second):
        line.close()


def test_ranks_that_send_each_other_more_than_sockets_hold_both_get_it(
    pair: Pair,
) -> None:
    pair[0].queue(1, b"a" * MUCH)
    pair[1].queue(0, b"b" * MUCH)
    assert pair[0].sending
    assert pair[1].sending

    found = together(lambda: said(pair[0], 1, MUCH), lambda: said(pair[1], 0, MUCH))

    assert found == [b"b" * MUCH, b"a" * MUCH]


def test_who_waits_is_woken(pair: Pair) -> None:
    waits = threading.Thread(target=lambda: pair[0].wait(1, LIMIT_S), daemon=True)
    waits.start()

    pair[0].wake()

    until(lambda: not waits.is_alive(), "it is woken")


def test_a_rank_that_has_gone_is_named_by_who_hears_and_by_who_sends(
    pair: Pair,
) -> None:
    pair[1].close()

    with pytest.raises(Gone) as heard:
        said(pair[0], 1, 1)
    with pytest.raises(Gone) as sent:
        pair[0].queue(1, b"x")
    assert (heard.value.rank, sent.value.rank) == (1, 1)


def test_what_was_to_go_to_who_has_gone_is_no_longer_under_way(pair: Pair) -> None:
    """Else who sends to others waits for that, too."""
    pair[0].queue(1, bytes(MUCH))
    assert pair[0].sending
    pair[1].close()

    with pytest.raises(Gone):
        pair[0].queue(1, b"more")

    assert not pair[0].sending
