"""The watch of a job beside a command: whatever a look raises, it looks again."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from ps_lab.status import watch
from ps_lab.status.status import Status
from ps_wire.errors import ServerUnreachable
from ps_wire.process import watched
from tests.unit.ps_lab.made import made_job, made_status
from tests.until import until


def test_after_a_bug_in_a_look_it_looks_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A comparison ends its runs by what was seen last; the bug is logged."""
    job = made_job()
    answers: Iterator[Status | Exception] = iter(
        [ZeroDivisionError("made by the test"), ServerUnreachable("not there"), made_status(job)]
    )

    def ask(*_: object, **__: object) -> Status:
        answer = next(answers, made_status(job))
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(watch, "ask", ask)
    monkeypatch.setattr(watch, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(watched, "AGAIN_S", 0.001)
    with caplog.at_level(logging.ERROR, "ps_lab"), watch.Watch(("a:1",), job.name) as looks:
        until(lambda: looks.job is not None, "the job is seen")
    assert "made by the test" in caplog.text
