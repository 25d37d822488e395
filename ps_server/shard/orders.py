"""Orders of the coordinator, carried out on a shard: each kind's message is given to what it is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ps_server.agreement.messages import choice_from_proto
from ps_server.log import logger
from ps_server.shard import garbage
from ps_server.shard.restoring import restore
from ps_server.shard.shard import Shard
from ps_wire.errors import ConfigurationRefused, InternalError, PsError
from ps_wire.frames.messages import refused_to_proto, table_from_proto
from ps_wire.spec.nonfinite import parse as parse_nonfinite
from ps_wire.v1 import coordinator_pb2 as pb

Figures: TypeAlias = dict[int, int]


def execute_order(shard: Shard, order: pb.Order) -> pb.OrderDone:
    """Carries one order out and says how it went. Blocks while memory is allocated."""
    done = pb.OrderDone(number=order.number)
    try:
        kind = _kind_of(order)
        found = _ORDERS[kind](shard, getattr(order, kind), order.number)
    except PsError as error:
        done.refused.CopyFrom(refused_to_proto(error))
    except Exception as error:  # noqa: BLE001 - our bug: the coordinator must hear of it, not wait for ever
        logger.exception("bug while carrying out an order")
        done.refused.CopyFrom(refused_to_proto(InternalError.of(error)))
    else:
        if isinstance(found, pb.Saved):
            done.saved.CopyFrom(found)
            return done
        for number, clock in found.items():
            done.clocks[number] = clock
    return done


def _kind_of(order: pb.Order) -> str:
    """Raises `ConfigurationRefused` for one that this release does not know."""
    kind = order.WhichOneof("kind")
    if kind is None or kind not in _ORDERS:
        raise ConfigurationRefused(
            f"order {order.number} ({kind or 'of another release'}) is none that this shard carries out: "
            "install the same version on all servers"
        )
    return str(kind)


def _admit(shard: Shard, order: pb.AdmitMember, _number: int) -> Figures:
    shard.members.admit(
        job=order.job.name,
        consistency_text=order.job.consistency,
        num_workers=order.job.num_workers,
        worker=order.worker,
        incarnation=order.incarnation,
        clocks=dict(order.clocks),
        reader=order.reader,
        nonfinite=parse_nonfinite(order.job.nonfinite or "error"),
    )
    return {}


def _remove(shard: Shard, order: pb.RemoveMember, _number: int) -> Figures:
    return shard.members.remove(job=order.job, worker=order.worker, incarnation=order.incarnation)


def _fence(shard: Shard, order: pb.RemoveMember, _number: int) -> Figures:
    return shard.members.fence(job=order.job, worker=order.worker, incarnation=order.incarnation)


def _evict(shard: Shard, order: pb.EvictMember, _number: int) -> Figures:
    return shard.members.evict(
        job=order.job,
        worker=order.worker,
        incarnation=order.incarnation,
        limits=dict(order.limits),
        membership_epoch=order.epoch,
    )


def _prepare(shard: Shard, order: pb.EnterTable, _number: int) -> Figures:
    table = shard.table(order.job, order.table)
    return {order.table: table.prepare(order.worker, order.incarnation)}


def _enter(shard: Shard, order: pb.EnterTable, _number: int) -> Figures:
    shard.members.enter(
        job=order.job,
        table=order.table,
        worker=order.worker,
        incarnation=order.incarnation,
        step=order.step,
    )
    return {}


def _open_table(shard: Shard, order: pb.OpenTable, number: int) -> Figures:
    with garbage.PAUSE:
        shard.open_table(order.job, table_from_proto(order.table), number)
    return {}


def _restore(shard: Shard, order: pb.Restore, number: int) -> Figures:
    restore(
        shard,
        job=order.job,
        tables=[table_from_proto(table) for table in order.tables],
        snapshot=order.snapshot,
        incarnation=order.incarnation,
        step=order.step,
        opening=number,
    )
    return {}


def _start_table(shard: Shard, order: pb.StartTable, _number: int) -> Figures:
    shard.start_table(order.job, order.table)
    return {}


def _drop_job(shard: Shard, order: pb.DropJob, _number: int) -> Figures:
    before = shard.end(order.job)
    if before is not None:
        before.sever()  # what connections hold of it is free, also where a worker hangs
    return {}


def _decide(shard: Shard, order: pb.Decide, _number: int) -> Figures:
    shard.decide(order.job, order.table, opening=order.opening, step=order.step, scale=order.scale)
    return {}


def _choose(shard: Shard, order: pb.Choose | pb.CatchUp, _number: int) -> Figures:
    shard.choose(order.job, order.table, opening=order.opening, choice=choice_from_proto(order))
    return {}


def _hold_cut(shard: Shard, order: pb.Cut, _number: int) -> Figures:
    return shard.table(order.job, order.table).cut.hold((order.reader, order.number))


def _arm_cut(shard: Shard, order: pb.Cut, _number: int) -> Figures:
    shard.table(order.job, order.table).cut.arm((order.reader, order.number), dict(order.clocks))
    return {}


def _end_cut(shard: Shard, order: pb.Cut, _number: int) -> Figures:
    return {order.table: shard.table(order.job, order.table).cut.end((order.reader, order.number))}


def _save_cut(shard: Shard, order: pb.Save, _number: int) -> Figures:
    clocks = {table.table: dict(table.clocks) for table in order.tables}
    shard.snapshots.save(order.job, order.snapshot, order.number, clocks)
    return {}


def _end_save(shard: Shard, order: pb.Save, _number: int) -> Figures:
    shard.snapshots.end(order.job, snapshot=order.snapshot, manifest=order.manifest, keep=order.keep)
    return {}


def _look_save(shard: Shard, order: pb.Save, _number: int) -> pb.Saved:
    waiting, written, total, record, counters = shard.snapshots.figures(order.job, order.number)
    saved = pb.Saved(waiting=waiting, bytes=written, total_bytes=total)
    if record is not None:
        saved.file, saved.sha256, saved.bytes = record.name, record.sha256, record.bytes
        saved.counters = counters
    return saved


_ORDERS: Mapping[str, Callable[[Shard, Any, int], Figures | pb.Saved]] = {
    "admit": _admit,
    "remove": _remove,
    "fence": _fence,
    "evict": _evict,
    "prepare": _prepare,
    "enter": _enter,
    "open_table": _open_table,
    "start_table": _start_table,
    "restore": _restore,
    "drop_job": _drop_job,
    "decide": _decide,
    "choose": _choose,
    "catch_up": _choose,
    "hold_cut": _hold_cut,
    "arm_cut": _arm_cut,
    "end_cut": _end_cut,
    "save_cut": _save_cut,
    "look_save": _look_save,
    "end_save": _end_save,
}
