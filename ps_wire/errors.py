"""The error tree, and its one table to gRPC status codes.

    PsError (1)
    ├── UsageError (64)                what a person typed
    │   ├── ConsistencyInvalid
    │   └── AddressInvalid
    ├── Unavailable (69, retryable)    a server that does not answer, or not yet
    │   ├── ServerUnreachable
    │   ├── ServerNotReady
    │   ├── StartLimitExceeded
    │   ├── CallLimitExceeded      (a call that all workers make together)
    │   ├── ConnectionLost
    │   ├── RestoredTooOften
    │   └── CutAborted
    ├── ConfigurationRefused (78)      two parties that do not fit together
    │   ├── ProtocolMismatch
    │   ├── ShardMismatch
    │   ├── JobMismatch
    │   ├── TableMismatch
    │   ├── OptimizerUnsupported
    │   ├── ParameterUnsupported
    │   ├── ModelUnsupported
    │   ├── PipelineError          (a model that cannot be cut, or stages that do not fit together)
    │   ├── WorkerNumberTaken
    │   ├── JobFull
    │   ├── JobInUse               (a job that has live workers is not dropped)
    │   ├── MemoryLimitExceeded
    │   ├── Fenced
    │   ├── SnapshotMismatch       (a snapshot of another model, job or way of training)
    │   ├── TlsRefused             (retryable: files are replaced while processes run)
    │   └── TokenRefused
    ├── FrameRefused (1)               bytes that are no frame, or a frame out of place
    │   ├── FrameMalformed
    │   ├── FrameTooLarge
    │   ├── PayloadMismatch
    │   ├── PushOutOfOrder
    │   ├── StrangerRefused
    │   └── StaleIncarnation
    ├── SnapshotUnusable (65)
    │   ├── SnapshotMissing            there is none, or not that one
    │   ├── SnapshotCorrupt            a file is missing, truncated or not what was written
    │   └── SnapshotFormatUnsupported  written by an older or newer release
    ├── SnapshotFailed (1)             one could not be written; the job goes on
    ├── JobUnknown (1)                 the servers do not know this job, table or worker
    │   └── JobDropped                 a person has dropped the job
    ├── Evicted (75)                   a worker that was silent for longer than its lease
    │   └── RolledBack                 a job that went back to a snapshot
    ├── GroupBroken (75)               a group of ranks of which one has gone, or does something else
    ├── GradientChanged (1)            a gradient was touched after it had left
    ├── WeightsChanged (1)             a script wrote into weights that the servers hold
    ├── NonFiniteGradient (1)          a gradient held NaN or infinity, and the job takes none
    ├── HyperparametersDiffer (1)      a BSP step took those of another worker, and this one is strict
    └── InternalError (1)              our own bug, seen from the other side

An error crosses the wire as its class name, message and facts; the receiving end raises the same class.
This file knows no transport: status codes are their gRPC names.
"""

from __future__ import annotations

import json
from typing import ClassVar, TypeAlias

from ps_wire.text import one_line, parse_json

Fact: TypeAlias = str | int | float | None


class PsError(Exception):
    """Root of every error that this project raises on purpose.

    Attributes:
        facts: what the message is made of, for programs: names, numbers, addresses.
        retryable: whether the same call may succeed later.
        exit_code: what a command ends with.
    """

    retryable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, **facts: Fact) -> None:
        super().__init__(message)
        self.facts = facts

    @property
    def message(self) -> str:
        """The sentence that a person reads."""
        return str(self.args[0])


class UsageError(PsError):
    """A value that a person typed is not one of the valid ones."""

    exit_code = 64


class ConsistencyInvalid(UsageError):
    """A consistency spec that does not parse, or has a bound that makes no sense."""


class AddressInvalid(UsageError):
    """A server address that is not HOST:PORT."""


class Unavailable(PsError):
    """A server does not answer, or is not ready yet."""

    retryable = True
    exit_code = 69


class ServerUnreachable(Unavailable):
    """No connection to an address within the connect limit."""


class ServerNotReady(Unavailable):
    """The server runs but is not registered with its coordinator yet, or is stopping."""


class StartLimitExceeded(Unavailable):
    """The job did not start in time; the message says who was missing."""


class CallLimitExceeded(Unavailable):
    """A call that all workers make together was not made by all in time; the message says who was missing."""


class ConnectionLost(Unavailable):
    """A connection broke and could not be made again within the retry limit."""


class CutAborted(Unavailable):
    """A reader's consistent cut did not come about in time; the job goes on."""


class RestoredTooOften(Unavailable):
    """The job has gone back to snapshots as often as it may for now."""


class ConfigurationRefused(PsError):
    """Two parties that do not fit together; running again does not help."""

    exit_code = 78


class ProtocolMismatch(ConfigurationRefused):
    """The two ends speak different versions of the protocol."""


class ShardMismatch(ConfigurationRefused):
    """The list of servers has the wrong length or order."""


class JobMismatch(ConfigurationRefused):
    """A worker wants another consistency or size for a job that exists, or has other data than its others."""


class TableMismatch(ConfigurationRefused):
    """A worker's table differs from the one that the job has; the first difference is named."""


class OptimizerUnsupported(ConfigurationRefused):
    """The servers cannot run this optimizer on slices."""


class ParameterUnsupported(ConfigurationRefused):
    """A parameter whose dtype or layout the servers cannot hold."""


class ModelUnsupported(ConfigurationRefused):
    """A model that something else replicates or splits already."""


class PipelineError(ConfigurationRefused):
    """A model that cannot be cut into stages as it was asked, or stages that do not fit together."""


class WorkerNumberTaken(ConfigurationRefused):
    """Another live process holds this worker number."""


class JobFull(ConfigurationRefused):
    """More workers than the job was made for, or a job that has already started."""


class JobInUse(ConfigurationRefused):
    """A job that is to be dropped has live workers; they are named."""


class MemoryLimitExceeded(ConfigurationRefused):
    """The job does not fit into the server's memory limit."""


class Fenced(ConfigurationRefused):
    """A newer process has this server's place; this one writes nothing any more."""


class SnapshotMismatch(ConfigurationRefused):
    """A snapshot of another model, or of a job that trains otherwise; the first difference is named."""


class TlsRefused(ConfigurationRefused):
    """A certificate is missing, wrong or expired, or one end speaks TLS and the other does not."""

    retryable = True


class TokenRefused(ConfigurationRefused):
    """A token is missing or wrong, or another job's."""


class FrameRefused(PsError):
    """A frame that was not taken; nothing of it was applied."""


class FrameMalformed(FrameRefused):
    """Bytes that are not a frame."""


class FrameTooLarge(FrameRefused):
    """A frame that announces more bytes than the limits allow."""


class PayloadMismatch(FrameRefused):
    """A payload of another size or dtype than the partition has."""


class PushOutOfOrder(FrameRefused):
    """A push or pull whose step is not the worker's clock on that partition."""


class StrangerRefused(FrameRefused):
    """A connection without a valid token, or a worker that is not a member."""


class StaleIncarnation(FrameRefused):
    """A frame of an incarnation that is not its worker's live one."""


class SnapshotUnusable(PsError):
    """A snapshot that cannot be restored; where there is an older one that can, it is named."""

    exit_code = 65


class SnapshotMissing(SnapshotUnusable):
    """There is no snapshot, or not the one that was asked for."""


class SnapshotCorrupt(SnapshotUnusable):
    """A file of a snapshot is missing, truncated, or not what was written."""


class SnapshotFormatUnsupported(SnapshotUnusable):
    """A snapshot that an older or a newer release has written."""


class SnapshotFailed(PsError):
    """A snapshot could not be taken or written; the job goes on, and older snapshots stay."""


class JobUnknown(PsError):
    """The servers do not know this job, table or worker."""


class JobDropped(JobUnknown):
    """A person has dropped the job (`ps-lab job drop`); its name begins anew."""


class Evicted(PsError):
    """This incarnation of a worker was silent for longer than its lease; the others went on without it."""

    exit_code = 75


class RolledBack(Evicted):
    """Servers lost what they held; the job went back to a snapshot, and so has this worker."""

    @property
    def step(self) -> int:
        """That this worker takes next."""
        return int(self.facts.get("step") or 0)


class GroupBroken(PsError):
    """A rank of this group has gone, or does something else than the others: all of its ranks end."""

    exit_code = 75


class GradientChanged(PsError):
    """A gradient, or what its step needs, changed after the push had left."""


class WeightsChanged(PsError):
    """A script wrote into a parameter after wrap; it would be lost with the next pull."""


class NonFiniteGradient(PsError):
    """A pushed gradient held NaN or infinity; nothing of it was applied where it did."""


class HyperparametersDiffer(PsError):
    """Workers of a BSP step pushed different hyper-parameters; those of the lowest-ranked one were taken."""


class InternalError(PsError):
    """A bug of ours, reported by the side it happened on."""

    @classmethod
    def of(cls, bug: BaseException) -> InternalError:
        """The error that says which exception it was."""
        return cls(f"{type(bug).__name__}: {bug}")


CODES: dict[str, tuple[type[PsError], ...]] = {
    "INVALID_ARGUMENT": (
        UsageError,
        ConsistencyInvalid,
        AddressInvalid,
        FrameRefused,
        FrameMalformed,
        FrameTooLarge,
        PayloadMismatch,
    ),
    "UNAVAILABLE": (
        Unavailable,
        ServerUnreachable,
        ServerNotReady,
        ConnectionLost,
        CutAborted,
        RestoredTooOften,
    ),
    "DEADLINE_EXCEEDED": (StartLimitExceeded, CallLimitExceeded),
    "FAILED_PRECONDITION": (
        ConfigurationRefused,
        ProtocolMismatch,
        ShardMismatch,
        JobMismatch,
        TableMismatch,
        OptimizerUnsupported,
        ParameterUnsupported,
        ModelUnsupported,
        PipelineError,
        JobFull,
        JobInUse,
        Fenced,
        SnapshotMismatch,
        SnapshotFormatUnsupported,
        GradientChanged,
        WeightsChanged,
        NonFiniteGradient,
        HyperparametersDiffer,
    ),
    "ALREADY_EXISTS": (WorkerNumberTaken,),
    "RESOURCE_EXHAUSTED": (MemoryLimitExceeded,),
    "UNAUTHENTICATED": (TlsRefused, TokenRefused),
    "ABORTED": (PushOutOfOrder, StaleIncarnation, SnapshotFailed, Evicted, RolledBack, GroupBroken),
    "PERMISSION_DENIED": (StrangerRefused,),
    "DATA_LOSS": (SnapshotUnusable, SnapshotCorrupt),
    "NOT_FOUND": (SnapshotMissing, JobUnknown, JobDropped),
    "INTERNAL": (InternalError,),
    "UNKNOWN": (PsError,),
}
STATUS: dict[type[PsError], str] = {cls: code for code, classes in CODES.items() for cls in classes}

BY_NAME: dict[str, type[PsError]] = {cls.__name__: cls for cls in STATUS}


def facts_to_json(error: PsError) -> str:
    """The facts of an error as a JSON object, at most 4 KiB of it (else empty)."""
    text = json.dumps(error.facts)
    return text if len(text) <= 4096 else "{}"


def from_wire(name: str, message: str, facts_json: str = "") -> PsError:
    """The error that the other side raised.

    An unknown class becomes `PsError`, its name kept in the message; facts that are no JSON object are none.
    The message is escaped: what other peers have said may be in it, and a traceback shows it as it is.
    """
    try:
        parsed = parse_json(facts_json) if facts_json else {}
    except ValueError:
        parsed = {}
    known = parsed if isinstance(parsed, dict) else {}
    facts: dict[str, Fact] = {
        key: value for key, value in known.items() if value is None or isinstance(value, str | int | float)
    }
    cls = BY_NAME.get(name)
    line = one_line(message if cls is not None else f"{name}: {message}")
    error = PsError(line) if cls is None else cls(line)
    error.facts = facts
    return error
