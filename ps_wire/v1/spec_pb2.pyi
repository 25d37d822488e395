from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Parameter(_message.Message):
    __slots__ = ("name", "shape", "dtype", "group", "device", "stride")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    STRIDE_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    group: int
    device: int
    stride: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., group: _Optional[int] = ..., device: _Optional[int] = ..., stride: _Optional[_Iterable[int]] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ("number", "integer", "flag", "text", "numbers", "none")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    NONE_FIELD_NUMBER: _ClassVar[int]
    number: float
    integer: int
    flag: bool
    text: str
    numbers: Numbers
    none: bool
    def __init__(self, number: _Optional[float] = ..., integer: _Optional[int] = ..., flag: bool = ..., text: _Optional[str] = ..., numbers: _Optional[_Union[Numbers, _Mapping]] = ..., none: bool = ...) -> None: ...

class Numbers(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class Hyperparameter(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: Value
    def __init__(self, name: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("hyperparameters",)
    HYPERPARAMETERS_FIELD_NUMBER: _ClassVar[int]
    hyperparameters: _containers.RepeatedCompositeFieldContainer[Hyperparameter]
    def __init__(self, hyperparameters: _Optional[_Iterable[_Union[Hyperparameter, _Mapping]]] = ...) -> None: ...

class Hyperparameters(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    def __init__(self, groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ...) -> None: ...

class Optimizer(_message.Message):
    __slots__ = ("name", "hyperparameters")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HYPERPARAMETERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    hyperparameters: Hyperparameters
    def __init__(self, name: _Optional[str] = ..., hyperparameters: _Optional[_Union[Hyperparameters, _Mapping]] = ...) -> None: ...

class Buckets(_message.Message):
    __slots__ = ("bucket_bytes", "first_bucket_bytes", "partition_bytes")
    BUCKET_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIRST_BUCKET_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARTITION_BYTES_FIELD_NUMBER: _ClassVar[int]
    bucket_bytes: int
    first_bucket_bytes: int
    partition_bytes: int
    def __init__(self, bucket_bytes: _Optional[int] = ..., first_bucket_bytes: _Optional[int] = ..., partition_bytes: _Optional[int] = ...) -> None: ...

class Table(_message.Message):
    __slots__ = ("number", "parameters", "optimizer", "buckets", "clip_grad_norm", "stages")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    CLIP_GRAD_NORM_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    number: int
    parameters: _containers.RepeatedCompositeFieldContainer[Parameter]
    optimizer: Optimizer
    buckets: Buckets
    clip_grad_norm: float
    stages: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, number: _Optional[int] = ..., parameters: _Optional[_Iterable[_Union[Parameter, _Mapping]]] = ..., optimizer: _Optional[_Union[Optimizer, _Mapping]] = ..., buckets: _Optional[_Union[Buckets, _Mapping]] = ..., clip_grad_norm: _Optional[float] = ..., stages: _Optional[_Iterable[int]] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("name", "consistency", "num_workers", "min_workers", "nonfinite")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    MIN_WORKERS_FIELD_NUMBER: _ClassVar[int]
    NONFINITE_FIELD_NUMBER: _ClassVar[int]
    name: str
    consistency: str
    num_workers: int
    min_workers: int
    nonfinite: str
    def __init__(self, name: _Optional[str] = ..., consistency: _Optional[str] = ..., num_workers: _Optional[int] = ..., min_workers: _Optional[int] = ..., nonfinite: _Optional[str] = ...) -> None: ...
