"""A hook of a model that tells its worker of each forward; a copy of the model tells nobody.

It is there for as long as the worker, and the model may be copied or saved meanwhile: what holds the worker
stays out of the copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class AtForward:
    """A forward pre-hook that copies and pickles of the model leave out."""

    def __init__(self, tell: Callable[[], object] | None = None) -> None:
        """`tell` is called before each forward; None: nobody."""
        self._tell = tell

    def before(self, *_: object) -> None:
        """The hook."""
        if self._tell is not None and not torch.compiler.is_compiling():
            self._tell()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles know no worker."""
        return AtForward, ()
