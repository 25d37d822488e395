"""The certificates of a process: `ca.crt`, `tls.crt` and `tls.key` in a folder, read again when they change.

Names and form are those of a Kubernetes TLS secret: PEM, the key without a password. Both ends of a
connection show a certificate and trust the CA's. What is wrong with the files is found when they are read, by
a handshake of this process with itself, and not by a peer later.

It must not know what connections are for.
"""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ps_wire.errors import TlsRefused

CA, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
_FLIGHTS = 4  # of a handshake, with one to spare
_Seen: TypeAlias = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A process's certificate and the authority that it trusts: the files as they were at one moment.

    Attributes:
        ca: certificates that must have signed a peer's, PEM.
        certificate: ours, and what leads from it to the CA's, PEM.
        key: of our certificate, PEM.
        accepting: for sockets that peers connect to; it asks them for a certificate.
        connecting: for sockets that connect to peers; it compares the host's name.
        probing: as `connecting`, for what speaks HTTP/2.
        trial: connects to ourselves, to find out whether our certificate is good.
    """

    ca: bytes
    certificate: bytes
    key: bytes = field(repr=False)
    accepting: ssl.SSLContext
    connecting: ssl.SSLContext
    probing: ssl.SSLContext
    trial: ssl.SSLContext


class TlsFolder:
    """A folder of certificates, read when they change. Thread-safe; `_lock` guards the newest identity.

    Attributes:
        path: of the folder.
    """

    def __init__(self, path: Path, *, serves: bool, complain: Callable[[str], None]) -> None:
        """Reads the files.

        Args:
            path: of the folder.
            serves: others connect to this process, so its certificate must be good for that, too.
            complain: told, once, about changed files that cannot be taken; the ones before stay in use.

        Raises:
            TlsRefused: a file is missing or not what it should be; it is named.
        """
        self.path = path.absolute()  # a script may go to another folder
        self._serves = serves
        self._complain = complain
        self._lock = threading.Lock()
        self._seen: _Seen = ()
        self._identity = self._read()

    def identity(self) -> Identity:
        """The newest good one; for each new connection."""
        with self._lock:
            if self._look() != self._seen:
                try:
                    self._identity = self._read()
                except TlsRefused as error:
                    self._complain(f"changed certificates are not taken: {error.message}")
            return self._identity

    def check(self) -> None:
        """Raises TlsRefused where our certificate is not good any more: it expires while it is in use."""
        with self._lock:
            self._check(self._identity)

    def _look(self) -> _Seen:
        found = []
        for name in (CA, CERTIFICATE, KEY):
            try:
                state = (self.path / name).stat()
            except OSError:
                found.append((0, 0, 0))
            else:
                found.append((state.st_mtime_ns, state.st_ino, state.st_size))
        return tuple(found)

    def _read(self) -> Identity:
        self._seen = self._look()
        ca, certificate, key = (self._bytes(name) for name in (CA, CERTIFICATE, KEY))
        probing = self._context(ssl.PROTOCOL_TLS_CLIENT)
        probing.set_alpn_protocols(["h2"])
        trial = self._context(ssl.PROTOCOL_TLS_CLIENT)
        trial.check_hostname = False
        if not self._serves:
            trial.verify_mode = ssl.CERT_NONE
        identity = Identity(
            ca=ca,
            certificate=certificate,
            key=key,
            accepting=self._context(ssl.PROTOCOL_TLS_SERVER),
            connecting=self._context(ssl.PROTOCOL_TLS_CLIENT),
            probing=probing,
            trial=trial,
        )
        self._check(identity)
        return identity

    def _bytes(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise TlsRefused(
                f"{self.path / name}: {error.strerror or error}; --tls-dir (PS_TLS_DIR) is a folder with "
                f"{CA}, {CERTIFICATE} and {KEY}, as `ps-lab certs` makes them"
            ) from None

    def _context(self, protocol: ssl._SSLMethod) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        if protocol is ssl.PROTOCOL_TLS_SERVER:
            # Tickets would lie unread at a peer that only sends, and reset its connection when it closes.
            context.num_tickets = 0
        try:
            context.load_verify_locations(self.path / CA)
        except (ssl.SSLError, OSError):
            raise TlsRefused(f"{self.path / CA} holds no certificate in PEM") from None
        try:
            context.load_cert_chain(self.path / CERTIFICATE, self.path / KEY, password="")
        except ssl.SSLError as error:
            raise TlsRefused(self._fault(error)) from None
        except OSError as error:
            raise TlsRefused(f"{self.path}: {error.strerror or error}") from None
        return context

    def _fault(self, error: ssl.SSLError) -> str:
        if error.reason == "KEY_VALUES_MISMATCH":
            return f"{self.path / KEY} is not the key of {self.path / CERTIFICATE}"
        return (
            f"{self.path / CERTIFICATE} or {self.path / KEY} is not PEM, or the key has a password "
            f"({error.reason or error})"
        )

    def _check(self, identity: Identity) -> None:
        ends = [str(authority["notAfter"]) for authority in identity.connecting.get_ca_certs()]
        if ends and all(ssl.cert_time_to_seconds(end) < time.time() for end in ends):
            raise TlsRefused(f"{self.path / CA} has expired, on {ends[-1]}")
        try:
            _shake_hands(identity.trial, identity.accepting)
        except ssl.SSLCertVerificationError as error:
            raise TlsRefused(
                f"{self.path / CERTIFICATE}: {error.verify_message}; it must be valid now, signed by "
                f"{self.path / CA}, and meant for {'servers and clients' if self._serves else 'clients'}"
            ) from None
        except ssl.SSLError as error:
            raise TlsRefused(f"{self.path / CERTIFICATE} cannot be used: {error.reason or error}") from None


def _shake_hands(connecting: ssl.SSLContext, accepting: ssl.SSLContext) -> None:
    """A handshake without a network; raises what either end finds wrong with the other's certificate."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        connecting.wrap_bio(back, there),
        accepting.wrap_bio(there, back, server_side=True),
    ]
    for _ in range(_FLIGHTS):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
