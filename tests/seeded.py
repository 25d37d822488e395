"""An option of pytest that takes a seed, or draws one: all processes of xdist have it, and it is printed."""

from __future__ import annotations

import secrets

import pytest


def add_option(parser: pytest.Parser, name: str, text: str) -> None:
    """Adds `--NAME [SEED]`; `text` is its help."""
    parser.addoption(f"--{name}", nargs="?", const="", metavar="SEED", help=text)


def draw(config: pytest.Config, name: str) -> int | None:
    """The seed that was asked for, or a fresh one; None: the option was not given."""
    text = config.getoption(f"--{name}")
    if text is None:
        return None
    seed = int(text) if text else secrets.randbits(32)
    setattr(config.option, name, str(seed))  # of processes of xdist, too
    return seed


def say(config: pytest.Config, name: str) -> None:
    """Prints how it is run again, where the option was given."""
    if (seed := config.getoption(f"--{name}")) is not None and not hasattr(config, "workerinput"):
        config.get_terminal_writer().line(f"{name}: run it again with --{name}={seed}")
