"""A file with tokens, read again when it changes: what a process shows, and what a server takes.

Its first line is the token that calls carry; a server takes those of the other lines, too. So a token is
changed without a restart: the new one is added as a second line everywhere, then it becomes the first one,
then the old one goes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from ps_wire.access import token
from ps_wire.errors import TokenRefused


class TokenFile:
    """A file with a token, read again when it changes. Thread-safe."""

    def __init__(self, path: Path, complain: Callable[[str], None]) -> None:
        """Reads the file.

        Args:
            path: of it.
            complain: told, once, about a changed file that cannot be taken; what was there before stays.

        Raises:
            TokenRefused: it cannot be read, or holds something else.
        """
        self._path = path.absolute()  # a script may go to another folder
        self._complain = complain
        self._lock = threading.Lock()
        self._seen = self._look()
        self._tokens = token.read_all(self._path)

    def __repr__(self) -> str:
        """Where they are, not what they are."""
        return f"TokenFile({str(self._path)!r})"

    def tokens(self) -> tuple[str, ...]:
        """The newest good ones; for each call."""
        with self._lock:
            seen = self._look()
            if seen != self._seen:
                self._seen = seen
                try:
                    self._tokens = token.read_all(self._path)
                except TokenRefused as error:
                    self._complain(f"a changed token is not taken: {error.message}")
            return self._tokens

    def _look(self) -> tuple[int, int, int]:
        try:
            state = self._path.stat()
        except OSError:
            return 0, 0, 0
        return state.st_mtime_ns, state.st_ino, state.st_size
