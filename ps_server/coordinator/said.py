"""Bounds of what workers say over their streams, where it comes in: it is kept, and passed on."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.message import Message

from ps_server.rpc.errors import MAX_REQUEST_BYTES
from ps_wire.errors import FrameMalformed, FrameTooLarge, UsageError
from ps_wire.snapshot.json_fields import MAX_COUNT
from ps_wire.spec.table import MAX_PARAMETERS, MAX_TABLES, check_count
from ps_wire.v1 import spec_pb2

MAX_PAIRS = 1 << 20  # hyper-parameters of a table, over its param-groups


def check_size(message: Message) -> None:
    """Refuses a message that is larger than anything but a table.

    Raises:
        FrameTooLarge: it is.
    """
    if (size := message.ByteSize()) > MAX_REQUEST_BYTES:
        raise FrameTooLarge(
            f"a message of {size} bytes: over this stream one has at most {MAX_REQUEST_BYTES}, but for tables"
        )


def steps_by_table(said: Mapping[int, int]) -> dict[int, int]:
    """Table -> step, as a worker says where it is.

    Raises:
        FrameMalformed: no job has such tables, or no worker takes so many steps.
    """
    if len(said) > MAX_TABLES or max(said, default=0) >= MAX_TABLES:
        raise FrameMalformed(f"a worker says steps of its tables: there are at most {MAX_TABLES}")
    if max(said.values(), default=0) > MAX_COUNT:
        raise FrameMalformed(f"a worker says that it is at step {max(said.values())}: at most {MAX_COUNT}")
    return dict(said)


def check_counts(table: spec_pb2.Table) -> None:
    """Refuses a table with more of anything than one may have, before it waits to be read.

    An entry of two bytes takes eighty in memory: a message that has nothing else takes 670 MB.

    Raises:
        ParameterUnsupported, UsageError: it has.
    """
    check_count(table.number, len(table.parameters))
    groups, stages = len(table.optimizer.hyperparameters.groups), len(table.stages)
    if max(groups, stages) > MAX_PARAMETERS:
        raise UsageError(
            f"table {table.number} has {groups} param-groups, and stages of {stages} parameters: at most "
            f"{MAX_PARAMETERS} of each"
        )


def check_pairs(table: spec_pb2.Table) -> None:
    """Refuses one with too many hyper-parameters; with a group for each parameter this takes 0.2 s.

    Raises:
        UsageError: it has.
    """
    pairs = sum(len(group.hyperparameters) for group in table.optimizer.hyperparameters.groups)
    if pairs > MAX_PAIRS:
        raise UsageError(f"table {table.number} has {pairs} hyper-parameters: at most {MAX_PAIRS}")
