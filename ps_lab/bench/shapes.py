"""Tables of a bench: the parameter shapes of known models in registration order, or those of a file."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from ps_wire.errors import UsageError

Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = tuple[Shape, ...]

ITEM_BYTES = 4  # float32


def resnet50() -> Shapes:
    """ResNet-50 (He et al., CVPR 2016): 25,557,032 parameters in 161 tensors."""
    shapes: list[Shape] = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            for shape in ((width, channels, 1, 1), (width, width, 3, 3), (width * 4, width, 1, 1)):
                shapes += [shape, (shape[0],), (shape[0],)]
            if block == 0:
                shapes += [(width * 4, channels, 1, 1), (width * 4,), (width * 4,)]
            channels = width * 4
    return (*shapes, (1000, 2048), (1000,))


def vgg16() -> Shapes:
    """VGG-16 (Simonyan and Zisserman, ICLR 2015): 138,357,544 parameters in 32 tensors."""
    shapes: list[Shape] = []
    channels = 3
    for width in (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512):
        shapes += [(width, channels, 3, 3), (width,)]
        channels = width
    for rows, columns in ((4096, 512 * 7 * 7), (4096, 4096), (1000, 4096)):
        shapes += [(rows, columns), (rows,)]
    return tuple(shapes)


def gpt2() -> Shapes:
    """GPT-2, the smallest (Radford et al., 2019): 124,439,808 parameters in 148 tensors."""
    return _gpt2(width=768, layers=12)


def gpt2_xl() -> Shapes:
    """GPT-2, the largest: 1,557,611,200 parameters in 580 tensors."""
    return _gpt2(width=1600, layers=48)


def dlrm_dense() -> Shapes:
    """DLRM (Naumov et al., 2019) as in MLPerf, without its embeddings: 2,368,897 parameters in 16 tensors."""
    shapes: list[Shape] = []
    for sizes in ((13, 512, 256, 128), (479, 1024, 1024, 512, 256, 1)):
        for columns, rows in itertools.pairwise(sizes):
            shapes += [(rows, columns), (rows,)]
    return tuple(shapes)


def small_tensors() -> Shapes:
    """20,000 tensors of 1 to 4 KiB, 51.2 MB: models with many layers, or with an adapter on each."""
    return tuple((256 * (1 + index % 4),) for index in range(20_000))


def _gpt2(*, width: int, layers: int) -> Shapes:
    norm: Shapes = ((width,), (width,))
    attention: Shapes = ((width, 3 * width), (3 * width,), (width, width), (width,))
    feed_forward: Shapes = ((width, 4 * width), (4 * width,), (4 * width, width), (width,))
    block = norm + attention + norm + feed_forward
    return ((50257, width), (1024, width), *(block * layers), *norm)


MODELS: dict[str, Callable[[], Shapes]] = {
    "resnet50": resnet50,
    "gpt2": gpt2,
    "gpt2-xl": gpt2_xl,
    "vgg16": vgg16,
    "dlrm-dense": dlrm_dense,
    "small-tensors": small_tensors,
}


def parameters_of(shapes: Shapes) -> int:
    """Elements, all tensors together."""
    return sum(math.prod(shape) for shape in shapes)


def bytes_of(shapes: Shapes) -> int:
    """Bytes of the weights, as float32."""
    return ITEM_BYTES * parameters_of(shapes)


def of_model(name: str) -> Shapes:
    """The shapes of a known model.

    Raises:
        UsageError: there is none of that name; those that there are, are listed.
    """
    if name not in MODELS:
        raise UsageError(f"--model {name!r} is not known; there are {', '.join(MODELS)}")
    return MODELS[name]()


def read(path: Path) -> Shapes:
    """The shapes in a JSON file: a list of lists of whole numbers, such as `[[64, 3, 7, 7], [64]]`.

    Raises:
        UsageError: the file cannot be read, or holds something else; the first wrong entry is named.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--shapes {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--shapes {path} is not JSON: {error}") from None
    if not isinstance(found, list) or not found:
        raise UsageError(f"--shapes {path} must hold a list of shapes, such as [[1000, 2048], [1000]]")
    return tuple(_shape(path, index, entry) for index, entry in enumerate(found))


def _shape(path: Path, index: int, entry: object) -> Shape:
    if not isinstance(entry, list) or not all(type(size) is int and 0 < size < 1 << 40 for size in entry):
        raise UsageError(
            f"--shapes {path}: entry {index} is {json.dumps(entry)[:60]}; "
            "a shape is a list of whole numbers > 0"
        )
    return tuple(entry)
