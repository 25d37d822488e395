"""Ranks of a group as threads of one process: messages go over sockets, tensors through queues."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from ps_wire.process.ranks import Ranks
from ps_worker.group.abort import Abort
from ps_worker.group.channel import Channel
from ps_worker.group.lines import RankLines
from tests.until import LIMIT_S


class Gone(RuntimeError):
    """What gloo raises where a rank has gone."""


class _Work:
    def __init__(self, wait: Callable[[], object]) -> None:
        self.wait = wait


class Wires:
    """The wires of one rank; `cut` is what a dead peer looks like."""

    def __init__(self, rank: int, lines: dict[tuple[int, int], queue.SimpleQueue[Any]]) -> None:
        self._rank = rank
        self._lines = lines

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> _Work:
        assert tensors[0].is_contiguous(), "gloo refuses others"
        self._lines[self._rank, to].put(tensors[0].clone())
        return _Work(lambda: None)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> _Work:
        assert tensors[0].is_contiguous(), "gloo refuses others"

        def wait() -> None:
            found = self._lines[source, self._rank].get(timeout=LIMIT_S)
            if found is None:
                raise Gone("Connection closed by peer")
            tensors[0].copy_(found)

        return _Work(wait)


class Town:
    """The ranks of one group.

    Attributes:
        channels: by rank.
        said: reasons why the group is broken, in the order in which ranks have said them.
        sockets: for messages, by whose end it is and who has the other.
        look: by rank, what it does now and then while it waits.
    """

    def __init__(self, size: int) -> None:
        lines = {(a, b): queue.SimpleQueue[Any]() for a in range(size) for b in range(size)}
        self.sockets: dict[tuple[int, int], socket.socket] = {}
        for a in range(size):
            for b in range(a):
                self.sockets[a, b], self.sockets[b, a] = socket.socketpair()
        self.said: list[str] = []
        self.aborts = [Abort() for _ in range(size)]
        self.lines = lines
        self.look: list[Callable[[], object]] = [lambda: None] * size
        self.channels = [
            Channel(
                Ranks(rank=rank, size=size),
                Wires(rank, lines),
                RankLines({other: it for (mine, other), it in self.sockets.items() if mine == rank}),
                self.aborts[rank],
                hosts=tuple(f"host{it}" for it in range(size)),
                on_broken=self._broken,
                look=partial(self._look, rank),
            )
            for rank in range(size)
        ]

    def _look(self, rank: int) -> None:
        self.look[rank]()

    def _broken(self, reason: str) -> str | None:
        self.said.append(reason)
        for abort in self.aborts:  # as the watch of each rank does
            abort.set(self.said[0])
        return self.said[0]

    def cut(self, rank: int) -> None:
        """The rank has gone: who waits for it hears so."""
        for (source, _), line in self.lines.items():
            if source == rank:
                line.put(None)
        for (mine, _), it in self.sockets.items():
            if mine == rank:
                it.shutdown(socket.SHUT_RDWR)

    def run(self, script: Callable[[int], Any]) -> list[Any]:
        """What the script gives on each rank, or the error that it raises there."""
        results: list[Any] = [None] * len(self.channels)

        def body(rank: int) -> None:
            try:
                results[rank] = script(rank)
            except Exception as error:  # noqa: BLE001 - the result
                results[rank] = error

        threads = [threading.Thread(target=body, args=(rank,)) for rank in range(len(self.channels))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()
        return results


@contextmanager
def town(size: int) -> Iterator[Town]:
    """A group; its threads end with the block."""
    made = Town(size)
    yield made
    for channel in made.channels:
        channel.close()
