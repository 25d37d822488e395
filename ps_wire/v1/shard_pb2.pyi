from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("protocol", "shard", "num_shards", "ready")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    NUM_SHARDS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    shard: int
    num_shards: int
    ready: bool
    def __init__(self, protocol: _Optional[int] = ..., shard: _Optional[int] = ..., num_shards: _Optional[int] = ..., ready: bool = ...) -> None: ...

class OpenRequest(_message.Message):
    __slots__ = ("job", "worker", "incarnation", "rank")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker: int
    incarnation: int
    rank: int
    def __init__(self, job: _Optional[str] = ..., worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., rank: _Optional[int] = ...) -> None: ...

class Carrier(_message.Message):
    __slots__ = ("name", "address")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class OpenReply(_message.Message):
    __slots__ = ("carriers", "token", "generation")
    CARRIERS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    carriers: _containers.RepeatedCompositeFieldContainer[Carrier]
    token: bytes
    generation: int
    def __init__(self, carriers: _Optional[_Iterable[_Union[Carrier, _Mapping]]] = ..., token: _Optional[bytes] = ..., generation: _Optional[int] = ...) -> None: ...

class TableKey(_message.Message):
    __slots__ = ("job", "worker", "incarnation", "table")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker: int
    incarnation: int
    table: int
    def __init__(self, job: _Optional[str] = ..., worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., table: _Optional[int] = ...) -> None: ...

class DumpRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: TableKey
    def __init__(self, key: _Optional[_Union[TableKey, _Mapping]] = ...) -> None: ...

class PartitionState(_message.Message):
    __slots__ = ("key", "partition", "tensors", "last")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    key: TableKey
    partition: int
    tensors: _containers.RepeatedCompositeFieldContainer[StateTensor]
    last: bool
    def __init__(self, key: _Optional[_Union[TableKey, _Mapping]] = ..., partition: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[StateTensor, _Mapping]]] = ..., last: bool = ...) -> None: ...

class StateTensor(_message.Message):
    __slots__ = ("piece", "name", "dtype", "scalar", "data")
    PIECE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SCALAR_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    piece: int
    name: str
    dtype: str
    scalar: bool
    data: bytes
    def __init__(self, piece: _Optional[int] = ..., name: _Optional[str] = ..., dtype: _Optional[str] = ..., scalar: bool = ..., data: _Optional[bytes] = ...) -> None: ...

class LoadStateReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TablesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TablesReply(_message.Message):
    __slots__ = ("shard", "memory_bytes", "memory_limit_bytes", "refused_frames", "tables", "events", "connections", "queued_bytes")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FRAMES_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BYTES_FIELD_NUMBER: _ClassVar[int]
    shard: int
    memory_bytes: int
    memory_limit_bytes: int
    refused_frames: int
    tables: _containers.RepeatedCompositeFieldContainer[TableStatus]
    events: _containers.RepeatedCompositeFieldContainer[JobEvents]
    connections: int
    queued_bytes: int
    def __init__(self, shard: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., memory_limit_bytes: _Optional[int] = ..., refused_frames: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[TableStatus, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[JobEvents, _Mapping]]] = ..., connections: _Optional[int] = ..., queued_bytes: _Optional[int] = ...) -> None: ...

class JobEvents(_message.Message):
    __slots__ = ("job", "counts")
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    job: str
    counts: _containers.ScalarMap[str, int]
    def __init__(self, job: _Optional[str] = ..., counts: _Optional[_Mapping[str, int]] = ...) -> None: ...

class TableStatus(_message.Message):
    __slots__ = ("job", "table", "partitions", "min_version", "max_version", "bytes_in", "bytes_out", "hyper_mismatches", "tau", "workers", "weight_bytes", "optimizer_bytes", "mixed_steps")
    class TauEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    MIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_VERSION_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    HYPER_MISMATCHES_FIELD_NUMBER: _ClassVar[int]
    TAU_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_BYTES_FIELD_NUMBER: _ClassVar[int]
    MIXED_STEPS_FIELD_NUMBER: _ClassVar[int]
    job: str
    table: int
    partitions: int
    min_version: int
    max_version: int
    bytes_in: int
    bytes_out: int
    hyper_mismatches: int
    tau: _containers.ScalarMap[int, int]
    workers: _containers.RepeatedCompositeFieldContainer[TableWorker]
    weight_bytes: int
    optimizer_bytes: int
    mixed_steps: int
    def __init__(self, job: _Optional[str] = ..., table: _Optional[int] = ..., partitions: _Optional[int] = ..., min_version: _Optional[int] = ..., max_version: _Optional[int] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., hyper_mismatches: _Optional[int] = ..., tau: _Optional[_Mapping[int, int]] = ..., workers: _Optional[_Iterable[_Union[TableWorker, _Mapping]]] = ..., weight_bytes: _Optional[int] = ..., optimizer_bytes: _Optional[int] = ..., mixed_steps: _Optional[int] = ...) -> None: ...

class TableWorker(_message.Message):
    __slots__ = ("worker", "min_clock", "max_clock", "max_gap", "received", "applied", "dropped", "abstained", "duplicates", "refused", "gate_wait_s", "member", "carrier", "missed", "ranks")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    MIN_CLOCK_FIELD_NUMBER: _ClassVar[int]
    MAX_CLOCK_FIELD_NUMBER: _ClassVar[int]
    MAX_GAP_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    ABSTAINED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    GATE_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    CARRIER_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    worker: int
    min_clock: int
    max_clock: int
    max_gap: int
    received: int
    applied: int
    dropped: int
    abstained: int
    duplicates: int
    refused: int
    gate_wait_s: float
    member: bool
    carrier: str
    missed: int
    ranks: _containers.RepeatedCompositeFieldContainer[RankConnection]
    def __init__(self, worker: _Optional[int] = ..., min_clock: _Optional[int] = ..., max_clock: _Optional[int] = ..., max_gap: _Optional[int] = ..., received: _Optional[int] = ..., applied: _Optional[int] = ..., dropped: _Optional[int] = ..., abstained: _Optional[int] = ..., duplicates: _Optional[int] = ..., refused: _Optional[int] = ..., gate_wait_s: _Optional[float] = ..., member: bool = ..., carrier: _Optional[str] = ..., missed: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[RankConnection, _Mapping]]] = ...) -> None: ...

class RankConnection(_message.Message):
    __slots__ = ("rank", "carrier", "received_bytes", "sent_bytes")
    RANK_FIELD_NUMBER: _ClassVar[int]
    CARRIER_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    carrier: str
    received_bytes: int
    sent_bytes: int
    def __init__(self, rank: _Optional[int] = ..., carrier: _Optional[str] = ..., received_bytes: _Optional[int] = ..., sent_bytes: _Optional[int] = ...) -> None: ...

class SnapshotFile(_message.Message):
    __slots__ = ("job", "snapshot", "name", "sha256")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    job: str
    snapshot: str
    name: str
    sha256: str
    def __init__(self, job: _Optional[str] = ..., snapshot: _Optional[str] = ..., name: _Optional[str] = ..., sha256: _Optional[str] = ...) -> None: ...

class SnapshotChunk(_message.Message):
    __slots__ = ("file", "data")
    FILE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    file: SnapshotFile
    data: bytes
    def __init__(self, file: _Optional[_Union[SnapshotFile, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class SnapshotFiles(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...
