"""Why a server cannot be reached, where TLS is the reason: gRPC says "Socket closed" or nothing at all.

One connection of our own to the same address, and what happens to it.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable

from ps_wire.access.certificates import CA, CERTIFICATE, TlsFolder
from ps_wire.errors import TlsRefused

LIMIT_S = 3.0
RECEIVED_BYTES = 1 << 14
_NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"}


def diagnose(address: str, tls: TlsFolder | None, limit_s: float = LIMIT_S) -> TlsRefused | None:
    """Finds what is wrong with TLS between this process and a server; None: nothing, or it is not there.

    Args:
        address: HOST:PORT of the control plane.
        tls: our certificates; None: we speak without TLS.
        limit_s: for each answer that it waits for, of which there are some.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        with socket.create_connection((host, int(port)), limit_s) as connected:
            return _plain(connected, address) if tls is None else _with_tls(connected, host, address, tls)
    except OSError:
        return None


def why(error: ssl.SSLError) -> str:
    """Says for people why a handshake has failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if error.reason in _NO_TLS:
        return "it does not speak TLS"
    return f"TLS fails: {error.reason or error}"


class _Conversation:
    """TLS over a socket that stays the caller's: some Pythons' `wrap_socket` leaks what a peer resets."""

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, host: str | None = None) -> None:
        self._connected = connected
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._spoken = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    def shake(self) -> None:
        """Raises OSError, of which SSLError is one."""
        self._do(self._spoken.do_handshake)

    def hears(self) -> bool:
        """Whether the peer says something; raises as `shake`, also at an end in order."""
        return bool(self._do(lambda: self._spoken.read(1)))

    def _do(self, call: Callable[[], object]) -> object:
        while True:
            try:
                return call()
            except ssl.SSLWantReadError:
                pass
            finally:
                self._connected.sendall(self._outgoing.read())
            if data := self._connected.recv(RECEIVED_BYTES):
                self._incoming.write(data)
            else:
                self._incoming.write_eof()


def _plain(connected: socket.socket, address: str) -> TlsRefused | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # we only want to know whether anybody speaks TLS there
    context.set_alpn_protocols(["h2"])
    try:
        _Conversation(connected, context).shake()
    except OSError:
        return None
    return TlsRefused(f"server {address} speaks TLS: set --tls-dir (PS_TLS_DIR)", address=address)


def _with_tls(connected: socket.socket, host: str, address: str, tls: TlsFolder) -> TlsRefused | None:
    context = tls.identity().probing
    try:
        conversation = _Conversation(connected, context, host)
        conversation.shake()
        if conversation.hears():  # the first frame of HTTP/2: it has taken our certificate
            return None
    except TimeoutError:
        return None
    except ssl.SSLCertVerificationError as error:
        return TlsRefused(
            f"server {address}: {why(error)}; {tls.path / CA} must be the CA that signed it, and it must be "
            f"valid now, for the name {host}",
            address=address,
        )
    except ssl.SSLError as error:
        if error.reason in _NO_TLS:
            return TlsRefused(
                f"server {address} does not speak TLS: start it with --tls-dir, or leave PS_TLS_DIR out here",
                address=address,
            )
    except ConnectionError:
        pass
    with contextlib.suppress(TlsRefused):
        tls.check()
        return TlsRefused(
            f"server {address} ends the connection: it does not take {tls.path / CERTIFICATE}; the server's "
            f"{CA} must be the CA that signed it",
            address=address,
        )
    return TlsRefused(f"{tls.path / CERTIFICATE} has expired", address=address)
