"""An incarnation that is over: nothing that its threads still bring reaches the worker's tables."""

from __future__ import annotations

from typing import Any

import pytest

from ps_wire.errors import ConnectionLost
from ps_wire.frames import frame as wire
from ps_worker.membership import incarnation
from ps_worker.membership.incarnation import Incarnation
from ps_worker.settings import read

PROMISES: Any = {"promise": None, "rounds": None}  # the membership is a fake

FRAME = wire.Frame(kind=wire.Kind.PULLED, payload=b"1234")


class Tables:
    """The `Peer` behind all incarnations."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def take(self, frame: wire.Frame) -> None:
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
    it.take(FRAME)
    assert tables.heard == [FRAME]
    assert it.landing(FRAME, 4) is not None
    assert list(it.replay(0)) == [FRAME]
    it.abandon()
    it.take(FRAME)
    it.fail(ConnectionLost("gone"))
    assert tables.heard == [FRAME]
    assert it.landing(FRAME, 4) is None
    assert list(it.replay(0)) == []
    assert it.membership.given_up  # type: ignore[attr-defined]
