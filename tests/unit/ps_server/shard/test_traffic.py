"""Traffic by carrier is that of all connections, also of those that have gone."""

from __future__ import annotations

from dataclasses import dataclass

from ps_server.shard.traffic import CarrierFigures, Traffic


@dataclass
class Connection:
    carrier: str
    received_bytes: int = 0
    sent_bytes: int = 0
    queued_bytes: int = 0


def test_bytes_of_a_connection_stay_when_it_goes():
    it = Traffic()
    first, second, other = Connection("tcp"), Connection("tcp", 1, 2, 3), Connection("shm", 10)
    for connection in (first, second, other):
        it.enter(connection)
    first.received_bytes, first.sent_bytes, first.queued_bytes = 100, 200, 300
    it.leave(first)
    it.leave(first)
    second.received_bytes = 5
    assert it.figures() == {
        "tcp": CarrierFigures(connections=1, received_bytes=105, sent_bytes=202, queued_bytes=3),
        "shm": CarrierFigures(connections=1, received_bytes=10),
    }


def test_who_never_entered_leaves_nothing():
    it = Traffic()
    it.leave(Connection("tcp", 7))
    assert it.figures() == {}
