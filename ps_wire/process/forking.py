"""A process that forks others: what it imports before, and what a child then has of its own.

Importing torch and the rest takes 2 s of a core; a fork takes 20 ms. It must not know what the children do.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Sequence

from ps_wire.process import late_dynamo


def preload(modules: Sequence[str]) -> int:
    """Imports modules that children share.

    With one thread for arithmetic: a pool of OpenMP that has been used is not there after a fork, and who
    waits for it waits for ever.

    Returns:
        The threads that torch takes in a process that is not told.
    """
    torch = importlib.import_module("torch")
    threads: int = torch.get_num_threads()
    torch.set_num_threads(1)
    late_dynamo.install()
    for name in modules:
        importlib.import_module(name)
    gc.freeze()  # a collection in a child would copy all pages of torch's objects
    return threads


def begin_child(threads: int) -> None:
    """Gives a forked child random numbers of its own, and torch's threads.

    Args:
        threads: of torch, where the child's environment says nothing of them.
    """
    if "numpy" in sys.modules:  # `random` draws anew by itself
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:  # the process that forks has one thread, see `preload`
        told = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
        sys.modules["torch"].set_num_threads(int(told) if told.isdigit() and int(told) else threads)
