"""The library reads what is written here, and what is no such file is named."""

import pytest
import safetensors.torch
import torch

from ps_wire.errors import SnapshotCorrupt
from ps_wire.snapshot.tensors import DTYPES, TensorFile, encode

TENSORS = {
    **{str(dtype): torch.arange(5, dtype=dtype) for dtype in DTYPES},
    "number": torch.tensor(3.0),
    "none": torch.zeros(0),
    "strided": torch.arange(12.0).view(3, 4)[:, 1],
    'a "name" with/signs é': torch.ones(2, 3),
}


def test_the_library_reads_what_was_written(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"".join(encode(TENSORS, {"state": '{"a": 1}'})))
    loaded = safetensors.torch.load_file(path)
    assert loaded.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)
    opened = TensorFile(path, "there")
    assert opened.facts == {"state": '{"a": 1}'}
    assert set(opened) == set(TENSORS)
    assert torch.equal(opened["strided"], TENSORS["strided"])
    assert "missing" not in opened


@pytest.mark.parametrize("content", [b"", b"\x08\0\0\0\0\0\0\0{}", b"x" * 100], ids=["empty", "cut", "other"])
def test_a_file_of_another_kind_is_named(tmp_path, content):
    path = tmp_path / "f"
    path.write_bytes(content)
    with pytest.raises(SnapshotCorrupt, match="there is no safetensors file"):
        TensorFile(path, "there")
