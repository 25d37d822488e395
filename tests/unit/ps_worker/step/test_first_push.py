"""What a worker hears before the first push of a step leaves: each of it once a step."""

from __future__ import annotations

from ps_worker.step.first_push import FirstPush
from tests.component.hosts import Host


class Listening(Host):
    """A worker that notes what it is told of pushes."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def before_step(self, step: int) -> None:
        self.heard.append(f"step {step}")

    def begin_push(self, table: int) -> None:
        self.heard.append(f"table {table}")


def test_a_worker_hears_once_of_a_step_and_once_of_each_table():
    host = Listening()
    weights = iter([2.0, 3.0])
    first = FirstPush(host, step=lambda: 4, weight=lambda: next(weights))
    for table in (0, 1, 0, 1):
        assert first.weigh() == 2.0
        first.begin(table, 4)
    assert host.heard == ["step 5", "table 0", "table 1"]
    first.end()
    assert first.weigh() == 3.0


def test_a_step_that_is_come_back_to_begins_once_more():
    host = Listening()
    first = FirstPush(host, step=lambda: 4)
    first.begin(0, 4)
    first.reenter()
    first.begin(0, 4)
    assert host.heard == ["table 0", "table 0"]
