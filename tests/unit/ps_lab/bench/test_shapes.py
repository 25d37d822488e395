"""Known models have their parameters; a file that holds no shapes is refused with what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ps_lab.bench import shapes
from ps_wire.errors import UsageError


@pytest.mark.parametrize(
    ("model", "parameters", "tensors"),
    [
        ("resnet50", 25_557_032, 161),
        ("vgg16", 138_357_544, 32),
        ("gpt2", 124_439_808, 148),
        ("gpt2-xl", 1_557_611_200, 580),
        ("dlrm-dense", 2_368_897, 16),
        ("small-tensors", 12_800_000, 20_000),
    ],
)
def test_a_known_model_has_its_published_number_of_parameters(
    model: str, parameters: int, tensors: int
) -> None:
    found = shapes.of_model(model)
    assert (shapes.parameters_of(found), len(found)) == (parameters, tensors)
    assert shapes.bytes_of(found) == 4 * parameters


def test_an_unknown_model_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        UsageError, match=r"'alexnet'.*resnet50, gpt2, gpt2-xl, vgg16, dlrm-dense, small-tensors"
    ):
        shapes.of_model("alexnet")


def test_a_file_of_shapes_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "shapes.json"
    path.write_text("[[2, 3], [], [7]]")
    assert shapes.read(path) == ((2, 3), (), (7,))
    assert shapes.parameters_of(shapes.read(path)) == 14


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is not JSON"),
        ("[[1, 2]", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("{}", "must hold a list of shapes"),
        ("[]", "must hold a list of shapes"),
        ("7", "must hold a list of shapes"),
        ("[[1], 2]", "entry 1 is 2"),
        ("[[1], [2.5]]", r"entry 1 is \[2.5\]"),
        ("[[0]]", r"entry 0 is \[0\]"),
        ("[[-1]]", r"entry 0 is \[-1\]"),
        ("[[true]]", r"entry 0 is \[true\]"),
        ('[["a"]]', "entry 0"),
        (json.dumps([[1], [1 << 50]]), "entry 1"),
    ],
)
@pytest.mark.usefixtures("uncollected")
def test_a_file_that_holds_no_shapes_is_refused(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "shapes.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=said) as refused:
        shapes.read(path)
    assert str(path) in refused.value.message
    assert len(refused.value.message) < 500


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "shapes.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not JSON"):
        shapes.read(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        shapes.read(tmp_path / "nowhere.json")
