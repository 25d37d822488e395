"""Parameter shapes of known models, in registration order."""

from __future__ import annotations


def resnet50() -> list[tuple[int, ...]]:
    """ResNet-50 (He et al., CVPR 2016): 25,557,032 parameters in 161 tensors."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            for shape in ((width, channels, 1, 1), (width, width, 3, 3), (width * 4, width, 1, 1)):
                shapes += [shape, (shape[0],), (shape[0],)]
            if block == 0:
                shapes += [(width * 4, channels, 1, 1), (width * 4,), (width * 4,)]
            channels = width * 4
    return [*shapes, (1000, 2048), (1000,)]


MODELS = {"resnet50": resnet50}
