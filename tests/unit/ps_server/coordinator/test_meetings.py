"""Meetings of ranks: complete when all have come; who is missing, differs or is there twice is named."""

from __future__ import annotations

import asyncio

import pytest

from ps_server.coordinator.meetings import (
    KEPT_S,
    MAX_MEETINGS,
    MAX_WORKER,
    SILENT_S,
    Guest,
    Held,
    Meetings,
)
from ps_wire.errors import ConfigurationRefused, JobFull, JobMismatch, UsageError, WorkerNumberTaken


def guest(rank: int, size: int = 2, process: str = "", host: str = "") -> Guest:
    return Guest(
        rank=rank,
        size=size,
        host=host or f"host{rank}",
        machine="m",
        process=process or f"process{rank}",
        address="" if rank else "127.0.0.1:1",
    )


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def test_all_are_answered_when_the_last_has_come() -> None:
    meetings = Meetings(Clock())
    waiting = asyncio.create_task(meetings.meet("job", 0, guest(1), wait_s=60))
    await asyncio.sleep(0)

    last = await meetings.meet("job", 0, guest(0))

    assert (await waiting) is last
    assert [one.host for one in last.guests] == ["host0", "host1"]
    assert await meetings.meet("job", 0, guest(1)) is last  # one that has not heard of it asks again


async def test_who_is_missing_is_named_with_the_hosts_of_those_who_came() -> None:
    meeting = await Meetings(Clock()).meet("job", 0, guest(1, size=4), wait_s=0)

    assert not meeting.complete.is_set()
    assert meeting.missing() == "rank 0, 2, 3 of 4; here: rank 1 on host1"


async def test_workers_and_jobs_meet_by_themselves() -> None:
    meetings = Meetings(Clock())
    for job, worker in (("a", 0), ("a", 1), ("b", 0)):
        meeting = await meetings.meet(job, worker, guest(0), wait_s=0)
        assert not meeting.complete.is_set()


async def test_two_live_processes_with_one_rank_are_refused_and_the_first_is_named() -> None:
    meetings = Meetings(Clock())
    await meetings.meet("job", 0, guest(1, host="first"), wait_s=0)

    with pytest.raises(WorkerNumberTaken, match="a live process on first is rank 1"):
        await meetings.meet("job", 0, guest(1, process="other"), wait_s=0)


async def test_one_that_has_stopped_asking_makes_room() -> None:
    clock = Clock()
    meetings = Meetings(clock)
    await meetings.meet("job", 0, guest(1, process="dead"), wait_s=0)
    clock.now_s += SILENT_S + 1

    meeting = await meetings.meet("job", 0, guest(1, process="new"), wait_s=0)

    assert [one.process for one in meeting.guests] == ["new"]


async def test_one_that_comes_to_a_group_that_trains_is_told_so_and_refused_when_that_does_not_end() -> None:
    """Its processes may be about to end: then they form it again with this one."""
    clock = Clock()
    meetings = Meetings(clock)
    trains: list[Held] = [Held(holder="worker 3 (host a, pid 7)", lease_s=10)]

    def held() -> Held | None:
        return trains[0] if trains else None

    for _ in range(5):  # for two leases
        meeting = await meetings.meet("job", 3, guest(1), wait_s=0, held=held)
        assert "here: rank 1 on host1; worker 3 (host a, pid 7) trains" in meeting.missing(held())
        clock.now_s += 5
    with pytest.raises(WorkerNumberTaken, match=r"worker 3 \(host a, pid 7\) trains, and has its rank 1"):
        await meetings.meet("job", 3, guest(1), wait_s=0, held=held)

    await meetings.meet("job", 3, guest(1), wait_s=0, held=held)  # comes anew
    trains[0] = Held(holder="worker 3", lease_s=0)  # it may have gone: nobody would know
    for _ in range(6):
        clock.now_s += 5
        await meetings.meet("job", 3, guest(1), wait_s=0, held=held)
    trains.clear()
    clock.now_s += 2
    meeting = await meetings.meet("job", 3, guest(0), wait_s=0, held=held)
    assert meeting.complete.is_set()


async def test_ranks_of_groups_of_different_size_are_refused() -> None:
    meetings = Meetings(Clock())
    await meetings.meet("job", 0, guest(0, size=4), wait_s=0)

    with pytest.raises(JobMismatch, match="group of 2, and rank 0 on host0 of one of 4"):
        await meetings.meet("job", 0, guest(1, size=2), wait_s=0)


async def test_a_group_that_starts_again_meets_anew() -> None:
    meetings = Meetings(Clock())
    await meetings.meet("job", 0, guest(0), wait_s=0)
    first = await meetings.meet("job", 0, guest(1), wait_s=0)

    second = await meetings.meet("job", 0, guest(0, process="again"), wait_s=0)

    assert first.complete.is_set()
    assert not second.complete.is_set()


async def test_meetings_are_bounded_and_forgotten_when_nobody_asks_any_more() -> None:
    """Each job by itself: who may come to those of one keeps nobody from those of another."""
    clock = Clock()
    meetings = Meetings(clock)
    for worker in range(MAX_MEETINGS):
        await meetings.meet("job", worker, guest(0), wait_s=0)
    with pytest.raises(ConfigurationRefused, match=rf"{MAX_MEETINGS} groups of job job .*come again"):
        await meetings.meet("job", MAX_MEETINGS, guest(0), wait_s=0)
    await meetings.meet("job", 0, guest(1), wait_s=0)
    await meetings.meet("other", 0, guest(0), wait_s=0)

    clock.now_s += KEPT_S + 1
    await meetings.meet("job", MAX_MEETINGS, guest(0), wait_s=0)


async def test_the_ranks_of_a_job_that_meet_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However they are spread over its groups; who is there may ask again."""
    monkeypatch.setattr("ps_server.coordinator.meetings.MAX_RANKS", 4)
    meetings = Meetings(Clock())
    for worker, rank in ((0, 0), (0, 1), (1, 0), (1, 1)):
        await meetings.meet("job", worker, guest(rank, size=3), wait_s=0)

    with pytest.raises(ConfigurationRefused, match=r"4 ranks of job job .*come again"):
        await meetings.meet("job", 0, guest(2, size=3), wait_s=0)

    await meetings.meet("job", 1, guest(1, size=3), wait_s=0)
    await meetings.meet("other", 0, guest(2, size=3), wait_s=0)


async def test_groups_of_no_more_jobs_meet_than_a_service_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may name any job names no more of them than that."""
    monkeypatch.setattr("ps_server.coordinator.meetings.MAX_JOBS", 2)
    meetings = Meetings(Clock())
    for job in ("a", "b", "a"):
        await meetings.meet(job, 0, guest(0), wait_s=0)

    with pytest.raises(JobFull):
        await meetings.meet("c", 0, guest(0), wait_s=0)


@pytest.mark.parametrize(
    "given",
    [
        {"rank": 2},
        {"size": 1},
        {"size": 2000},
        {"host": "x" * 256},
        {"process": ""},
        {"address": ""},
        {"rank": 1, "address": "127.0.0.1:1"},
    ],
)
def test_what_no_rank_says_of_itself_is_refused(given: dict[str, object]) -> None:
    whole = {"rank": 0, "size": 2, "host": "h", "machine": "m", "process": "p", "address": "a:1"}

    with pytest.raises(UsageError):
        Guest(**{**whole, **given})  # type: ignore[arg-type]


async def test_a_worker_of_an_impossible_number_is_refused() -> None:
    with pytest.raises(UsageError, match="numbered from 0"):
        await Meetings(Clock()).meet("job", MAX_WORKER, guest(0), wait_s=0)
