"""Work of a service that waits until a test lets it go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.component.service import Cluster
from tests.until import LIMIT_S


class Slow:
    """What a shard does for one job, or one worker, waits until it is let go."""

    def __init__(self, owner: Any, name: str, concerns: Callable[..., bool], monkeypatch: Any) -> None:
        self.there, self.go = threading.Event(), threading.Event()
        carry_out = getattr(owner, name)

        def slowly(*arguments: Any, **named: Any) -> Any:
            if concerns(*arguments, **named):
                self.there.set()
                assert self.go.wait(LIMIT_S)
            return carry_out(*arguments, **named)

        monkeypatch.setattr(owner, name, slowly)


@contextmanager
def storage_that_hangs(cluster: Cluster) -> Iterator[None]:
    """All threads of the event loop's pool, where what waits for storage does, are busy inside."""
    go, loop = threading.Event(), cluster._loop.loop

    def fill() -> None:
        for _ in range(64):
            loop.run_in_executor(None, go.wait, LIMIT_S)

    loop.call_soon_threadsafe(fill)
    try:
        yield
    finally:
        go.set()
