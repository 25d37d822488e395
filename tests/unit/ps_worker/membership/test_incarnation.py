"""An incarnation that is over: nothing that its threads still bring reaches the worker's tables."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from ps_wire.errors import ConnectionLost
from ps_wire.frames import frame as wire
from ps_worker.membership import incarnation
from ps_worker.membership.incarnation import Incarnation
from ps_worker.settings import read
from tests.until import LIMIT_S, until

PROMISES: Any = {"promise": None, "rounds": None}  # the membership is a fake

FRAME = wire.Frame(kind=wire.Kind.PULLED, payload=b"1234")


class Tables:
    """The `Peer` behind all incarnations."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def receive(self, frame: wire.Frame) -> None:
        self.heard.append(frame)

    def landing(self, frame: wire.Frame, payload_bytes: int) -> memoryview:
        return memoryview(bytearray(payload_bytes))

    def replay(self, shard: int) -> list[wire.Frame]:
        return [FRAME]

    def fail(self, error: Exception) -> None:
        self.heard.append(error)


class Joined:
    """A membership that was made and is given up."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.given_up = False

    def abandon(self) -> None:
        self.given_up = True


def test_an_incarnation_that_is_over_brings_nothing_and_sends_nothing(monkeypatch: pytest.MonkeyPatch):
    """Neither frames nor failures, no place for a payload, and nothing to send again."""
    monkeypatch.setattr(incarnation, "Membership", Joined)
    tables = Tables()
    settings = read({}, servers="a:1", num_workers=1)
    it = Incarnation(settings, None, peer=tables, progress=lambda: None, say=print, **PROMISES)  # type: ignore[arg-type]
    it.receive(FRAME)
    assert tables.heard == [FRAME]
    assert it.landing(FRAME, 4) is not None
    assert list(it.replay(0)) == [FRAME]
    it.abandon()
    it.receive(FRAME)
    it.fail(ConnectionLost("gone"))
    assert tables.heard == [FRAME]
    assert it.landing(FRAME, 4) is None
    assert list(it.replay(0)) == []
    assert it.membership.given_up  # type: ignore[attr-defined]


class Slow(Tables):
    """Is held while it hears of a failure."""

    def __init__(self) -> None:
        super().__init__()
        self.failing, self.go_on = threading.Event(), threading.Event()

    def fail(self, error: Exception) -> None:
        self.failing.set()
        assert self.go_on.wait(LIMIT_S)
        super().fail(error)


def test_a_failure_that_is_being_handed_on_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    """Else it could reach the tables of the next incarnation, which would join again for nothing."""
    monkeypatch.setattr(incarnation, "Membership", Joined)
    monkeypatch.setattr(incarnation, "RECEIVED_LIMIT_S", LIMIT_S)
    tables, over = Slow(), threading.Event()
    settings = read({}, servers="a:1", num_workers=1)
    it = Incarnation(settings, None, peer=tables, progress=lambda: None, say=print, **PROMISES)  # type: ignore[arg-type]
    error = ConnectionLost("gone")
    failing = threading.Thread(target=it.fail, args=(error,))
    failing.start()
    assert tables.failing.wait(LIMIT_S)
    abandoning = threading.Thread(target=lambda: (it.abandon(), over.set()))
    abandoning.start()
    until(lambda: it._over, "it is given up")
    assert not over.wait(0.1)
    tables.go_on.set()
    abandoning.join(LIMIT_S)
    failing.join(LIMIT_S)
    assert over.is_set()
    assert tables.heard == [error]
