"""What workers choose to say with a heartbeat, and people read."""

from __future__ import annotations

import pytest

from ps_server.coordinator.member_streams import MAX_MEMBER_TEXT, MAX_METRICS, _bounded
from ps_wire.v1 import coordinator_pb2 as pb


def test_only_short_printable_names_are_kept_and_not_too_many():
    """A line break or an escape in a name would forge what a terminal shows."""
    progress = pb.Progress()
    for name in [
        "loss",
        "x" * 65,
        "a\nforged",
        "\x1b[31m",
        *[f"m{index}" for index in range(2 * MAX_METRICS)],
    ]:
        progress.metrics[name] = 1.0
    kept = set(_bounded(progress).metrics)
    assert "loss" in kept
    assert len(kept) == MAX_METRICS
    assert all(len(name) <= 64 and name.isprintable() for name in kept)


@pytest.mark.parametrize("field", ["waits", "passed_over"])
def test_texts_are_one_printable_line_of_a_bounded_length(field: str):
    progress = pb.Progress(**{field: "a\nforged \x1b[31m" + "x" * MAX_MEMBER_TEXT})
    text = getattr(_bounded(progress), field)
    assert text.startswith(r"a\nforged \x1b[31mx")
    assert len(text) == MAX_MEMBER_TEXT
