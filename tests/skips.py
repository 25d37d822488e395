"""A plugin of pytest: at the end of a run, why tests were skipped, each reason once with its count."""

from __future__ import annotations

from collections import Counter
from typing import Any


def reasons(reports: list[Any]) -> Counter[str]:
    """How many tests were skipped for which reason."""
    return Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line per reason, the most frequent first."""
    counts = reasons(terminalreporter.stats.get("skipped", []))
    if counts:
        terminalreporter.ensure_newline()
    for reason, count in counts.most_common():
        terminalreporter.write_line(f"skipped {count}: {reason}")
