"""Between the values of `table` and their protobuf messages; what arrives is checked by the values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from ps_wire.errors import FrameMalformed, PsError, UsageError, facts_to_json, from_wire
from ps_wire.spec.epoch_use import EpochUse
from ps_wire.spec.epochs import EpochPiece, PieceMark
from ps_wire.spec.table import (
    BucketOptions,
    Hyperparameters,
    OptimizerSpec,
    ParameterSpec,
    TableSpec,
    Value,
    check_count,
)
from ps_wire.text import one_line
from ps_wire.v1 import coordinator_pb2 as coordinator
from ps_wire.v1 import spec_pb2 as spec

# What protobuf raises for bytes that are no message: the second where it is in Python, for text that is none.
NO_MESSAGE = (DecodeError, UnicodeDecodeError)
MAX_COUNT = (1 << 64) - 1
STATE_PART_BYTES = 1 << 20
AnyMessage = TypeVar("AnyMessage", bound=Message)


def state_parts(blob: bytes) -> Iterator[bytes]:
    """State outside tables in parts that a message each carries: at least one, which may be empty."""
    for start in range(0, max(len(blob), 1), STATE_PART_BYTES):
        yield blob[start : start + STATE_PART_BYTES]


def parse_message(cls: type[AnyMessage], data: bytes) -> AnyMessage:
    """A message from bytes of a peer.

    Raises:
        FrameMalformed: the bytes are no such message.
    """
    message = cls()
    try:
        message.ParseFromString(data)
    except NO_MESSAGE as error:
        raise FrameMalformed(f"not a {cls.__name__}: {error}") from None
    return message


def value_to_proto(value: Value) -> spec.Value:
    """One hyper-parameter's value as a message."""
    if value is None:
        return spec.Value(none=True)
    if isinstance(value, bool):
        return spec.Value(flag=value)
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise UsageError(f"a hyper-parameter of {value} does not fit into 64 bits")
        return spec.Value(integer=value)
    if isinstance(value, float):
        return spec.Value(number=value)
    if isinstance(value, str):
        return spec.Value(text=value)
    return spec.Value(numbers=spec.Numbers(values=value))


def value_from_proto(message: spec.Value) -> Value:
    """The value in a message.

    Raises:
        FrameMalformed: the message holds none.
    """
    kind = message.WhichOneof("kind")
    if kind is None:
        raise FrameMalformed("a hyper-parameter without a value")
    if kind == "none":
        return None
    if kind == "numbers":
        return tuple(message.numbers.values)
    value: Value = getattr(message, kind)
    return value


def hyperparameters_to_proto(value: Hyperparameters) -> spec.Hyperparameters:
    """All hyper-parameters as a message; equal ones give equal bytes."""
    return spec.Hyperparameters(
        groups=[
            spec.Group(
                hyperparameters=[
                    spec.Hyperparameter(name=name, value=value_to_proto(item)) for name, item in group
                ]
            )
            for group in value.groups
        ]
    )


def hyperparameters_from_proto(message: spec.Hyperparameters) -> Hyperparameters:
    """The hyper-parameters in a message."""
    return Hyperparameters(
        tuple(
            tuple((pair.name, value_from_proto(pair.value)) for pair in group.hyperparameters)
            for group in message.groups
        )
    )


def table_to_proto(table: TableSpec) -> spec.Table:
    """A table as a message."""
    return spec.Table(
        number=table.number,
        parameters=[
            spec.Parameter(
                name=parameter.name,
                shape=parameter.shape,
                dtype=parameter.dtype,
                group=parameter.group,
                device=parameter.device,
                stride=parameter.stride,
            )
            for parameter in table.parameters
        ],
        optimizer=spec.Optimizer(
            name=table.optimizer.name,
            hyperparameters=hyperparameters_to_proto(table.optimizer.hyperparameters),
        ),
        buckets=spec.Buckets(
            bucket_bytes=table.buckets.bucket_bytes,
            first_bucket_bytes=table.buckets.first_bucket_bytes,
            partition_bytes=table.buckets.partition_bytes,
        ),
        clip_grad_norm=table.clip_grad_norm,
        stages=table.stages,
    )


def table_from_proto(message: spec.Table) -> TableSpec:
    """The table in a message.

    Raises:
        ParameterUnsupported, UsageError: a value in it is not valid; named as for the one who typed it.
    """
    check_count(message.number, len(message.parameters))
    return TableSpec(
        number=message.number,
        parameters=tuple(
            ParameterSpec(
                name=parameter.name,
                shape=tuple(parameter.shape),
                dtype=parameter.dtype,
                group=parameter.group,
                device=parameter.device,
                stride=tuple(parameter.stride),
            )
            for parameter in message.parameters
        ),
        optimizer=OptimizerSpec(
            name=message.optimizer.name,
            hyperparameters=hyperparameters_from_proto(message.optimizer.hyperparameters),
        ),
        buckets=BucketOptions(
            bucket_bytes=message.buckets.bucket_bytes,
            first_bucket_bytes=message.buckets.first_bucket_bytes,
            partition_bytes=message.buckets.partition_bytes,
        ),
        clip_grad_norm=message.clip_grad_norm if message.HasField("clip_grad_norm") else None,
        stages=tuple(message.stages),
    )


def refused_to_proto(error: PsError) -> coordinator.Refused:
    """An error as a message."""
    message = one_line(error.message)  # what a peer has said may be in it, megabytes of it
    return coordinator.Refused(error=type(error).__name__, message=message, facts=facts_to_json(error))


def refused_from_proto(message: coordinator.Refused) -> PsError:
    """The error in a message."""
    return from_wire(message.error, message.message, message.facts)


def epoch_use_to_proto(use: EpochUse) -> coordinator.EpochUse:
    """An account of an epoch as a message; counts that workers have made up are cut to what it holds."""
    return coordinator.EpochUse(
        loader=use.loader,
        epoch=use.epoch,
        samples=use.samples,
        used=min(use.used, MAX_COUNT),
        handed_on=min(use.handed_on, MAX_COUNT),
        over=use.over,
    )


def epoch_use_from_proto(message: coordinator.EpochUse) -> EpochUse:
    """The account in a message."""
    return EpochUse(
        loader=message.loader,
        epoch=message.epoch,
        samples=message.samples,
        used=message.used,
        handed_on=message.handed_on,
        over=message.over,
    )


def piece_to_proto(piece: EpochPiece) -> coordinator.Piece:
    """A piece of an epoch as a message."""
    return coordinator.Piece(
        epoch=piece.epoch,
        place=piece.place,
        ranks=piece.ranks,
        count=piece.count,
        first=piece.first,
        own=piece.own,
        left_over=piece.left_over,
    )


def piece_from_proto(message: coordinator.Piece) -> EpochPiece:
    """The piece in a message."""
    return EpochPiece(
        epoch=message.epoch,
        place=message.place,
        ranks=message.ranks,
        count=message.count,
        first=message.first,
        own=message.own,
        left_over=message.left_over,
    )


def mark_to_proto(mark: PieceMark) -> coordinator.Mark:
    """How far a worker has come, as a message."""
    return coordinator.Mark(step=mark.step, samples=mark.samples, pace=mark.pace)


def mark_from_proto(message: coordinator.Mark) -> PieceMark:
    """How far a worker has come, by a message."""
    return PieceMark(step=message.step, samples=message.samples, pace=message.pace)
