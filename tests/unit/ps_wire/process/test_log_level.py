"""How much is logged, as people say it."""

from __future__ import annotations

import logging

import pytest

from ps_wire.errors import UsageError
from ps_wire.process.log_level import VARIABLE, LogLevel, from_environment


@pytest.mark.parametrize("level", LogLevel)
def test_each_level_is_one_of_loggings(level: LogLevel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, level)
    assert from_environment().number == getattr(logging, level.name)


def test_another_word_is_refused_and_the_valid_ones_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "loud")
    with pytest.raises(UsageError, match="unknown PS_LOG_LEVEL 'loud'; valid are: debug, info"):
        from_environment()
