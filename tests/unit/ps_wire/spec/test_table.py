"""Tables: what is refused, and which difference between two is named first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ps_wire.errors import ParameterUnsupported, TableMismatch, UsageError
from ps_wire.spec.dtypes import ITEM_BYTES, item_bytes
from ps_wire.spec.table import (
    MIB,
    BucketOptions,
    Hyperparameters,
    OptimizerSpec,
    ParameterSpec,
    TableSpec,
    check_same,
)

GROUPS = Hyperparameters(((("lr", 0.1), ("momentum", 0.9)), (("lr", 0.2), ("momentum", 0.9))))
WEIGHT = ParameterSpec(name="weight", shape=(2, 3))
BIAS = ParameterSpec(name="bias", shape=(3,), group=1)
TABLE = TableSpec(
    number=2, parameters=(WEIGHT, BIAS), optimizer=OptimizerSpec(name="SGD", hyperparameters=GROUPS)
)


def with_weight(**fields) -> TableSpec:
    return replace(TABLE, parameters=(replace(WEIGHT, **fields), BIAS))


def with_hyper(*groups) -> TableSpec:
    return replace(TABLE, optimizer=replace(TABLE.optimizer, hyperparameters=Hyperparameters(groups)))


FIRST, SECOND = GROUPS.groups
BIG = BucketOptions(bucket_bytes=30 * MIB)

# In the order in which differences are looked for: what is named, expected, got, the other table.
DIFFERENCES = [
    ("name of a parameter", "weight", "w", with_weight(name="w")),
    ("shape of parameter 'weight'", (2, 3), (3, 2), with_weight(shape=(3, 2))),
    ("dtype of parameter 'weight'", "float32", "float64", with_weight(dtype="float64")),
    ("group of parameter 'weight'", 0, 1, with_weight(group=1)),
    ("device of parameter 'weight'", 0, 1, with_weight(device=1)),
    ("stride of parameter 'weight'", (), (1, 2), with_weight(stride=(1, 2))),
    ("number of parameters", 2, 1, replace(TABLE, parameters=(WEIGHT,))),
    ("optimizer", "SGD", "Adam", replace(TABLE, optimizer=replace(TABLE.optimizer, name="Adam"))),
    ("bucket sizes", BucketOptions(), BIG, replace(TABLE, buckets=BIG)),
    ("clip_grad_norm", None, 0.5, replace(TABLE, clip_grad_norm=0.5)),
    ("number of param-groups", 2, 3, with_hyper(FIRST, SECOND, ())),
    ("lr of param-group 0", 0.1, 0.5, with_hyper((("lr", 0.5), ("momentum", 0.0)), SECOND)),
    ("momentum of param-group 1", 0.9, "absent", with_hyper(FIRST, (("lr", 0.2),))),
    ("nesterov of param-group 1", "absent", True, with_hyper(FIRST, (*SECOND, ("nesterov", True)))),
    ("number of the table", 2, 3, replace(TABLE, number=3)),
]


def test_where_a_table_is_cut_into_stages_is_no_difference():
    """A worker takes over the stages of the job's table: the same job goes on with others, or with none."""
    check_same(TABLE, replace(TABLE, stages=tuple(range(len(TABLE.parameters)))))


@pytest.mark.parametrize("stages", [(0,) * 99, (-1,), (1024,)])
def test_stages_are_one_for_each_parameter(stages):
    """What a worker says of stages is bounded."""
    with pytest.raises(UsageError, match="stages"):
        replace(TABLE, stages=stages * (1 if len(stages) > 1 else len(TABLE.parameters)))


@pytest.mark.parametrize(("what", "expected", "got", "other"), DIFFERENCES)
def test_a_difference_is_named(what, expected, got, other):
    """The error says what differs, what the job has, and what the worker brought."""
    with pytest.raises(TableMismatch) as refused:
        check_same(TABLE, other)
    assert refused.value.facts == {"what": what, "expected": str(expected), "got": str(got)}
    assert refused.value.message == (
        f"table 2 of this job differs: {what}: the job has {expected}, this worker has {got}"
    )


@pytest.mark.parametrize("limit", [0.0, -1.0, float("inf"), float("nan")])
def test_a_norm_that_clips_nothing_or_all_is_no_limit(limit):
    """It is finite and above 0."""
    with pytest.raises(UsageError, match="must be finite and > 0"):
        replace(TABLE, clip_grad_norm=limit)


def test_a_hyperparameter_of_value_none_is_not_a_missing_one():
    """A name that only one of the two has is a difference, whatever its value."""
    with pytest.raises(TableMismatch) as refused:
        check_same(TABLE, with_hyper(FIRST, (("extra", None), *SECOND)))
    assert refused.value.facts["what"] == "extra of param-group 1"


def test_the_first_difference_is_named():
    """Of several, the one that a person can act on first: parameter by parameter, field by field."""
    everything = {"name": "w", "shape": (3, 2), "dtype": "float64", "group": 1, "device": 1, "stride": (1, 2)}
    for what, *_ in DIFFERENCES[:6]:
        with pytest.raises(TableMismatch) as refused:
            check_same(TABLE, replace(with_weight(**everything), number=3))
        assert refused.value.facts["what"] == what
        del everything[next(iter(everything))]


def test_an_earlier_parameter_comes_first():
    """Stride of the first parameter before the name of the second, and that before their number."""
    third = replace(WEIGHT, name="third")
    bent, other = replace(WEIGHT, stride=(1, 2)), replace(BIAS, name="b")
    for parameters, what in [
        ((bent, other, third), "stride of parameter 'weight'"),
        ((WEIGHT, other, third), "name of a parameter"),
        ((WEIGHT, BIAS, third), "number of parameters"),
    ]:
        with pytest.raises(TableMismatch) as refused:
            check_same(TABLE, replace(TABLE, parameters=parameters, number=3))
        assert refused.value.facts["what"] == what


def test_equal_tables_fit():
    """A table that is equal, not only the same, passes."""
    assert check_same(TABLE, replace(TABLE, parameters=(replace(WEIGHT), replace(BIAS)))) is None


@pytest.mark.parametrize("shape", [(-1,), (3, -2), (1,) * 65])
def test_a_shape_that_cannot_be_is_refused(shape):
    """No size is negative, and no tensor has more than 64 of them."""
    with pytest.raises(ParameterUnsupported, match="parameter 'p' has shape"):
        ParameterSpec(name="p", shape=shape)


@pytest.mark.parametrize(
    ("shape", "numel"), [((), 1), ((0, 5), 0), ((2, 3, 4), 24), ((10**6, 10**6), 10**12)]
)
def test_the_elements_of_a_shape(shape, numel):
    """A scalar has one element; an empty tensor none."""
    assert ParameterSpec(name="p", shape=shape).numel == numel


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int64", "torch.float32", ""])
def test_a_dtype_that_no_table_holds_is_refused(dtype):
    """The parameter, its dtype and the ones that work are named."""
    with pytest.raises(ParameterUnsupported, match="float32, float64") as refused:
        ParameterSpec(name="p", shape=(1,), dtype=dtype)
    assert refused.value.facts == {"parameter": "p", "dtype": dtype}


def test_the_bytes_of_each_dtype():
    """Sizes are those of torch."""
    assert {name: item_bytes(name, "p") for name in ITEM_BYTES} == {"float32": 4, "float64": 8}


def test_a_stride_has_an_entry_for_each_size():
    """Otherwise it says nothing about the memory order."""
    with pytest.raises(ParameterUnsupported, match="has 2 sizes and 1 strides"):
        ParameterSpec(name="p", shape=(2, 3), stride=(1,))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ((), "table 2 has no parameters"),
        ((WEIGHT, WEIGHT), "two parameters are named 'weight'"),
        ((replace(WEIGHT, group=2),), "'weight' is in param-group 2; the optimizer has 2"),
        ((replace(WEIGHT, group=-1),), "'weight' is in param-group -1; the optimizer has 2"),
    ],
)
def test_a_table_that_cannot_be_is_refused(parameters, message):
    """A table has parameters, named differently, in param-groups that exist."""
    with pytest.raises(ParameterUnsupported, match=message):
        replace(TABLE, parameters=parameters)


@pytest.mark.parametrize("names", [("b", "a"), ("a", "a")])
def test_hyperparameters_are_sorted_and_unique(names):
    """Equal hyper-parameters are equal bytes only when their order is fixed."""
    with pytest.raises(UsageError, match="sorted and unique"):
        Hyperparameters((tuple((name, 1.0) for name in names),))


@pytest.mark.parametrize("partition_bytes", [0, 4095, 4097, 6000, 8 * MIB + 4096, -4096])
def test_partition_bytes_are_pages(partition_bytes):
    """A multiple of 4096, from 4096 to 8 MiB."""
    with pytest.raises(UsageError, match=rf"multiple of 4096 in 4096\.\.8388608, got {partition_bytes}"):
        BucketOptions(partition_bytes=partition_bytes)


@pytest.mark.parametrize("field", ["bucket_bytes", "first_bucket_bytes"])
def test_bucket_sizes_are_not_negative(field):
    """0 is valid: every parameter is a bucket of its own."""
    assert getattr(BucketOptions(**{field: 0}), field) == 0
    with pytest.raises(UsageError, match=r"must be >= 0, got .*-1"):
        BucketOptions(**{field: -1})


@pytest.mark.parametrize("partition_bytes", [4096, 8 * MIB])
def test_the_ends_of_the_range_are_valid(partition_bytes):
    """The smallest and the largest partition."""
    assert BucketOptions(partition_bytes=partition_bytes).partition_bytes == partition_bytes
