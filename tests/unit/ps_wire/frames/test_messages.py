"""Tables, hyper-parameters and errors as protobuf messages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_wire.errors import BY_NAME, FrameMalformed, ParameterUnsupported, PsError, UsageError
from ps_wire.frames import messages
from ps_wire.spec.dtypes import ITEM_BYTES
from ps_wire.spec.epoch_use import EpochUse
from ps_wire.spec.table import BucketOptions, Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec
from ps_wire.text import one_line
from ps_wire.v1 import coordinator_pb2 as coordinator
from ps_wire.v1 import spec_pb2 as spec

NUMBERS = st.floats(allow_nan=False)
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | NUMBERS
    | st.text(max_size=10)
    | st.lists(NUMBERS, max_size=4).map(tuple)
)
GROUPS = st.dictionaries(st.text(max_size=8), VALUES, max_size=4).map(
    lambda group: tuple(sorted(group.items()))
)
HYPER = st.lists(GROUPS, min_size=1, max_size=3).map(lambda groups: Hyperparameters(tuple(groups)))


CLIPPED_AT_0 = spec.Table(
    parameters=[spec.Parameter(name="p", dtype="float32", shape=[1])],
    optimizer=spec.Optimizer(name="SGD", hyperparameters=spec.Hyperparameters(groups=[spec.Group()])),
    buckets=spec.Buckets(partition_bytes=4096),
    clip_grad_norm=0.0,
)


@st.composite
def tables(draw) -> TableSpec:
    hyper = draw(HYPER)
    shapes = draw(st.lists(st.lists(st.integers(0, 2**40), max_size=4).map(tuple), min_size=1, max_size=4))
    parameters = tuple(
        ParameterSpec(
            name=f"p{index}",
            shape=shape,
            dtype=draw(st.sampled_from(sorted(ITEM_BYTES))),
            group=draw(st.integers(0, len(hyper.groups) - 1)),
            device=draw(st.integers(0, 7)),
            stride=draw(st.just(()) | st.just(shape[::-1])),
        )
        for index, shape in enumerate(shapes)
    )
    options = BucketOptions(
        bucket_bytes=draw(st.integers(0, 2**40)),
        first_bucket_bytes=draw(st.integers(0, 2**40)),
        partition_bytes=draw(st.integers(1, 1024)) * 4096,
    )
    return TableSpec(
        number=draw(st.integers(0, 2**32 - 1)),
        parameters=parameters,
        optimizer=OptimizerSpec(name=draw(st.text(max_size=8)), hyperparameters=hyper),
        buckets=options,
        clip_grad_norm=draw(st.none() | st.floats(1e-300, 1e300)),
        stages=draw(st.just(()) | st.tuples(*[st.integers(0, 1023)] * len(parameters))),
    )


@given(VALUES)
def test_a_value_keeps_its_type(value):
    """1, 1.0, True, "1", None and (1.0,) are six values on both ends."""
    received = messages.value_from_proto(messages.value_to_proto(value))
    assert (type(received), received) == (type(value), value)


@given(HYPER)
def test_hyperparameters_cross_the_wire(hyper):
    """Equal hyper-parameters are equal messages of equal bytes."""
    data = messages.hyperparameters_to_proto(hyper).SerializeToString()
    message = messages.parse_message(spec.Hyperparameters, data)
    received = messages.hyperparameters_from_proto(message)
    assert received == hyper
    assert messages.hyperparameters_to_proto(received).SerializeToString() == data


@given(tables())
def test_a_table_crosses_the_wire(table):
    """Every field of a table arrives as it left."""
    data = messages.table_to_proto(table).SerializeToString()
    assert messages.table_from_proto(messages.parse_message(spec.Table, data)) == table


def test_a_hyperparameter_without_a_value_is_refused():
    """A peer that knows other kinds of values does not get a guess."""
    with pytest.raises(FrameMalformed, match="without a value"):
        messages.value_from_proto(spec.Value())
    message = spec.Hyperparameters(groups=[spec.Group(hyperparameters=[spec.Hyperparameter(name="lr")])])
    with pytest.raises(FrameMalformed):
        messages.hyperparameters_from_proto(message)


def test_unsorted_hyperparameters_are_refused():
    """What arrives is checked as what is typed."""
    pairs = [spec.Hyperparameter(name=name, value=spec.Value(integer=1)) for name in ("b", "a")]
    with pytest.raises(UsageError):
        messages.hyperparameters_from_proto(spec.Hyperparameters(groups=[spec.Group(hyperparameters=pairs)]))


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (spec.Table(), UsageError),  # partition_bytes = 0
        (spec.Table(buckets=spec.Buckets(partition_bytes=4096)), ParameterUnsupported),  # no parameters
        (spec.Table(parameters=[spec.Parameter(name="p", dtype="int8")]), ParameterUnsupported),
        (CLIPPED_AT_0, UsageError),
        (
            spec.Table(parameters=[spec.Parameter(name="p", dtype="float32", shape=[-1])]),
            ParameterUnsupported,
        ),
    ],
)
def test_a_table_with_missing_or_wrong_values_is_refused(message, error):
    """A message in which something is missing is no table."""
    with pytest.raises(error):
        messages.table_from_proto(message)


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05ab", b"\x12\x03\x0a\x01\xff"])
def test_bytes_that_are_no_message_are_refused(data):
    """The error names the message that was expected."""
    with pytest.raises(FrameMalformed, match="not a Table"):
        messages.parse_message(spec.Table, data)


def test_text_that_is_no_utf_8_is_refused_whichever_protobuf_is_installed():
    """Its Python implementation raises what `bytes.decode` does."""

    class Table:
        def ParseFromString(self, data: bytes) -> None:  # noqa: N802 - protobuf's name
            data.decode()

    with pytest.raises(FrameMalformed, match="not a Table"):
        messages.parse_message(Table, b"\xff")


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_but_the_named_errors(data):
    """Whatever a peer sends is a table or raises an error of ours."""
    try:
        table = messages.table_from_proto(messages.parse_message(spec.Table, data))
    except PsError:
        return
    assert table.parameters


@given(st.sampled_from(sorted(BY_NAME)), st.text(max_size=30), st.integers())
def test_an_error_crosses_the_wire(name, message, clock):
    """A refusal has the same class, message (escaped, for it is shown there) and facts on the other end."""
    data = messages.refused_to_proto(BY_NAME[name](message, clock=clock)).SerializeToString()
    received = messages.refused_from_proto(messages.parse_message(coordinator.Refused, data))
    assert type(received) is BY_NAME[name]
    assert (received.message, received.facts) == (one_line(message), {"clock": clock})


def test_an_account_of_an_epoch_comes_back_and_counts_that_fit_no_message_are_cut():
    use = EpochUse(loader=1, epoch=2, samples=100, used=90, handed_on=30, over=True)
    assert messages.epoch_use_from_proto(messages.epoch_use_to_proto(use)) == use
    made_up = replace(use, used=1 << 70, handed_on=1 << 64)
    cut = messages.epoch_use_from_proto(messages.epoch_use_to_proto(made_up))
    assert cut == replace(use, used=messages.MAX_COUNT, handed_on=messages.MAX_COUNT)
