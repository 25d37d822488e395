"""What an exchange sends."""

from __future__ import annotations

from ps_wire.frames import frame as wire


class Sent:
    """A connection that keeps what it is given, payloads where they lie."""

    def __init__(self) -> None:
        self.frames: list[wire.Frame] = []

    def send(self, *frames: wire.Frame) -> None:
        self.frames += frames

    def of(self, kind: wire.Kind) -> list[wire.Frame]:
        return [frame for frame in self.frames if frame.kind is kind]
