"""What a coordinator that is stopped hands to its successor: jobs, members, what they have not heard.

Taken when nothing is on its way to members or shards. Leases are not: who takes over grants full terms. A
friend of `Job`; others hand on what they hold by themselves. `LEFT_OUT` and the lists of names are checked
against the classes by a test, so that whoever adds a field is asked here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ps_server.coordinator.jobs.job_life import JobLife
from ps_server.coordinator.jobs.mailbox import Mailbox
from ps_server.coordinator.jobs.member import JobState, Member, MemberState, TableRecord
from ps_server.coordinator.jobs.runner import JobRunner
from ps_server.coordinator.state_store import StateStore
from ps_wire.frames.messages import table_from_proto, table_to_proto
from ps_wire.v1 import spec_pb2

Facts = dict[str, Any]  # JSON

PLAIN = (  # fields of a job
    *("epoch", "has_final_state", "_any_finished", "_restored"),
    *("last_epoch", "stopped", "_newest_epoch"),
)
PAIRS = ("clocks", "_first_steps")  # of a job, as pairs: their keys are no texts
MEMBER = ("worker", "incarnation", "host", "pid", "reader", "num_tables", "late", "lease_s", "steps")
TABLE = ("opened", "loaded", "starting", "started")
LEFT_OUT = {
    JobLife: {"name", "consistency", "num_workers", "nonfinite", "min_workers"}  # in its spec
    | {"state", "shares", "collectives", "roster", "_tables", "_awaited", "_uploaders"}  # by themselves below
    | {"ends"}
    | {"_broken"},  # those who were told have to be gone
    Member: {"state"} | {"enters", "taken"},  # who was about to enter does so at once; heartbeats say more
    TableRecord: {"spec", "asked"},
}


def capture(rooms: Mapping[str, JobRunner], states: StateStore) -> tuple[Facts, dict[str, torch.Tensor]]:
    """All of it, as facts and as bytes in tensors."""
    tensors = {
        f"{job}/{name}": torch.frombuffer(bytearray(blob), dtype=torch.uint8) if blob else _EMPTY
        for job, name, blob in states.all()
    }
    return {"rooms": [_room_facts(room) for room in rooms.values()]}, tensors


def restore(
    facts: Facts,
    tensors: Mapping[str, torch.Tensor],
    *,
    room_of: Callable[[spec_pb2.Job], JobRunner],
    states: StateStore,
) -> None:
    """Goes on where the coordinator before has stopped."""
    for name, blob in tensors.items():
        job, _, key = name.partition("/")
        states.put(job, key, bytes(blob.numpy().tobytes()))
    for room_facts in facts["rooms"]:
        _restore_room(room_facts, room_of(spec_pb2.Job.FromString(bytes.fromhex(room_facts["spec"]))))


_EMPTY = torch.empty(0, dtype=torch.uint8)


def _room_facts(room: JobRunner) -> Facts:
    job = room.job
    return {
        "spec": job.spec.SerializeToString().hex(),
        "state": job.state.value,
        "plain": {name: getattr(job, name) for name in PLAIN},
        "pairs": {name: _pairs(getattr(job, name)) for name in PAIRS},
        "shares": job.shares.hand_off(),
        "collectives": job.collectives.hand_off(),
        "ends": [[worker, _pairs(clocks)] for worker, clocks in job.ends.items()],
        "awaited": sorted(job._awaited),
        "uploaders": [
            asked.worker for asked in job._uploaders if asked is job.roster.members.get(asked.worker)
        ],
        "floor": job.roster.floor,
        "members": [
            {"state": member.state.value} | {name: getattr(member, name) for name in MEMBER}
            for member in job.roster.members.values()
        ],
        "tables": [
            {
                "spec": table_to_proto(record.spec).SerializeToString().hex(),
                "asked": None if record.asked is None else record.asked.worker,
                **{name: getattr(record, name) for name in TABLE},
            }
            for record in job._tables.records
        ],
        "mailboxes": [
            {"worker": worker, "incarnation": incarnation} | mailbox.hand_off()
            for (worker, incarnation), mailbox in room.mailboxes.items()
        ],
        "events": dict(room.events.counts),
    }


def _restore_room(facts: Facts, room: JobRunner) -> None:
    job = room.job
    job.state = JobState(facts["state"])
    for name, value in facts["plain"].items():
        setattr(job, name, value)
    job.clocks = dict(facts["pairs"]["clocks"])
    job._first_steps = {(table, worker): step for (table, worker), step in facts["pairs"]["_first_steps"]}
    job.shares.take_over(facts["shares"])
    if "collectives" in facts:  # this and `ends` a release before has not
        job.collectives.take_over(facts["collectives"])
    job._awaited = set(facts["awaited"])
    job.ends = {worker: dict(clocks) for worker, clocks in facts.get("ends", ())}
    job.roster.floor = facts["floor"]
    for known in facts["members"]:
        member = Member(**known | {"state": MemberState(known["state"])})
        job.roster.members[member.worker] = member
    job._uploaders.extend(job.roster.members[worker] for worker in facts["uploaders"])
    for table in facts["tables"]:
        spec = table_from_proto(spec_pb2.Table.FromString(bytes.fromhex(table["spec"])))
        asked = None if table["asked"] is None else job.roster.members.get(table["asked"])
        record = TableRecord(spec, asked=asked, **{name: table[name] for name in TABLE})
        job._tables.records.append(record)
    room.events.counts.update(facts["events"])
    now_s = time.monotonic()
    for box in facts["mailboxes"]:
        key = box["worker"], box["incarnation"]
        room.mailboxes[key] = Mailbox.taken_over(box)
        holder = job.roster.members.get(key[0])
        if holder is not None and holder.incarnation == key[1] and holder.present:
            room.leases.grant(*key, holder.lease_s, now_s)
            room.heard_s[key[0]] = now_s


def _pairs(values: Mapping[Any, Any]) -> list[list[Any]]:
    return [[key, value] for key, value in values.items()]
