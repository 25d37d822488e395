"""Random lives of a job: honest workers that come, work, go and vanish at any moment; no life gets stuck."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ps_server.coordinator.jobs.member import Member, MemberState
from ps_server.coordinator.jobs.phase import JobState
from ps_server.shard.shard import Shard
from ps_wire.errors import PsError, ServerNotReady
from tests.unit.ps_server.desk import LAST_WORDS, Desk

MAX_TABLES = 2
CHOICES = st.lists(st.integers(0, 2**16), min_size=5, max_size=60)
BEGINS = st.sampled_from(["empty", "running", "suspended", "ended"])


class Walk:
    """A desk and the workers at it; each event is one call."""

    def __init__(self, desk: Desk, begin: str, failures: int) -> None:
        self.desk = desk
        self.failures = failures
        self.done: set[tuple[str, int, int, int]] = set()
        if begin != "empty":
            self._begin(desk.start(), begin)
        desk.held = True

    def _begin(self, members: list[Member], begin: str) -> None:
        self.done.add(("upload", 0, 1, 0))
        if begin == "suspended":
            self.desk.lose(*members)
        if begin == "ended":
            self.desk.finish(*members)
            self.desk.upload_final(members[0])
            self.done |= {("finish", member.worker, 1, 0) for member in members}
            self.done.add(("upload_final", 0, 1, 0))

    # -- what can happen next --------------------------------------------------------------------------

    def events(self) -> list:
        job = self.desk.job
        found = [self.join]
        if self.desk.under_way:
            found += [self.carry_out] * 4
            if self.failures:
                found.append(self.fail)
        for member in job.roster.present():
            found += [lambda m=member: self.desk.lose(m)]
            if self._quiet(member):
                continue
            found += [lambda m=member: self.leave(m)]
            found += self._works(member) * 3
        return found

    def _quiet(self, member: Member) -> bool:
        """Whether it has said its last, or heard it."""
        return self._did(member, "leave") or self._heard(member)[-1:] in ([word] for word in LAST_WORDS)

    def _works(self, member: Member) -> list:
        heard = self._heard(member)
        started = heard.count("table_started")
        if "joined" not in heard or self._did(member, "finish"):
            final = "upload_final" in heard and not self._did(member, "upload_final")
            return (
                [lambda: self.once(member, "upload_final", self.desk.upload_final, member)] if final else []
            )
        uploads = [
            lambda n=n: self.once(member, "upload", self.desk.upload, member, n, number=n)
            for n in range(member.num_tables)
            if self._asked(member, n) and not self._did(member, "upload", n)
        ]
        if uploads:
            return uploads
        if started < member.num_tables:
            return []
        next_table = [lambda: self.make(member)] if member.num_tables < MAX_TABLES else []
        return [*next_table, lambda: self.once(member, "finish", self.desk.finish, member)]

    def _heard(self, member: Member) -> list[str]:
        return self.desk.kinds(member)

    def _asked(self, member: Member, number: int) -> bool:
        told = self.desk.told[member.worker, member.incarnation]
        made = [reply.table_made for reply in told if reply.WhichOneof("kind") == "table_made"]
        return any(item.table == number and item.upload for item in made)

    def _did(self, member: Member, what: str, number: int = 0) -> bool:
        return (what, member.worker, member.incarnation, number) in self.done

    # -- events ----------------------------------------------------------------------------------------

    def once(self, member: Member, what: str, call, *arguments, number: int = 0) -> None:
        self.done.add((what, member.worker, member.incarnation, number))
        call(*arguments)

    def join(self) -> None:
        try:
            self.desk.join()
        except PsError:
            here = self.desk.job.roster.present() or self.desk.under_way
            assert here, "with nobody here and nothing to do, whoever comes is let in"

    def make(self, member: Member) -> None:
        try:
            self.desk.make(member, member.num_tables)
        except PsError:  # a resumed or ended job has the tables that it has
            assert member.num_tables == self.desk.job.num_tables

    def leave(self, member: Member) -> None:
        self.once(member, "leave", self.desk.leave, member)

    def carry_out(self) -> None:
        self.desk.carry_out()

    def fail(self) -> None:
        self.failures -= 1
        self.desk.carry_out(ServerNotReady("shard 1 is gone"))


def check(desk: Desk) -> None:
    """What holds after every event."""
    job = desk.job
    for (worker, incarnation), replies in desk.told.items():
        kinds = [reply.WhichOneof("kind") for reply in replies]
        assert job.roster.members[worker].incarnation >= incarnation
        assert not set(kinds[:-1]) & set(LAST_WORDS), "nothing follows the last words"
        assert kinds.count("joined") <= 1
        said = [reply.table_made for reply in replies if reply.WhichOneof("kind") == "table_made"]
        made = list(dict.fromkeys(reply.table for reply in said))
        asked = [reply.table for reply in said if reply.upload]
        assert len(said) - len(made) <= len(asked) == len(set(asked)), "said again where it is to upload"
        begun = [
            reply.table_started.table for reply in replies if reply.WhichOneof("kind") == "table_started"
        ]
        assert made == list(range(len(made))), "each table is made once, in order"
        assert begun == made[: len(begun)], "and starts once, after it was made"
    if desk.under_way or job.roster.training():
        return
    if job.roster.present():
        assert job.state is JobState.ENDED or any(
            {"upload_final", "ended"} & set(desk.kinds(member)) for member in job.roster.finished()
        )
    else:
        assert job.forgotten or job.state in (JobState.SUSPENDED, JobState.ENDED)


def live(desk: Desk, begin: str, choices: list[int], failures: int = 0) -> None:
    """One life, then the end of all who are there."""
    walk = Walk(desk, begin, failures)
    for choice in choices:
        events = walk.events()
        events[choice % len(events)]()
        check(desk)
    desk.held = False
    desk.settle()
    check(desk)
    for member in desk.job.roster.present():
        desk.lose(member)
        check(desk)


def take_up(desk: Desk) -> None:
    """All workers come again: they run where the job can run, and read where it has ended."""
    ended = desk.job.state is JobState.ENDED
    members = [desk.join() for _ in range(desk.job.num_workers)]
    for number in range(desk.job.num_tables if ended else max(desk.job.num_tables, 1)):
        for member in members:
            desk.make(member, number)
        if desk.last(members[0], "table_made").table_made.upload:
            desk.upload(members[0], number)
        assert all(desk.kinds(member).count("table_started") == number + 1 for member in members)
    assert desk.job.state is (JobState.ENDED if ended else JobState.RUNNING)
    desk.finish(*members)
    if not ended:
        desk.upload_final(members[0])
    assert all(desk.kinds(member)[-1] == "ended" for member in members)
    assert all(m.state in (MemberState.FINISHED, MemberState.JOINED) for m in members)


@given(st.integers(1, 3), BEGINS, CHOICES)
def test_no_life_of_a_job_gets_stuck(num_workers, begin, choices):
    """Whatever came before, with nobody here all workers can come and run, or read; real shards agree."""
    shards = [Shard(index=index, num_shards=2, memory_limit_bytes=None) for index in range(2)]
    desk = Desk(num_workers, shards=shards)
    live(desk, begin, choices)
    take_up(desk)
    assert not desk.refusals


@settings(max_examples=500)
@given(st.integers(1, 3), BEGINS, CHOICES, st.integers(1, 3))
def test_nor_does_one_whose_shards_fail(num_workers, begin, choices, failures):
    """Orders that are refused, at any moment, end in everybody being told and gone."""
    desk = Desk(num_workers)
    live(desk, begin, choices, failures)
    take_up(desk)
