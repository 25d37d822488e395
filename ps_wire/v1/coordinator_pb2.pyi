from ps_wire.v1 import spec_pb2 as _spec_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MemberRequest(_message.Message):
    __slots__ = ("join", "make_table", "uploaded", "heartbeat", "finish", "leave", "resume", "cut_ready", "cut_captured", "holding", "number")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    MAKE_TABLE_FIELD_NUMBER: _ClassVar[int]
    UPLOADED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    CUT_READY_FIELD_NUMBER: _ClassVar[int]
    CUT_CAPTURED_FIELD_NUMBER: _ClassVar[int]
    HOLDING_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    join: Join
    make_table: MakeTable
    uploaded: Uploaded
    heartbeat: Heartbeat
    finish: Finish
    leave: Leave
    resume: Resume
    cut_ready: CutReady
    cut_captured: CutCaptured
    holding: Holding
    number: int
    def __init__(self, join: _Optional[_Union[Join, _Mapping]] = ..., make_table: _Optional[_Union[MakeTable, _Mapping]] = ..., uploaded: _Optional[_Union[Uploaded, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ..., cut_ready: _Optional[_Union[CutReady, _Mapping]] = ..., cut_captured: _Optional[_Union[CutCaptured, _Mapping]] = ..., holding: _Optional[_Union[Holding, _Mapping]] = ..., number: _Optional[int] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("protocol", "job", "worker", "host", "pid", "lease_s", "evicted", "ranks")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    job: _spec_pb2.Job
    worker: int
    host: str
    pid: int
    lease_s: float
    evicted: int
    ranks: int
    def __init__(self, protocol: _Optional[int] = ..., job: _Optional[_Union[_spec_pb2.Job, _Mapping]] = ..., worker: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., lease_s: _Optional[float] = ..., evicted: _Optional[int] = ..., ranks: _Optional[int] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("job", "worker", "incarnation", "session", "heard")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker: int
    incarnation: int
    session: bytes
    heard: int
    def __init__(self, job: _Optional[str] = ..., worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., session: _Optional[bytes] = ..., heard: _Optional[int] = ...) -> None: ...

class MakeTable(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: _spec_pb2.Table
    def __init__(self, table: _Optional[_Union[_spec_pb2.Table, _Mapping]] = ...) -> None: ...

class Uploaded(_message.Message):
    __slots__ = ("table", "final", "live", "step", "begins")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    table: int
    final: bool
    live: bool
    step: int
    begins: bool
    def __init__(self, table: _Optional[int] = ..., final: bool = ..., live: bool = ..., step: _Optional[int] = ..., begins: bool = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("heard", "progress")
    HEARD_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    heard: int
    progress: Progress
    def __init__(self, heard: _Optional[int] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("step", "samples", "waited_s", "metrics", "waits", "passed_over", "calls", "taken")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class TakenEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    PASSED_OVER_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    step: int
    samples: int
    waited_s: float
    metrics: _containers.ScalarMap[str, float]
    waits: str
    passed_over: str
    calls: int
    taken: _containers.ScalarMap[int, int]
    def __init__(self, step: _Optional[int] = ..., samples: _Optional[int] = ..., waited_s: _Optional[float] = ..., metrics: _Optional[_Mapping[str, float]] = ..., waits: _Optional[str] = ..., passed_over: _Optional[str] = ..., calls: _Optional[int] = ..., taken: _Optional[_Mapping[int, int]] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("progress",)
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    progress: Progress
    def __init__(self, progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("reason", "progress", "drained", "clocks", "torn")
    class ClocksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    REASON_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    CLOCKS_FIELD_NUMBER: _ClassVar[int]
    TORN_FIELD_NUMBER: _ClassVar[int]
    reason: str
    progress: Progress
    drained: bool
    clocks: _containers.ScalarMap[int, int]
    torn: bool
    def __init__(self, reason: _Optional[str] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., drained: bool = ..., clocks: _Optional[_Mapping[int, int]] = ..., torn: bool = ...) -> None: ...

class MemberReply(_message.Message):
    __slots__ = ("joined", "table_made", "table_started", "waiting", "upload_final", "ended", "left", "refused", "notice", "upload_live", "prove", "resumed", "rolled_back", "cut_prepare", "cut_armed", "cut_ended", "hold", "let_go", "number")
    JOINED_FIELD_NUMBER: _ClassVar[int]
    TABLE_MADE_FIELD_NUMBER: _ClassVar[int]
    TABLE_STARTED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_FINAL_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_LIVE_FIELD_NUMBER: _ClassVar[int]
    PROVE_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    CUT_PREPARE_FIELD_NUMBER: _ClassVar[int]
    CUT_ARMED_FIELD_NUMBER: _ClassVar[int]
    CUT_ENDED_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    LET_GO_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    joined: Joined
    table_made: TableMade
    table_started: TableStarted
    waiting: Waiting
    upload_final: UploadFinal
    ended: Ended
    left: Left
    refused: Refused
    notice: Notice
    upload_live: UploadLive
    prove: Prove
    resumed: Resumed
    rolled_back: RolledBack
    cut_prepare: CutPrepare
    cut_armed: CutArmed
    cut_ended: CutEnded
    hold: Hold
    let_go: LetGo
    number: int
    def __init__(self, joined: _Optional[_Union[Joined, _Mapping]] = ..., table_made: _Optional[_Union[TableMade, _Mapping]] = ..., table_started: _Optional[_Union[TableStarted, _Mapping]] = ..., waiting: _Optional[_Union[Waiting, _Mapping]] = ..., upload_final: _Optional[_Union[UploadFinal, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ..., left: _Optional[_Union[Left, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ..., upload_live: _Optional[_Union[UploadLive, _Mapping]] = ..., prove: _Optional[_Union[Prove, _Mapping]] = ..., resumed: _Optional[_Union[Resumed, _Mapping]] = ..., rolled_back: _Optional[_Union[RolledBack, _Mapping]] = ..., cut_prepare: _Optional[_Union[CutPrepare, _Mapping]] = ..., cut_armed: _Optional[_Union[CutArmed, _Mapping]] = ..., cut_ended: _Optional[_Union[CutEnded, _Mapping]] = ..., hold: _Optional[_Union[Hold, _Mapping]] = ..., let_go: _Optional[_Union[LetGo, _Mapping]] = ..., number: _Optional[int] = ...) -> None: ...

class Joined(_message.Message):
    __slots__ = ("worker", "incarnation", "num_shards", "ended", "resumed", "session", "shards", "rolled_back", "num_tables")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NUM_SHARDS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    NUM_TABLES_FIELD_NUMBER: _ClassVar[int]
    worker: int
    incarnation: int
    num_shards: int
    ended: bool
    resumed: bool
    session: bytes
    shards: _containers.RepeatedCompositeFieldContainer[ShardPlace]
    rolled_back: bool
    num_tables: int
    def __init__(self, worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., num_shards: _Optional[int] = ..., ended: bool = ..., resumed: bool = ..., session: _Optional[bytes] = ..., shards: _Optional[_Iterable[_Union[ShardPlace, _Mapping]]] = ..., rolled_back: bool = ..., num_tables: _Optional[int] = ...) -> None: ...

class ShardPlace(_message.Message):
    __slots__ = ("address", "generation")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    address: str
    generation: int
    def __init__(self, address: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class RolledBack(_message.Message):
    __slots__ = ("step", "why")
    STEP_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    step: int
    why: str
    def __init__(self, step: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class Prove(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Resumed(_message.Message):
    __slots__ = ("taken",)
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    taken: int
    def __init__(self, taken: _Optional[int] = ...) -> None: ...

class TableMade(_message.Message):
    __slots__ = ("table", "upload", "stages")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    table: int
    upload: bool
    stages: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, table: _Optional[int] = ..., upload: bool = ..., stages: _Optional[_Iterable[int]] = ...) -> None: ...

class TableStarted(_message.Message):
    __slots__ = ("table", "step")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    table: int
    step: int
    def __init__(self, table: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("whom",)
    WHOM_FIELD_NUMBER: _ClassVar[int]
    whom: str
    def __init__(self, whom: _Optional[str] = ...) -> None: ...

class UploadFinal(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UploadLive(_message.Message):
    __slots__ = ("begins",)
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    begins: bool
    def __init__(self, begins: bool = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("has_state",)
    HAS_STATE_FIELD_NUMBER: _ClassVar[int]
    has_state: bool
    def __init__(self, has_state: bool = ...) -> None: ...

class Left(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Notice(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("error", "message", "facts")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    error: str
    message: str
    facts: str
    def __init__(self, error: _Optional[str] = ..., message: _Optional[str] = ..., facts: _Optional[str] = ...) -> None: ...

class CutPrepare(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class CutReady(_message.Message):
    __slots__ = ("number", "steps")
    class StepsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    number: int
    steps: _containers.ScalarMap[int, int]
    def __init__(self, number: _Optional[int] = ..., steps: _Optional[_Mapping[int, int]] = ...) -> None: ...

class CutArmed(_message.Message):
    __slots__ = ("number", "steps")
    class StepsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    number: int
    steps: _containers.ScalarMap[int, int]
    def __init__(self, number: _Optional[int] = ..., steps: _Optional[_Mapping[int, int]] = ...) -> None: ...

class CutCaptured(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class CutEnded(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Hold(_message.Message):
    __slots__ = ("number", "named", "beyond")
    class BeyondEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NAMED_FIELD_NUMBER: _ClassVar[int]
    BEYOND_FIELD_NUMBER: _ClassVar[int]
    number: int
    named: bool
    beyond: _containers.ScalarMap[int, int]
    def __init__(self, number: _Optional[int] = ..., named: bool = ..., beyond: _Optional[_Mapping[int, int]] = ...) -> None: ...

class Holding(_message.Message):
    __slots__ = ("number", "held", "steps")
    class StepsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    number: int
    held: bool
    steps: _containers.ScalarMap[int, int]
    def __init__(self, number: _Optional[int] = ..., held: bool = ..., steps: _Optional[_Mapping[int, int]] = ...) -> None: ...

class LetGo(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("register", "done", "norm", "attendance")
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    NORM_FIELD_NUMBER: _ClassVar[int]
    ATTENDANCE_FIELD_NUMBER: _ClassVar[int]
    register: Register
    done: OrderDone
    norm: Norm
    attendance: Attendance
    def __init__(self, register: _Optional[_Union[Register, _Mapping]] = ..., done: _Optional[_Union[OrderDone, _Mapping]] = ..., norm: _Optional[_Union[Norm, _Mapping]] = ..., attendance: _Optional[_Union[Attendance, _Mapping]] = ...) -> None: ...

class Register(_message.Message):
    __slots__ = ("protocol", "shard", "num_shards", "address", "boot", "generation", "coordinator", "host", "pid")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    NUM_SHARDS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    shard: int
    num_shards: int
    address: str
    boot: bytes
    generation: int
    coordinator: int
    host: str
    pid: int
    def __init__(self, protocol: _Optional[int] = ..., shard: _Optional[int] = ..., num_shards: _Optional[int] = ..., address: _Optional[str] = ..., boot: _Optional[bytes] = ..., generation: _Optional[int] = ..., coordinator: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ...) -> None: ...

class Norm(_message.Message):
    __slots__ = ("job", "table", "opening", "step", "squares", "epoch")
    JOB_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SQUARES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    job: str
    table: int
    opening: int
    step: int
    squares: float
    epoch: int
    def __init__(self, job: _Optional[str] = ..., table: _Optional[int] = ..., opening: _Optional[int] = ..., step: _Optional[int] = ..., squares: _Optional[float] = ..., epoch: _Optional[int] = ...) -> None: ...

class Attendance(_message.Message):
    __slots__ = ("job", "table", "opening", "step", "ready", "members", "wanted", "late")
    JOB_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    job: str
    table: int
    opening: int
    step: int
    ready: _containers.RepeatedScalarFieldContainer[int]
    members: _containers.RepeatedScalarFieldContainer[int]
    wanted: bool
    late: _containers.RepeatedCompositeFieldContainer[LateWorker]
    def __init__(self, job: _Optional[str] = ..., table: _Optional[int] = ..., opening: _Optional[int] = ..., step: _Optional[int] = ..., ready: _Optional[_Iterable[int]] = ..., members: _Optional[_Iterable[int]] = ..., wanted: bool = ..., late: _Optional[_Iterable[_Union[LateWorker, _Mapping]]] = ...) -> None: ...

class LateWorker(_message.Message):
    __slots__ = ("worker", "incarnation", "clock")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    worker: int
    incarnation: int
    clock: int
    def __init__(self, worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., clock: _Optional[int] = ...) -> None: ...

class OrderDone(_message.Message):
    __slots__ = ("number", "refused", "saved", "clocks")
    class ClocksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    CLOCKS_FIELD_NUMBER: _ClassVar[int]
    number: int
    refused: Refused
    saved: Saved
    clocks: _containers.ScalarMap[int, int]
    def __init__(self, number: _Optional[int] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., saved: _Optional[_Union[Saved, _Mapping]] = ..., clocks: _Optional[_Mapping[int, int]] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("number", "admit", "remove", "open_table", "start_table", "drop_job", "decide", "hold_cut", "arm_cut", "end_cut", "fence", "evict", "prepare", "enter", "choose", "catch_up", "granted", "restore", "save_cut", "look_save", "end_save", "prove")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ADMIT_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    OPEN_TABLE_FIELD_NUMBER: _ClassVar[int]
    START_TABLE_FIELD_NUMBER: _ClassVar[int]
    DROP_JOB_FIELD_NUMBER: _ClassVar[int]
    DECIDE_FIELD_NUMBER: _ClassVar[int]
    HOLD_CUT_FIELD_NUMBER: _ClassVar[int]
    ARM_CUT_FIELD_NUMBER: _ClassVar[int]
    END_CUT_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    EVICT_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    ENTER_FIELD_NUMBER: _ClassVar[int]
    CHOOSE_FIELD_NUMBER: _ClassVar[int]
    CATCH_UP_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    SAVE_CUT_FIELD_NUMBER: _ClassVar[int]
    LOOK_SAVE_FIELD_NUMBER: _ClassVar[int]
    END_SAVE_FIELD_NUMBER: _ClassVar[int]
    PROVE_FIELD_NUMBER: _ClassVar[int]
    number: int
    admit: AdmitMember
    remove: RemoveMember
    open_table: OpenTable
    start_table: StartTable
    drop_job: DropJob
    decide: Decide
    hold_cut: Cut
    arm_cut: Cut
    end_cut: Cut
    fence: RemoveMember
    evict: EvictMember
    prepare: EnterTable
    enter: EnterTable
    choose: Choose
    catch_up: CatchUp
    granted: Granted
    restore: Restore
    save_cut: Save
    look_save: Save
    end_save: Save
    prove: Prove
    def __init__(self, number: _Optional[int] = ..., admit: _Optional[_Union[AdmitMember, _Mapping]] = ..., remove: _Optional[_Union[RemoveMember, _Mapping]] = ..., open_table: _Optional[_Union[OpenTable, _Mapping]] = ..., start_table: _Optional[_Union[StartTable, _Mapping]] = ..., drop_job: _Optional[_Union[DropJob, _Mapping]] = ..., decide: _Optional[_Union[Decide, _Mapping]] = ..., hold_cut: _Optional[_Union[Cut, _Mapping]] = ..., arm_cut: _Optional[_Union[Cut, _Mapping]] = ..., end_cut: _Optional[_Union[Cut, _Mapping]] = ..., fence: _Optional[_Union[RemoveMember, _Mapping]] = ..., evict: _Optional[_Union[EvictMember, _Mapping]] = ..., prepare: _Optional[_Union[EnterTable, _Mapping]] = ..., enter: _Optional[_Union[EnterTable, _Mapping]] = ..., choose: _Optional[_Union[Choose, _Mapping]] = ..., catch_up: _Optional[_Union[CatchUp, _Mapping]] = ..., granted: _Optional[_Union[Granted, _Mapping]] = ..., restore: _Optional[_Union[Restore, _Mapping]] = ..., save_cut: _Optional[_Union[Save, _Mapping]] = ..., look_save: _Optional[_Union[Save, _Mapping]] = ..., end_save: _Optional[_Union[Save, _Mapping]] = ..., prove: _Optional[_Union[Prove, _Mapping]] = ...) -> None: ...

class Granted(_message.Message):
    __slots__ = ("generation", "coordinator")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    generation: int
    coordinator: int
    def __init__(self, generation: _Optional[int] = ..., coordinator: _Optional[int] = ...) -> None: ...

class Restore(_message.Message):
    __slots__ = ("job", "tables", "snapshot", "incarnation", "step", "steps")
    class StepsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    job: _spec_pb2.Job
    tables: _containers.RepeatedCompositeFieldContainer[_spec_pb2.Table]
    snapshot: str
    incarnation: int
    step: int
    steps: _containers.ScalarMap[int, int]
    def __init__(self, job: _Optional[_Union[_spec_pb2.Job, _Mapping]] = ..., tables: _Optional[_Iterable[_Union[_spec_pb2.Table, _Mapping]]] = ..., snapshot: _Optional[str] = ..., incarnation: _Optional[int] = ..., step: _Optional[int] = ..., steps: _Optional[_Mapping[int, int]] = ...) -> None: ...

class AdmitMember(_message.Message):
    __slots__ = ("job", "worker", "incarnation", "clocks", "reader")
    class ClocksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CLOCKS_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    job: _spec_pb2.Job
    worker: int
    incarnation: int
    clocks: _containers.ScalarMap[int, int]
    reader: bool
    def __init__(self, job: _Optional[_Union[_spec_pb2.Job, _Mapping]] = ..., worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., clocks: _Optional[_Mapping[int, int]] = ..., reader: bool = ...) -> None: ...

class RemoveMember(_message.Message):
    __slots__ = ("job", "worker", "incarnation")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker: int
    incarnation: int
    def __init__(self, job: _Optional[str] = ..., worker: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class EvictMember(_message.Message):
    __slots__ = ("job", "worker", "incarnation", "limits", "epoch")
    class LimitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker: int
    incarnation: int
    limits: _containers.ScalarMap[int, int]
    epoch: int
    def __init__(self, job: _Optional[str] = ..., worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., limits: _Optional[_Mapping[int, int]] = ..., epoch: _Optional[int] = ...) -> None: ...

class EnterTable(_message.Message):
    __slots__ = ("job", "table", "worker", "incarnation", "step")
    JOB_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    job: str
    table: int
    worker: int
    incarnation: int
    step: int
    def __init__(self, job: _Optional[str] = ..., table: _Optional[int] = ..., worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class OpenTable(_message.Message):
    __slots__ = ("job", "table")
    JOB_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    job: str
    table: _spec_pb2.Table
    def __init__(self, job: _Optional[str] = ..., table: _Optional[_Union[_spec_pb2.Table, _Mapping]] = ...) -> None: ...

class StartTable(_message.Message):
    __slots__ = ("job", "table")
    JOB_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    job: str
    table: int
    def __init__(self, job: _Optional[str] = ..., table: _Optional[int] = ...) -> None: ...

class DropJob(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class Cut(_message.Message):
    __slots__ = ("job", "table", "reader", "number", "clocks", "ended")
    class ClocksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    CLOCKS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    job: str
    table: int
    reader: int
    number: int
    clocks: _containers.ScalarMap[int, int]
    ended: bool
    def __init__(self, job: _Optional[str] = ..., table: _Optional[int] = ..., reader: _Optional[int] = ..., number: _Optional[int] = ..., clocks: _Optional[_Mapping[int, int]] = ..., ended: bool = ...) -> None: ...

class Save(_message.Message):
    __slots__ = ("job", "snapshot", "number", "tables", "manifest", "keep")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    job: str
    snapshot: str
    number: int
    tables: _containers.RepeatedCompositeFieldContainer[TableClocks]
    manifest: bytes
    keep: int
    def __init__(self, job: _Optional[str] = ..., snapshot: _Optional[str] = ..., number: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[TableClocks, _Mapping]]] = ..., manifest: _Optional[bytes] = ..., keep: _Optional[int] = ...) -> None: ...

class TableClocks(_message.Message):
    __slots__ = ("table", "clocks")
    class ClocksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    TABLE_FIELD_NUMBER: _ClassVar[int]
    CLOCKS_FIELD_NUMBER: _ClassVar[int]
    table: int
    clocks: _containers.ScalarMap[int, int]
    def __init__(self, table: _Optional[int] = ..., clocks: _Optional[_Mapping[int, int]] = ...) -> None: ...

class Saved(_message.Message):
    __slots__ = ("waiting", "bytes", "total_bytes", "file", "sha256", "counters")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    waiting: int
    bytes: int
    total_bytes: int
    file: str
    sha256: str
    counters: str
    def __init__(self, waiting: _Optional[int] = ..., bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., file: _Optional[str] = ..., sha256: _Optional[str] = ..., counters: _Optional[str] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class RestoreRequest(_message.Message):
    __slots__ = ("job", "snapshot")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    job: str
    snapshot: str
    def __init__(self, job: _Optional[str] = ..., snapshot: _Optional[str] = ...) -> None: ...

class DropRequest(_message.Message):
    __slots__ = ("job", "force")
    JOB_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    job: str
    force: bool
    def __init__(self, job: _Optional[str] = ..., force: bool = ...) -> None: ...

class DropReply(_message.Message):
    __slots__ = ("state", "workers", "readers", "tables", "snapshots", "where")
    STATE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    state: str
    workers: _containers.RepeatedScalarFieldContainer[str]
    readers: int
    tables: int
    snapshots: int
    where: str
    def __init__(self, state: _Optional[str] = ..., workers: _Optional[_Iterable[str]] = ..., readers: _Optional[int] = ..., tables: _Optional[int] = ..., snapshots: _Optional[int] = ..., where: _Optional[str] = ...) -> None: ...

class SnapshotProgress(_message.Message):
    __slots__ = ("phase", "bytes", "total_bytes", "snapshot", "step")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    phase: str
    bytes: int
    total_bytes: int
    snapshot: str
    step: int
    def __init__(self, phase: _Optional[str] = ..., bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., snapshot: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("number", "join", "table", "cut", "done", "state")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    number: int
    join: ReadJoin
    table: int
    cut: int
    done: int
    state: int
    def __init__(self, number: _Optional[int] = ..., join: _Optional[_Union[ReadJoin, _Mapping]] = ..., table: _Optional[int] = ..., cut: _Optional[int] = ..., done: _Optional[int] = ..., state: _Optional[int] = ...) -> None: ...

class ReadJoin(_message.Message):
    __slots__ = ("protocol", "job", "host", "pid")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    job: str
    host: str
    pid: int
    def __init__(self, protocol: _Optional[int] = ..., job: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ...) -> None: ...

class ReadReply(_message.Message):
    __slots__ = ("number", "joined", "table", "cut", "later", "state", "refused")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    LATER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    number: int
    joined: Joined
    table: _spec_pb2.Table
    cut: Cut
    later: Later
    state: OutsideState
    refused: Refused
    def __init__(self, number: _Optional[int] = ..., joined: _Optional[_Union[Joined, _Mapping]] = ..., table: _Optional[_Union[_spec_pb2.Table, _Mapping]] = ..., cut: _Optional[_Union[Cut, _Mapping]] = ..., later: _Optional[_Union[Later, _Mapping]] = ..., state: _Optional[_Union[OutsideState, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ...) -> None: ...

class Later(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OutsideState(_message.Message):
    __slots__ = ("data", "last", "origin", "step")
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    last: bool
    origin: str
    step: int
    def __init__(self, data: _Optional[bytes] = ..., last: bool = ..., origin: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class Decide(_message.Message):
    __slots__ = ("job", "table", "opening", "step", "scale")
    JOB_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    job: str
    table: int
    opening: int
    step: int
    scale: float
    def __init__(self, job: _Optional[str] = ..., table: _Optional[int] = ..., opening: _Optional[int] = ..., step: _Optional[int] = ..., scale: _Optional[float] = ...) -> None: ...

class Choose(_message.Message):
    __slots__ = ("job", "table", "opening", "step", "workers")
    JOB_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    job: str
    table: int
    opening: int
    step: int
    workers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, job: _Optional[str] = ..., table: _Optional[int] = ..., opening: _Optional[int] = ..., step: _Optional[int] = ..., workers: _Optional[_Iterable[int]] = ...) -> None: ...

class CatchUp(_message.Message):
    __slots__ = ("job", "table", "opening", "late", "step")
    JOB_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    job: str
    table: int
    opening: int
    late: LateWorker
    step: int
    def __init__(self, job: _Optional[str] = ..., table: _Optional[int] = ..., opening: _Optional[int] = ..., late: _Optional[_Union[LateWorker, _Mapping]] = ..., step: _Optional[int] = ...) -> None: ...

class StateChunk(_message.Message):
    __slots__ = ("key", "data", "clocks", "size")
    class ClocksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CLOCKS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    key: StateKey
    data: bytes
    clocks: _containers.ScalarMap[int, int]
    size: int
    def __init__(self, key: _Optional[_Union[StateKey, _Mapping]] = ..., data: _Optional[bytes] = ..., clocks: _Optional[_Mapping[int, int]] = ..., size: _Optional[int] = ...) -> None: ...

class StateKey(_message.Message):
    __slots__ = ("job", "worker", "incarnation", "name")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker: int
    incarnation: int
    name: str
    def __init__(self, job: _Optional[str] = ..., worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class PutStateReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStateRequest(_message.Message):
    __slots__ = ("key", "at_least")
    KEY_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_FIELD_NUMBER: _ClassVar[int]
    key: StateKey
    at_least: bytes
    def __init__(self, key: _Optional[_Union[StateKey, _Mapping]] = ..., at_least: _Optional[bytes] = ...) -> None: ...

class ShareRequest(_message.Message):
    __slots__ = ("job", "worker", "incarnation", "loader", "epoch", "begins", "samples", "mark", "rest", "request", "data", "sums")
    class DataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LOADER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    REST_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker: int
    incarnation: int
    loader: int
    epoch: int
    begins: bool
    samples: int
    mark: Mark
    rest: Mark
    request: int
    data: _containers.ScalarMap[str, str]
    sums: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, job: _Optional[str] = ..., worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., loader: _Optional[int] = ..., epoch: _Optional[int] = ..., begins: bool = ..., samples: _Optional[int] = ..., mark: _Optional[_Union[Mark, _Mapping]] = ..., rest: _Optional[_Union[Mark, _Mapping]] = ..., request: _Optional[int] = ..., data: _Optional[_Mapping[str, str]] = ..., sums: _Optional[_Iterable[float]] = ...) -> None: ...

class Mark(_message.Message):
    __slots__ = ("step", "samples", "pace")
    STEP_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    PACE_FIELD_NUMBER: _ClassVar[int]
    step: int
    samples: int
    pace: int
    def __init__(self, step: _Optional[int] = ..., samples: _Optional[int] = ..., pace: _Optional[int] = ...) -> None: ...

class ShareReply(_message.Message):
    __slots__ = ("piece", "newest")
    PIECE_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    piece: Piece
    newest: bool
    def __init__(self, piece: _Optional[_Union[Piece, _Mapping]] = ..., newest: bool = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("epoch", "place", "count", "first", "ranks", "own", "left_over")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    LEFT_OVER_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    place: int
    count: int
    first: int
    ranks: int
    own: bool
    left_over: bool
    def __init__(self, epoch: _Optional[int] = ..., place: _Optional[int] = ..., count: _Optional[int] = ..., first: _Optional[int] = ..., ranks: _Optional[int] = ..., own: bool = ..., left_over: bool = ...) -> None: ...

class UseRequest(_message.Message):
    __slots__ = ("job", "worker", "incarnation", "loader", "mark", "skipped")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LOADER_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker: int
    incarnation: int
    loader: int
    mark: Mark
    skipped: int
    def __init__(self, job: _Optional[str] = ..., worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., loader: _Optional[int] = ..., mark: _Optional[_Union[Mark, _Mapping]] = ..., skipped: _Optional[int] = ...) -> None: ...

class UseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EpochRequest(_message.Message):
    __slots__ = ("job", "worker", "incarnation", "epoch", "loop", "stop")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOOP_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker: int
    incarnation: int
    epoch: int
    loop: int
    stop: int
    def __init__(self, job: _Optional[str] = ..., worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., epoch: _Optional[int] = ..., loop: _Optional[int] = ..., stop: _Optional[int] = ...) -> None: ...

class EpochReply(_message.Message):
    __slots__ = ("last", "why")
    LAST_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    last: int
    why: str
    def __init__(self, last: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("job", "worker", "incarnation", "reason")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker: int
    incarnation: int
    reason: str
    def __init__(self, job: _Optional[str] = ..., worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class CollectRequest(_message.Message):
    __slots__ = ("job", "worker", "incarnation", "number", "form", "op", "source", "values", "blob", "begun", "clocks")
    class ClocksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    CLOCKS_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker: int
    incarnation: int
    number: int
    form: str
    op: str
    source: int
    values: _containers.RepeatedScalarFieldContainer[float]
    blob: bytes
    begun: bool
    clocks: _containers.ScalarMap[int, int]
    def __init__(self, job: _Optional[str] = ..., worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., number: _Optional[int] = ..., form: _Optional[str] = ..., op: _Optional[str] = ..., source: _Optional[int] = ..., values: _Optional[_Iterable[float]] = ..., blob: _Optional[bytes] = ..., begun: bool = ..., clocks: _Optional[_Mapping[int, int]] = ...) -> None: ...

class CollectReply(_message.Message):
    __slots__ = ("number", "done", "values", "blob", "missing", "steps")
    class StepsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    number: int
    done: bool
    values: _containers.RepeatedScalarFieldContainer[float]
    blob: bytes
    missing: str
    steps: _containers.ScalarMap[int, int]
    def __init__(self, number: _Optional[int] = ..., done: bool = ..., values: _Optional[_Iterable[float]] = ..., blob: _Optional[bytes] = ..., missing: _Optional[str] = ..., steps: _Optional[_Mapping[int, int]] = ...) -> None: ...

class MeetRequest(_message.Message):
    __slots__ = ("protocol", "job", "worker", "rank", "size", "host", "machine", "process", "address")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    job: str
    worker: int
    rank: int
    size: int
    host: str
    machine: str
    process: str
    address: str
    def __init__(self, protocol: _Optional[int] = ..., job: _Optional[str] = ..., worker: _Optional[int] = ..., rank: _Optional[int] = ..., size: _Optional[int] = ..., host: _Optional[str] = ..., machine: _Optional[str] = ..., process: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class MeetReply(_message.Message):
    __slots__ = ("complete", "address", "hosts", "machines", "missing")
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    MACHINES_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    complete: bool
    address: str
    hosts: _containers.RepeatedScalarFieldContainer[str]
    machines: _containers.RepeatedScalarFieldContainer[str]
    missing: str
    def __init__(self, complete: bool = ..., address: _Optional[str] = ..., hosts: _Optional[_Iterable[str]] = ..., machines: _Optional[_Iterable[str]] = ..., missing: _Optional[str] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("num_shards", "jobs", "shards")
    NUM_SHARDS_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    num_shards: int
    jobs: _containers.RepeatedCompositeFieldContainer[JobStatus]
    shards: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, num_shards: _Optional[int] = ..., jobs: _Optional[_Iterable[_Union[JobStatus, _Mapping]]] = ..., shards: _Optional[_Iterable[str]] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("job", "state", "workers", "num_tables", "epoch", "events", "epochs", "happened", "snapshot")
    class EventsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    NUM_TABLES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    HAPPENED_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    job: _spec_pb2.Job
    state: str
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    num_tables: int
    epoch: int
    events: _containers.ScalarMap[str, int]
    epochs: _containers.RepeatedCompositeFieldContainer[EpochUse]
    happened: _containers.RepeatedScalarFieldContainer[str]
    snapshot: SnapshotStatus
    def __init__(self, job: _Optional[_Union[_spec_pb2.Job, _Mapping]] = ..., state: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., num_tables: _Optional[int] = ..., epoch: _Optional[int] = ..., events: _Optional[_Mapping[str, int]] = ..., epochs: _Optional[_Iterable[_Union[EpochUse, _Mapping]]] = ..., happened: _Optional[_Iterable[str]] = ..., snapshot: _Optional[_Union[SnapshotStatus, _Mapping]] = ...) -> None: ...

class SnapshotStatus(_message.Message):
    __slots__ = ("age_s", "step", "duration_s", "bytes")
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    age_s: float
    step: int
    duration_s: float
    bytes: int
    def __init__(self, age_s: _Optional[float] = ..., step: _Optional[int] = ..., duration_s: _Optional[float] = ..., bytes: _Optional[int] = ...) -> None: ...

class EpochUse(_message.Message):
    __slots__ = ("loader", "epoch", "samples", "used", "handed_on", "over")
    LOADER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    HANDED_ON_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    loader: int
    epoch: int
    samples: int
    used: int
    handed_on: int
    over: bool
    def __init__(self, loader: _Optional[int] = ..., epoch: _Optional[int] = ..., samples: _Optional[int] = ..., used: _Optional[int] = ..., handed_on: _Optional[int] = ..., over: bool = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("worker", "incarnation", "host", "pid", "state", "progress", "heartbeat_age_s", "lease_left_s")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_AGE_S_FIELD_NUMBER: _ClassVar[int]
    LEASE_LEFT_S_FIELD_NUMBER: _ClassVar[int]
    worker: int
    incarnation: int
    host: str
    pid: int
    state: str
    progress: Progress
    heartbeat_age_s: float
    lease_left_s: float
    def __init__(self, worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., state: _Optional[str] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., heartbeat_age_s: _Optional[float] = ..., lease_left_s: _Optional[float] = ...) -> None: ...
