"""Which tensors share elements: against a search of all addresses."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ps_worker.memory.aliasing import sharing

WHOLE = torch.arange(60.0)


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """Of one memory: any offset, sizes and strides, overlapping itself or not."""
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    stride = [draw(st.integers(0, 6)) for _ in shape]
    return WHOLE.as_strided(shape, stride, draw(st.integers(0, 20)))


@given(st.lists(views(), max_size=6))
def test_exactly_the_tensors_with_a_common_element_share(tensors: list[torch.Tensor]):
    places = [set(tensor.flatten().tolist()) for tensor in tensors]
    found = {frozenset(pair) for pair in sharing({str(index): it for index, it in enumerate(tensors)})}
    pairs = itertools.combinations(range(len(tensors)), 2)
    assert found == {frozenset((str(a), str(b))) for a, b in pairs if places[a] & places[b]}


@pytest.mark.filterwarnings("ignore:Sparse")
def test_tensors_without_memory_of_their_own_share_nothing():
    odd = {
        "sparse": torch.eye(2).to_sparse(),
        "meta": torch.empty(3, device="meta"),
        "again": torch.empty(3, device="meta"),
        "lazy": torch.nn.UninitializedParameter(),
    }
    assert list(sharing(odd)) == []
