"""Tokens for data connections: each is drawn for one rank of a worker, and good for one connection.

`ConnectionTokens` are those of a shard: it knows of any token whether it has given it to whom it is shown by.
`UnusedTokens` are those of a job that are still good. They must not know who may have one.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

from ps_wire.errors import StrangerRefused
from ps_wire.text import one_line

TOKEN_BYTES = 16
NONCE_BYTES = 8  # of them; the others prove for whom it was drawn
MAX_NAME = 64  # characters of a job's, where a refusal names it
MAX_TOKENS = 16  # a rank's that it has asked for and not used; older ones are void


class ConnectionTokens:
    """The tokens of a shard, which nobody else can draw. Thread-safe: it never changes."""

    def __init__(self) -> None:
        """With a secret of its own: tokens of another process, or of the one before, are none of it."""
        self._secret = secrets.token_bytes(32)

    def draw(self, job: str, worker: int, incarnation: int, rank: int) -> bytes:
        """A new one, of `TOKEN_BYTES`."""
        return self._sign(secrets.token_bytes(NONCE_BYTES), job, worker, incarnation, rank)

    def check(self, token: bytes, job: str, worker: int, incarnation: int, rank: int) -> None:
        """Refuses a token of somebody else; what it says of every job is the same, whether it is here or not.

        Raises:
            StrangerRefused: it was never drawn for this rank of this worker.
        """
        if not hmac.compare_digest(token, self._sign(token[:NONCE_BYTES], job, worker, incarnation, rank)):
            raise StrangerRefused(f"{owner_of(job, worker)}: this token was not given to it")

    def _sign(self, nonce: bytes, job: str, worker: int, incarnation: int, rank: int) -> bytes:
        """The token with this beginning, of this rank of a worker: nobody else can tell it."""
        whose = f"{incarnation} {worker} {rank} {job}".encode(errors="replace")
        size = TOKEN_BYTES - NONCE_BYTES
        return nonce + hashlib.blake2b(nonce + whose, key=self._secret, digest_size=size).digest()


def owner_of(job: str, worker: int) -> str:
    """A worker as refusals name it, though the job's name may be anything."""
    return f"worker {worker} of job {one_line(job, MAX_NAME)}"


@dataclass(slots=True)
class UnusedTokens:
    """A job's tokens that are still good; guarded by the lock of jobs.

    Attributes:
        by_rank: (worker, incarnation, rank) -> its tokens, the oldest first.
    """

    by_rank: dict[tuple[int, int, int], list[bytes]] = field(default_factory=dict)

    def keep(self, token: bytes, worker: int, incarnation: int, rank: int) -> None:
        """One that was drawn for a rank; of those that it has not used the newest are good."""
        kept = self.by_rank.setdefault((worker, incarnation, rank), [])
        kept.append(token)
        del kept[:-MAX_TOKENS]

    def use(self, token: bytes, worker: int, incarnation: int, rank: int) -> bool:
        """Whether it is one of this rank's; it is not any more."""
        kept = self.by_rank.get((worker, incarnation, rank), [])
        for index, known in enumerate(kept):
            if hmac.compare_digest(known, token):
                del kept[index]
                return True
        return False

    def forget(self, worker: int, incarnation: int | None = None) -> None:
        """None of a worker is good any more; of one incarnation, or of all."""
        for key in [key for key in self.by_rank if key[0] == worker and incarnation in (None, key[1])]:
            del self.by_rank[key]

    def copy(self) -> UnusedTokens:
        """Of this moment."""
        return UnusedTokens({key: list(tokens) for key, tokens in self.by_rank.items()})
