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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ps_wire.address import check_job_name
from ps_wire.errors import TokenRefused

AUTHORIZATION, JOB = "authorization", "ps-job"  # keys of a call's metadata
MIN_CHARACTERS, MAX_CHARACTERS = 16, 512
_SCHEME = "Bearer "
_FORM = re.compile(rf"[\x21-\x7e]{{{MIN_CHARACTERS},{MAX_CHARACTERS}}}")


def read(path: Path) -> str:
    """The token in a file: its only line.

    Raises:
        TokenRefused: the file, which is named, cannot be read or holds something else.
    """
    try:
        with path.open("rb") as file:
            text = file.read(2 * MAX_CHARACTERS).decode("ascii", errors="replace").strip()
    except OSError as error:
        raise TokenRefused(f"{path}: {error.strerror or error} (--token-file, PS_TOKEN_FILE)") from None
    if not _FORM.fullmatch(text):
        raise TokenRefused(
            f"{path} holds no token: one line of {MIN_CHARACTERS} to {MAX_CHARACTERS} printable characters "
            "without spaces, as from `openssl rand -hex 32` (--token-file, PS_TOKEN_FILE)"
        )
    return text


def of_job(service_token: str, job: str) -> str:
    """The token that opens one job, and nothing else.

    Raises:
        UsageError: that is no name of a job.
    """
    name = f"job {check_job_name(job)}".encode()
    return hmac.new(service_token.encode(), name, hashlib.sha256).hexdigest()


def metadata(token: str | None, job: str | None) -> tuple[tuple[str, str], ...]:
    """What a call carries; `job`: for which, if the token may be a job's."""
    if token is None:
        return ()
    return ((AUTHORIZATION, _SCHEME + token), *(((JOB, job),) if job is not None else ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who made a call.

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
    """Compares what calls carry with the service's token, in constant time."""

    service_token: str = field(repr=False)

    def caller(self, carried: Mapping[str, str | bytes]) -> Caller:
        """Who makes a call with this metadata.

        Raises:
            TokenRefused: its token is missing or wrong.
        """
        given = carried.get(AUTHORIZATION)
        if not isinstance(given, str) or not given.startswith(_SCHEME):
            raise TokenRefused("this service wants a token: set --token-file (PS_TOKEN_FILE)")
        token = given.removeprefix(_SCHEME).encode()
        if hmac.compare_digest(token, self.service_token.encode()):
            return ANYBODY
        job = carried.get(JOB)
        name = job if isinstance(job, str) else ""
        expected = hmac.new(self.service_token.encode(), f"job {name}".encode(), hashlib.sha256).hexdigest()
        if not hmac.compare_digest(token, expected.encode()):
            raise TokenRefused(
                "the token (--token-file, PS_TOKEN_FILE) is neither this service's nor that of "
                + (f"job {name[:64]!r}" if name else "a job that was named")
            )
        return Caller(job=name)
