"""A table's gradients as they travel, where they travel rounded: in memory of their own, made once.

Region ownership is that of the gradients they are made of (`exchange`): from `payload` until the push is
acknowledged nothing is written, so a push that is sent again has the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ps_wire.frames.buffer import bytes_of
from ps_wire.process import trace
from ps_wire.spec.codec import AS_THEY_ARE, CODECS, codec_for, travelling
from ps_wire.spec.plan import Partition
from ps_wire.spec.wire_dtype import WireDtype
from ps_worker.memory.flat import FlatBuckets
from ps_worker.memory.os_memory import private_memory


class Rounded:
    """Gradients of a table as they travel rounded, and the codec of weights that are pulled.

    Attributes:
        codec: of what is pulled, for partitions that can be rounded.
    """

    def __init__(
        self, gradients: FlatBuckets, partitions: Sequence[Partition], wire_dtype: WireDtype
    ) -> None:
        """Allocates what `wire_dtype` needs: half of the gradients that it rounds; nothing for fp32."""
        self.codec = CODECS[wire_dtype]
        self._exact = [gradients.partition(partition) for partition in partitions]
        self._bytes = list(map(gradients.bytes_of, partitions))
        self._codecs = [codec_for(self.codec, values.dtype) for values in self._exact]
        narrow = [index for index, codec in enumerate(self._codecs) if codec != AS_THEY_ARE]
        parts = _buffers([self._exact[index].numel() for index in narrow], self.codec)
        self._rounded = dict(zip(narrow, parts, strict=True))
        for index, rounded in self._rounded.items():
            self._bytes[index] = bytes_of(rounded)

    def codec_of(self, partition: int) -> int:
        """In which this partition's gradient travels."""
        return self._codecs[partition]

    def payload(self, partition: int) -> memoryview:
        """The gradient's bytes as they are to travel, rounded now; of fp32 where they lie."""
        rounded = self._rounded.get(partition)
        if rounded is not None:
            self._round(rounded, self._exact[partition])
        return self._bytes[partition]

    @trace.traced("round gradients")
    def _round(self, rounded: torch.Tensor, exact: torch.Tensor) -> None:
        rounded.copy_(exact)


def _buffers(sizes: list[int], codec: int) -> Sequence[torch.Tensor]:
    dtype = travelling(codec, torch.float32)
    assert dtype is not None
    return torch.split(private_memory(sum(sizes) * dtype.itemsize, dtype), sizes)
