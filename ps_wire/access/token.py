"""Shared tokens: the service's own, from a file, and one per job, which is derived from it.

Who has the service's token may do everything. A job's token is HMAC-SHA256 of the job's name under the
service's token: servers need no list of them, and nobody gets from one to another or to the service's. Every
call carries the token it is made with, as `authorization`, and for a job's token the job, as `ps-job`.

A token is never part of a message, a log or a `repr`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ps_wire.errors import TokenRefused
from ps_wire.spec.address import check_job_name

AUTHORIZATION, JOB = "authorization", "ps-job"  # keys of a call's metadata
MIN_CHARACTERS, MAX_CHARACTERS = 16, 512
MAX_TOKENS = 4  # in a file
_SCHEME = "Bearer "
_FORM = re.compile(rf"[\x21-\x7e]{{{MIN_CHARACTERS},{MAX_CHARACTERS}}}")


def read(path: Path) -> str:
    """The token that calls carry: the first one in a file; for `TokenRefused` see `read_all`."""
    return read_all(path)[0]


def read_all(path: Path) -> tuple[str, ...]:
    """The tokens in a file: its lines.

    Raises:
        TokenRefused: the file, which is named, cannot be read or holds something else.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_TOKENS * 2 * MAX_CHARACTERS).decode("ascii", errors="replace")
    except OSError as error:
        raise TokenRefused(f"{path}: {error.strerror or error} (--token-file, PS_TOKEN_FILE)") from None
    lines = [line.strip() for line in text.strip().splitlines()]
    if not 1 <= len(lines) <= MAX_TOKENS or not all(map(_FORM.fullmatch, lines)):
        raise TokenRefused(
            f"{path} holds no token: one line of {MIN_CHARACTERS} to {MAX_CHARACTERS} printable characters "
            "without spaces, as from `openssl rand -hex 32` (--token-file, PS_TOKEN_FILE), and at most "
            f"{MAX_TOKENS - 1} more such lines with tokens that are taken, too"
        )
    return tuple(lines)


def of_job(service_token: str, job: str) -> str:
    """The token that opens one job, and nothing else.

    Raises:
        UsageError: that is no name of a job.
    """
    name = f"job {check_job_name(job)}".encode()
    return hmac.new(service_token.encode(), name, hashlib.sha256).hexdigest()


def metadata(token: str | None, job: str | None) -> tuple[tuple[str, str], ...]:
    """The metadata of a call; `job`: for which, if the token may be a job's."""
    if token is None:
        return ()
    return ((AUTHORIZATION, _SCHEME + token), *(((JOB, job),) if job is not None else ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller of a method, as its token shows.

    Attributes:
        job: that it is bound to; None: it may do everything.
    """

    job: str | None = None

    def sees(self, job: str) -> bool:
        """Whether that job is its business."""
        return self.job is None or self.job == job

    def check(self, job: str) -> None:
        """Raises TokenRefused unless it may touch that job."""
        if not self.sees(job):
            raise TokenRefused(f"the token is that of job {self.job}, and does not open job {job[:64]!r}")

    def check_service(self, what: str) -> None:
        """Raises TokenRefused unless it may do everything."""
        if self.job is not None:
            raise TokenRefused(f"the token of job {self.job} does not allow to {what}: the service's does")


ANYBODY = Caller()


@dataclass(frozen=True, slots=True)
class TokenCheck:
    """Compares what calls carry with the service's tokens, as they are now, in constant time."""

    service_tokens: Callable[[], tuple[str, ...]] = field(repr=False)

    def caller(self, carried: Mapping[str, str | bytes]) -> Caller:
        """Who makes a call with this metadata.

        Raises:
            TokenRefused: its token is missing or wrong.
        """
        given = carried.get(AUTHORIZATION)
        if not isinstance(given, str) or not given.startswith(_SCHEME):
            raise TokenRefused("this service wants a token: set --token-file (PS_TOKEN_FILE)")
        token = given.removeprefix(_SCHEME).encode()
        services = [service.encode() for service in self.service_tokens()]
        if _is_one_of(token, services):
            return ANYBODY
        job = carried.get(JOB)
        name = job if isinstance(job, str) else ""
        text = f"job {name}".encode()
        jobs = [hmac.new(service, text, hashlib.sha256).hexdigest().encode() for service in services]
        if not _is_one_of(token, jobs):
            raise TokenRefused(
                "the token (--token-file, PS_TOKEN_FILE) is neither this service's nor that of "
                + (f"job {name[:64]!r}" if name else "a job that was named")
            )
        return Caller(job=name)


def _is_one_of(given: bytes, tokens: list[bytes]) -> bool:
    """All of them are compared, whichever it is."""
    return any([hmac.compare_digest(given, token) for token in tokens])  # noqa: C419 - no shortcut
