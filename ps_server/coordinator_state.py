"""What a coordinator that is stopped hands to its successor: jobs, members, what they have not heard.

Taken when nothing is on its way to members or shards. Leases are not: who takes over grants full terms. A
friend of `Job`, `Room` and `Mailbox`. `LEFT_OUT` and the lists of names are checked against the classes by a
test, so that whoever adds a field is asked here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch

from ps_server.dealt import Dealt, Mark
from ps_server.job_life import JobLife
from ps_server.mailbox import Mailbox
from ps_server.member import JobState, Member, MemberState, TableRecord
from ps_server.room import Room
from ps_server.shares import Epoch, Shares
from ps_server.state_store import StateStore
from ps_wire.epoch_use import EpochUse
from ps_wire.messages import table_from_proto, table_to_proto
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2

Facts = dict[str, Any]  # JSON

PLAIN = ("epoch", "has_final_state", "_any_finished", "_restored")  # fields of a job
PAIRS = ("clocks", "_first_steps")  # of a job, as pairs: their keys are no texts
MEMBER = ("worker", "incarnation", "host", "pid", "reader", "num_tables", "late", "lease_s", "steps")
EPOCH = ("samples", "used", "handed_on")
TABLE = ("opened", "loaded", "starting", "started")
LEFT_OUT = {
    JobLife: {"name", "consistency", "num_workers", "nonfinite", "min_workers"}  # in its spec
    | {"state", "shares", "roster", "_tables", "_awaited", "_uploaders"}  # by themselves below
    | {"_broken"},  # those who were told have to be gone
    Shares: {"_epochs", "_dealt", "_training", "_live", "_ended"},
    Epoch: {"owners", "starts", "begun", "left"},
    Member: {"state"},
    TableRecord: {"spec", "asked"},
}


def capture(rooms: Mapping[str, Room], states: StateStore) -> tuple[Facts, dict[str, torch.Tensor]]:
    """All of it, as facts and as bytes in tensors."""
    tensors = {}
    for job, blobs in states._blobs.items():
        for name, blob in blobs.items():
            tensors[f"{job}/{name}"] = (
                torch.frombuffer(bytearray(blob), dtype=torch.uint8) if blob else _EMPTY
            )
    facts = {
        "rooms": [_room_facts(room) for room in rooms.values()],
    }
    return facts, tensors


def restore(
    facts: Facts,
    tensors: Mapping[str, torch.Tensor],
    *,
    room_of: Callable[[spec_pb2.Job], Room],
    states: StateStore,
) -> None:
    """Goes on where the coordinator before has stopped."""
    for name, blob in tensors.items():
        job, _, key = name.partition("/")
        states.put(job, key, bytes(blob.numpy().tobytes()))
    for room_facts in facts["rooms"]:
        _restore_room(room_facts, room_of(spec_pb2.Job.FromString(bytes.fromhex(room_facts["spec"]))))


_EMPTY = torch.empty(0, dtype=torch.uint8)


def _room_facts(room: Room) -> Facts:
    job = room.job
    return {
        "spec": job.spec.SerializeToString().hex(),
        "state": job.state.value,
        "plain": {name: getattr(job, name) for name in PLAIN},
        "pairs": {name: _pairs(getattr(job, name)) for name in PAIRS},
        "shares": _shares_facts(job.shares),
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
        "mailboxes": [_mailbox_facts(*key, mailbox) for key, mailbox in room.mailboxes.items()],
        "events": dict(room.events.counts),
    }


def _restore_room(facts: Facts, room: Room) -> None:
    job = room.job
    job.state = JobState(facts["state"])
    for name, value in facts["plain"].items():
        setattr(job, name, value)
    job.clocks = dict(facts["pairs"]["clocks"])
    job._first_steps = {(table, worker): step for (table, worker), step in facts["pairs"]["_first_steps"]}
    _restore_shares(facts["shares"], job.shares)
    job._awaited = set(facts["awaited"])
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
        mailbox = room.mailboxes[key] = Mailbox(
            session=bytes.fromhex(box["session"]), number=box["number"], taken=box["taken"]
        )
        mailbox._kept.extend(pb.MemberReply.FromString(bytes.fromhex(reply)) for reply in box["kept"])
        holder = job.roster.members.get(key[0])
        if holder is not None and holder.incarnation == key[1] and holder.present:
            room.leases.grant(*key, holder.lease_s, now_s)
            room.heard_s[key[0]] = now_s


def _shares_facts(shares: Shares) -> Facts:
    return {
        "epochs": [
            [
                *key,
                _pairs(epoch.owners),
                _pairs(epoch.starts),
                sorted(epoch.begun),
                epoch.left,
                {name: getattr(epoch, name) for name in EPOCH},
            ]
            for key, epoch in shares._epochs.items()
        ],
        "dealt": [
            [*key, incarnation, [asdict(piece) for piece in pieces]]
            for key, (incarnation, pieces) in shares._dealt.items()
        ],
        "training": sorted(shares._training),
        "live": [list(key) for key in shares._live],
        "ended": [asdict(use) for use in shares._ended],
    }


def _restore_shares(facts: Facts, shares: Shares) -> None:
    for loader, number, owners, starts, begun, left, plain in facts["epochs"]:
        shares._epochs[loader, number] = Epoch(
            dict(owners), starts=dict(starts), begun=set(begun), left=[(a, b) for a, b in left], **plain
        )
    for loader, worker, incarnation, pieces in facts["dealt"]:
        marked = [Dealt(**piece | {"marks": [Mark(**mark) for mark in piece["marks"]]}) for piece in pieces]
        shares._dealt[loader, worker] = incarnation, marked
    shares._training.update(facts["training"])
    shares._live.update(dict.fromkeys(facts["live"]))
    shares._ended.extend(EpochUse(**use) for use in facts["ended"])


def _mailbox_facts(worker: int, incarnation: int, mailbox: Mailbox) -> Facts:
    return {
        "worker": worker,
        "incarnation": incarnation,
        "session": mailbox.session.hex(),
        "number": mailbox._number,
        "taken": mailbox.taken,
        "kept": [reply.SerializeToString().hex() for reply in mailbox._kept],
    }


def _pairs(values: Mapping[Any, Any]) -> list[list[Any]]:
    return [[key, value] for key, value in values.items()]
