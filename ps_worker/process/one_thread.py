"""One thread at a time is inside the calls of a worker; another one is refused by name.

Which thread it is may change from call to call. What a worker sends and notes has one writer that way, and
needs no lock. A lock that its calls waited for instead would be held while they wait for other workers: two
tables in two threads would come to wait for each other across workers.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import NoReturn

from ps_wire.errors import UsageError


class _Thread(threading.local):
    answers = False  # it receives them, and completes futures


_thread = _Thread()


class OneThread:
    """A guard that one thread holds. `with` it: the calling thread is inside; it may be so several times.

    `_lock` is held while a thread is inside, and guards `_name`. Only who takes turns waits for it.

    Attributes:
        sending: held by hooks that send gradients. They run on threads of autograd, one per device, while a
            thread of the script is inside `backward()`: among each other they take turns.
    """

    def __init__(self) -> None:
        self.sending = threading.RLock()
        self._lock = threading.RLock()
        self._name = ""

    def __enter__(self) -> None:
        if _thread.answers:
            raise UsageError(
                "a callback of a future runs on the thread that receives answers: push(), pull() and step() "
                "would wait for themselves there; wait for result() on a thread of the script and go on there"
            )
        held = False
        try:
            # Unpacked, not called: between a call's end and what is noted of it Python takes signals.
            (held,) = map(self._lock.acquire, (False,))
            if not held:
                self._refuse()
            self._name = threading.current_thread().name
        except BaseException:  # Ctrl-C on the way in
            if held:
                self._lock.release()
            raise

    # The lock's own, looked up before entering: Ctrl-C lands at no line within it.
    __exit__ = property(attrgetter("_lock.__exit__"))

    def _refuse(self) -> NoReturn:
        raise UsageError(
            f"thread {threading.current_thread().name!r} calls a worker while thread {self._name!r} is "
            "inside a call of it, and one at a time may be. push() and pull() return futures, for which "
            "any thread may wait; threads that all push, pull or step take a lock of the script around it"
        )

    @property
    def turn(self) -> AbstractContextManager[object]:
        """`with` it: as entering, but waits for who is inside; for what no script calls by itself."""
        return self._lock


def receives_answers() -> None:
    """This thread receives answers from now on: what a script has it do is no call of a worker."""
    _thread.answers = True
