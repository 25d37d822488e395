"""Parts of norms as messages, and back."""

from __future__ import annotations

from ps_server.clipping import Norm
from ps_wire.v1 import coordinator_pb2 as pb


def norm_to_proto(norm: Norm) -> pb.Norm:
    """A norm as a message."""
    return pb.Norm(
        job=norm.job,
        table=norm.table,
        opening=norm.opening,
        step=norm.step,
        squares=norm.squares,
        epoch=norm.epoch,
    )


def norm_from_proto(message: pb.Norm) -> Norm:
    """The norm in a message."""
    return Norm(
        job=message.job,
        table=message.table,
        opening=message.opening,
        step=message.step,
        squares=message.squares,
        epoch=message.epoch,
    )
