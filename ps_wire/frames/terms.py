"""A payload that is the mean of terms, for who cannot read these where they lie."""

from __future__ import annotations

import torch

from ps_wire.frames.buffer import as_tensor, bytes_of
from ps_wire.frames.frame import Frame
from ps_wire.process.rank_mean import rank_mean


def whole(frame: Frame) -> Frame:
    """The frame with a payload in place of its terms, taken now, in memory of its own; else the frame itself.

    The terms stay as they are, so that who sends it again sends the same bytes.
    """
    if not frame.terms:
        return frame
    terms = [as_tensor(term, torch.float32) for term in frame.terms]
    return frame.but(terms=(), payload=bytes_of(rank_mean(terms, torch.empty_like(terms[0]))))
