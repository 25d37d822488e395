"""A worker as what takes steps sees it, without a job."""

from __future__ import annotations

from ps_worker.process.one_thread import OneThread


class Host:
    """A worker that no step concerns: a `StepHost`."""

    def __init__(self) -> None:
        self.inside = OneThread()

    def closed(self) -> str | None:
        return None

    def announce(self) -> bool:
        return False

    def is_rewound(self) -> bool:
        return False

    def drop_step(self) -> None:
        pass

    def before_step(self, step: int) -> None:
        pass

    def begin_push(self, table: int) -> None:
        pass

    def after_step(self, step: int) -> None:
        pass

    def rejoin(self) -> None:
        raise AssertionError("nobody evicts")

    def say(self, text: str) -> None:
        print(text)

    def say_wait(self, text: str, workers: str = "") -> None:
        print(text, workers)
