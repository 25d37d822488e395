"""The record of steps by a clock of the test: times add up, and each number is of its step."""

from __future__ import annotations

from pathlib import Path

from ps_worker.recording import columns
from ps_worker.recording.recorder import StepRecorder, StepTotals

HEADER = columns.RecordHeader(
    unix_s=5.0, job="job", worker=2, incarnation=7, consistency="asp", num_workers=3, host="here"
)


class World:
    def __init__(self, folder: Path, **options: object) -> None:
        self.now_s = self.used_s = 0.0
        self.said: list[str] = []
        self.folder = folder
        self.recorder = StepRecorder(
            folder, warn=self.said.append, clock=lambda: self.now_s, unix=lambda: 5.0, **options
        )  # type: ignore[arg-type]
        self.totals = StepTotals()

    def use(self) -> float:
        self.used_s += 0.25
        return self.used_s

    def step(self, clock: int, *, compute_s: float = 1.0, push_s: float = 0.5, wait_s: float = 2.0) -> None:
        """Without overlap: after backward the step pushes, asks, and waits for weights."""
        recorder = self.recorder
        recorder.batch()
        self.now_s += compute_s
        recorder.called()
        recorder.sending(clock, self.totals)
        self.now_s += push_s
        recorder.asked()
        self.now_s += wait_s
        totals = self.totals
        self.totals = StepTotals(
            waited_s=totals.waited_s + wait_s, bytes_up=totals.bytes_up + 8, bytes_down=totals.bytes_down + 16
        )
        recorder.stepped(32)

    def ack(self, clock: int, read: int, applied: int | None, gap: int = 1, **said: bool) -> None:
        said = {"dropped": False, "abstained": False} | said
        self.recorder.acknowledged(clock, gap=gap, read=read, applied=applied, **said)

    def records(self, name: str = "job.worker-2.7.jsonl") -> list[columns.StepRecord]:
        self.recorder.close(self.totals)
        lines = (self.folder / name).read_text().splitlines(keepends=True)
        assert columns.decode_header(lines[0]).unix_s == 5.0
        return [columns.decode(line) for line in lines[1:]]


def test_the_parts_of_a_step_add_up_to_it_and_steps_follow_each_other(tmp_path: Path):
    world = World(tmp_path)
    world.recorder.enter(HEADER)
    world.step(0, compute_s=1.0, push_s=0.5, wait_s=2.0)
    world.recorder.pulled(0, 0.25)
    world.recorder.pulled(0, 0.75)
    world.step(1, compute_s=3.0, push_s=0.25, wait_s=1.0)
    first, second = world.records()
    assert (first.started_s, first.ended_s, second.started_s, second.ended_s) == (0.0, 3.5, 3.5, 7.75)
    assert (first.compute_s, first.push_s, first.gate_s, first.pull_s) == (1.0, 0.5, 0.75, 1.25)
    assert (second.compute_s, second.push_s, second.gate_s, second.pull_s) == (3.0, 0.25, None, 1.0)
    assert [(it.step, it.clock, it.samples, it.bytes_up, it.bytes_down) for it in (first, second)] == [
        (0, 0, 32, 8, 16),
        (1, 1, 32, 8, 16),
    ]


def test_processor_time_is_of_its_step_and_begins_anew_with_an_incarnation(tmp_path: Path):
    world = World(tmp_path)
    world.recorder = StepRecorder(tmp_path, warn=world.said.append, unix=lambda: 5.0, used=world.use)
    world.used_s = 100.0
    world.recorder.enter(HEADER)
    for clock in range(3):
        world.step(clock)
    assert [it.cpu_s for it in world.records()] == [0.5] * 3
    assert [it.compute_cpu_s for it in world.records()] == [0.25] * 3


def test_weights_that_arrive_in_the_next_forward_end_the_step(tmp_path: Path):
    world = World(tmp_path)
    world.recorder.enter(HEADER)
    world.step(0, wait_s=0.0)
    world.now_s += 4.0
    world.recorder.pulled(0, None)
    world.step(1)
    first, second = world.records()
    assert first.ended_s == second.started_s == 5.5


def test_tau_is_that_of_the_stalest_partition_and_unknown_where_no_ack_says_it(tmp_path: Path):
    world = World(tmp_path)
    world.recorder.enter(HEADER)
    world.step(0)
    world.ack(0, 4, 5, gap=1)
    world.ack(0, 2, 9, gap=3)
    world.ack(0, 6, 8, gap=2)
    world.ack(0, 8, None, gap=2, dropped=True)
    world.ack(0, 0, None, gap=2, abstained=True)
    world.recorder.resent(0)
    world.step(1)
    first, second = world.records()
    assert (first.version_read, first.version_applied, first.tau, first.gap) == (2, 9, 7, 3)
    assert (first.dropped, first.abstained, first.retried) == (1, 1, 1)
    assert (second.version_read, second.version_applied, second.tau, second.gap) == (None, None, None, None)


def test_where_a_push_may_be_left_out_later_its_tau_is_not_known(tmp_path: Path):
    world = World(tmp_path, certain=False)
    world.recorder.enter(HEADER)
    world.step(0)
    world.ack(0, 4, 4)
    (record,) = world.records()
    assert (record.tau, record.gap) == (None, 1)


def test_a_metric_is_of_the_step_whose_batch_was_drawn_last(tmp_path: Path):
    world = World(tmp_path)
    world.recorder.enter(HEADER)
    world.step(0)
    world.recorder.log("loss", 0.5)  # behind step()
    world.recorder.batch()
    world.recorder.log("loss", 0.25)  # before backward()
    world.recorder.log("accuracy", float("nan"))
    world.step(1)
    first, second = world.records()
    assert (first.loss, dict(first.metrics)) == (0.5, {})
    assert second.loss == 0.25
    assert list(second.metrics) == ["accuracy"]


def test_a_second_optimizer_has_a_part_in_the_step_and_no_line(tmp_path: Path):
    world = World(tmp_path)
    world.recorder.enter(HEADER)
    world.step(0)
    world.step(0)
    world.step(1)
    assert [(it.clock, it.samples) for it in world.records()] == [(0, 64), (1, 32)]


def test_each_incarnation_has_a_file(tmp_path: Path):
    world = World(tmp_path)
    world.recorder.enter(HEADER)
    world.step(0)
    later = columns.RecordHeader(
        **{name: getattr(HEADER, name) for name in HEADER.__slots__} | {"incarnation": 9}
    )
    world.recorder.enter(later, 4)
    world.step(4)
    assert [it.clock for it in world.records("job.worker-2.9.jsonl")] == [4]
    assert [it.clock for it in world.records()] == [0]


def test_a_full_disk_costs_the_record_and_one_warning(tmp_path: Path):
    (tmp_path / columns.file_name(HEADER)).symlink_to("/dev/full")
    world = World(tmp_path)
    world.recorder.enter(HEADER)
    for step in range(5):
        world.step(step)
    world.recorder.close(world.totals)
    assert len(world.said) == 1
    assert "no step is recorded any more" in world.said[0]
