"""Flat memory: every parameter is a view of its bucket with its own shape, strides and values."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from ps_wire.spec.plan import Plan
from ps_wire.spec.table import BucketOptions, Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec
from ps_worker.memory.flat import FlatBuckets, stride_of

OPTIMIZER = OptimizerSpec(name="SGD", hyperparameters=Hyperparameters(((("lr", 0.1),), (("lr", 0.2),))))
SMALL = BucketOptions(bucket_bytes=1024, first_bucket_bytes=512, partition_bytes=4096)


def plan_of(tensors: list[torch.Tensor], num_shards: int = 2) -> Plan:
    parameters = tuple(
        ParameterSpec(
            name=f"p{index}",
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            group=index % 2,
            stride=stride_of(tensor),
        )
        for index, tensor in enumerate(tensors)
    )
    return Plan(TableSpec(number=0, parameters=parameters, optimizer=OPTIMIZER, buckets=SMALL), num_shards)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Of any small shape, dims in any order, sometimes only every second element of its memory."""
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    order = draw(st.permutations(range(len(shape))))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    tensor = torch.randn([shape[dim] for dim in order], dtype=dtype)
    tensor = tensor.permute([order.index(dim) for dim in range(len(shape))])
    if tensor.dim() and draw(st.booleans()):
        tensor = torch.cat([tensor, tensor], dim=-1)[..., ::2]
    return tensor


@given(st.lists(tensors(), min_size=1, max_size=6), st.integers(1, 3))
def test_views_keep_shape_and_values_and_never_overlap(values: list[torch.Tensor], num_shards: int):
    flat = FlatBuckets(plan_of(values, num_shards))
    for view, value in zip(flat.views, values, strict=True):
        view.copy_(value)
    for view, value in zip(flat.views, values, strict=True):
        assert view.shape == value.shape
        assert view.dtype == value.dtype
        assert torch.equal(view, value)
        if view.numel():
            assert view.data_ptr() % 64 == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_view_has_a_storage_of_its_own_over_its_bucket(dtype: torch.dtype):
    """Accelerate, safetensors, torch.save and deepcopy go by storages."""
    flat = FlatBuckets(plan_of([torch.zeros(shape, dtype=dtype) for shape in ((3, 5), (0,), (7,), ())]))
    storages = [view.untyped_storage() for view in flat.views]
    assert [storage.nbytes() for storage in storages] == [view.nbytes for view in flat.views]
    assert len({storage.data_ptr() for storage in storages}) == len(storages)
    for tensor in flat.tensors:
        tensor.fill_(2)
    assert all(bool((view == 2).all()) for view in flat.views)
    saved = safetensors.torch.save({str(index): view for index, view in enumerate(flat.views)})
    assert len(safetensors.torch.load(saved)) == len(flat.views)


@given(tensors())
def test_dense_strides_are_kept_and_others_become_the_usual_ones(value: torch.Tensor):
    (view,) = FlatBuckets(plan_of([value])).views
    stride = stride_of(value)
    assert view.stride() == (stride or view.contiguous().stride())
    if value.numel():
        filled = 1 + sum(step * (size - 1) for step, size in zip(value.stride(), value.shape, strict=True))
        assert bool(stride) == (not value.is_contiguous() and filled == value.numel())


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_convolutions_keep_their_memory_format(layout: torch.memory_format):
    weight = torch.randn(4, 3, 2, 2).to(memory_format=layout)
    flat = FlatBuckets(plan_of([weight]))
    flat.views[0].copy_(weight)
    assert flat.views[0].stride() == weight.stride()
    in_memory = weight.permute(0, 2, 3, 1) if layout is torch.channels_last else weight
    assert torch.equal(flat.tensors[0][: weight.numel()], in_memory.reshape(-1))


def test_partitions_are_views_that_cover_each_bucket_once():
    values = [torch.zeros(size) for size in (2000, 3, 40, 999)]
    plan = plan_of(values, 3)
    flat = FlatBuckets(plan)
    for index in range(plan.num_partitions):
        flat.partition(plan.partition(index)).add_(1.0)
    for tensor in flat.tensors:
        assert bool((tensor == 1.0).all())


def test_bytes_of_a_partition_are_its_memory():
    plan = plan_of([torch.zeros(3000)])
    flat = FlatBuckets(plan)
    partition = plan.partition(1)
    view = flat.bytes_of(partition)
    assert view.format == "B"
    assert len(view) == flat.partition(partition).nbytes
    flat.partition(partition).fill_(2.0)
    assert bytes(view) == torch.full((partition.numel,), 2.0).numpy().tobytes()
