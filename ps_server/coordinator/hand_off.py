"""What a coordinator that is stopped hands to its successor: jobs, members, what they have not heard.

Taken when nothing is on its way to members or shards. Leases are not: who takes over grants full terms. What
each part hands on it says itself (`dump`, `load`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ps_server.coordinator.jobs.mailbox import Mailbox
from ps_server.coordinator.jobs.runner import JobRunner
from ps_server.coordinator.state_store import StateStore
from ps_wire.v1 import spec_pb2

Facts = dict[str, Any]  # JSON


def capture(rooms: Mapping[str, JobRunner], states: StateStore) -> tuple[Facts, dict[str, bytes]]:
    """All of it, as facts and as bytes by name."""
    blobs = {f"{job}/{name}": blob for job, name, blob in states.all()}
    return {"rooms": [_room_facts(room) for room in rooms.values()]}, blobs


def restore(
    facts: Facts,
    blobs: Mapping[str, bytes],
    *,
    room_of: Callable[[spec_pb2.Job], JobRunner],
    states: StateStore,
) -> None:
    """Goes on where the coordinator before has stopped."""
    for name, blob in blobs.items():
        job, _, key = name.partition("/")
        states.put(job, key, blob)
    for room_facts in facts["rooms"]:
        _restore_room(room_facts, room_of(spec_pb2.Job.FromString(bytes.fromhex(room_facts["spec"]))))


def _room_facts(room: JobRunner) -> Facts:
    return {
        "spec": room.job.spec.SerializeToString().hex(),
        **room.job.dump(),
        "mailboxes": [
            {"worker": worker, "incarnation": incarnation} | mailbox.hand_off()
            for (worker, incarnation), mailbox in room.mailboxes.items()
        ],
        "events": dict(room.events.counts),
    }


def _restore_room(facts: Facts, room: JobRunner) -> None:
    room.job.load(facts)
    room.events.counts.update(facts["events"])
    now_s = time.monotonic()
    for box in facts["mailboxes"]:
        key = box["worker"], box["incarnation"]
        room.mailboxes[key] = Mailbox.taken_over(box)
        holder = room.job.roster.members.get(key[0])
        if holder is not None and holder.incarnation == key[1] and holder.present:
            room.leases.grant(*key, holder.lease_s, now_s)
            room.heard_s[key[0]] = now_s
