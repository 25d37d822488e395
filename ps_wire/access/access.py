"""Credentials that a process shows to a server: its certificates and its token, where it has any."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ps_wire.access import token as tokens
from ps_wire.access.certificates import TlsFolder
from ps_wire.access.token_file import TokenFile

TOKEN_FILE, TLS_DIR = "PS_TOKEN_FILE", "PS_TLS_DIR"  # variables of the environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """A process's certificates and token, where it has any.

    Attributes:
        tls: certificates; None: connections are plain.
        token: the service's or the job's, or the file that holds it; None: calls carry none.
        job: that the token may be bound to; None: it is the service's.
    """

    tls: TlsFolder | None = None
    token: str | TokenFile | None = field(default=None, repr=False)
    job: str | None = None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Of a call that is made now."""
        return tokens.metadata(next(iter(self.tokens()), None), self.job)

    def tokens(self) -> tuple[str, ...]:
        """That are good now; the first one is ours. None of them where there is no token."""
        if isinstance(self.token, TokenFile):
            return self.token.tokens()
        return () if self.token is None else (self.token,)


OPEN = Access()


def read(
    *,
    token_file: Path | None,
    tls_dir: Path | None,
    job: str | None = None,
    serves: bool = False,
    complain: Callable[[str], None],
) -> Access:
    """Reads the files that a person named.

    Args:
        token_file: holds the token; None: there is none.
        tls_dir: folder of the certificates; None: there are none.
        job: that the token may be bound to.
        serves: this process is a server, too.
        complain: see `TlsFolder` and `TokenFile`.

    Raises:
        TokenRefused, TlsRefused: a file is not what it should be; it is named.
    """
    return Access(
        tls=TlsFolder(tls_dir, serves=serves, complain=complain) if tls_dir is not None else None,
        token=TokenFile(token_file, complain) if token_file is not None else None,
        job=job,
    )


def from_environment(environment: Mapping[str, str], complain: Callable[[str], None]) -> Access:
    """Reads what `PS_TOKEN_FILE`, `PS_TLS_DIR` and, where the token is a job's, `PS_JOB` name.

    Raises:
        TokenRefused, TlsRefused: as for `read`.
    """
    paths = {name: Path(text) if (text := environment.get(name)) else None for name in (TOKEN_FILE, TLS_DIR)}
    return read(
        token_file=paths[TOKEN_FILE],
        tls_dir=paths[TLS_DIR],
        job=environment.get("PS_JOB"),
        complain=complain,
    )
