"""The worker's lines at the terminal: once each, wherever the script's logging and stderr are by then."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ps_worker.process import console

logger = logging.getLogger("ps_worker.test_terminal")


@contextmanager
def fresh_root() -> Iterator[logging.Logger]:
    """As a script finds it: without handlers. pytest puts some there before each test."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    try:
        yield root
    finally:
        root.handlers = before
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)


def test_a_script_that_sets_up_logging_later_gets_each_line_once(monkeypatch: pytest.MonkeyPatch):
    with fresh_root() as root:
        written = io.StringIO()
        monkeypatch.setattr(sys, "stderr", written)
        console.show(logger)
        logger.info("before")
        root.addHandler(logging.StreamHandler(written))
        console.show(logger)
        logger.info("after")
        assert written.getvalue() == "before\nafter\n"


def test_lines_go_to_the_stderr_of_the_moment(monkeypatch: pytest.MonkeyPatch):
    with fresh_root() as root:
        first, second = io.StringIO(), io.StringIO()
        monkeypatch.setattr(sys, "stderr", first)
        console.show(logger)
        logger.info("one")
        assert first.getvalue() == "one\n"
        first.close()
        logger.info("nowhere")
        monkeypatch.setattr(sys, "stderr", second)
        logger.info("two")
        assert second.getvalue() == "two\n"
        assert root.handlers == []


def test_a_logger_that_the_script_has_set_up_is_left_alone():
    with fresh_root() as root:
        own = logging.NullHandler()
        logger.addHandler(own)
        console.show(logger)
        assert logger.handlers == [own]
        logger.handlers.clear()
        root.addHandler(own)
        console.show(logger)
        assert logger.handlers == []


def test_what_peers_say_stays_on_its_line(monkeypatch: pytest.MonkeyPatch):
    with fresh_root():
        written = io.StringIO()
        monkeypatch.setattr(sys, "stderr", written)
        console.show(logger)
        logger.info("worker 1 (host %s) left", "a\nforged \x1b[31m")
        assert written.getvalue() == r"worker 1 (host a\nforged \x1b[31m) left" + "\n"
