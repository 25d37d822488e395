"""What the next table of a job waits for, and what is left of tables when all workers have gone."""

from __future__ import annotations

from ps_server.coordinator.jobs.member import Member, MemberState
from ps_server.coordinator.jobs.roster import Roster
from ps_server.coordinator.jobs.tables import JobTables, TableRecord
from tests.unit.ps_server.desk import table


def tables(*started: bool) -> JobTables:
    records = [TableRecord(table(number), started=it) for number, it in enumerate(started)]
    return JobTables("j", records)


def roster(**made: int) -> Roster:
    """Workers `w0=1`: number 0, which has made a table."""
    found = Roster("j", 4)
    for name, num_tables in made.items():
        number = int(name[1:])
        found.members[number] = Member(
            worker=number, incarnation=1, host="h", pid=1, state=MemberState.JOINED, num_tables=num_tables
        )
    return found


def test_those_who_must_be_there_are_named():
    """By number, or how many of any number."""
    assert tables(False).missing(roster(w0=1), range(2)) == ["worker 1 to join"]
    assert tables(False).missing(roster(w1=1), range(4)) == ["workers 0, 2, 3 to join"]
    assert tables(False).missing(roster(w0=1), range(0), 3) == ["2 more workers to join"]
    assert tables(False).missing(roster(w0=1, w2=1), range(0), 3) == ["1 more workers to join"]
    assert tables(False).missing(roster(w0=1, w2=1, w3=1), range(0), 3) == []


def test_those_who_have_not_made_it_are_named():
    """Of the first table that has not started."""
    assert tables(True, False).missing(roster(w0=2, w1=1), range(0)) == ["worker 1 to make table 1"]
    many = {f"w{number}": 1 for number in range(30)}
    first = ", ".join(str(number) for number in range(16))
    assert tables(True, False).missing(roster(**many), range(0)) == [
        f"workers {first} and 14 more to make table 1"
    ]
    assert tables(True, False).missing(roster(w0=2, w1=2), range(0)) == []
    assert tables(True, True).missing(roster(w0=1, w1=1), range(0)) == []


def test_tables_that_have_not_started_go_with_their_workers():
    """Whoever comes makes them again; what trains stays."""
    kept = tables(True, True, False, False)
    kept.suspend()
    assert [record.started for record in kept.records] == [True, True]
