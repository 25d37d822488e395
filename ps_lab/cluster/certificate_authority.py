"""Certificates to try TLS with: a CA, and what it signs for servers and for workers.

For a laptop and for tests. Who runs servers for others has a CA, or a tool that is one.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ps_lab.errors import LibraryMissing
from ps_wire.access.certificates import CA, CERTIFICATE, KEY
from ps_wire.errors import UsageError

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ModuleNotFoundError:
    raise LibraryMissing(
        "to make certificates, cryptography is needed and is not installed: "
        "pip install 'torch-parameter-server[certs]'"
    ) from None

ALWAYS = ("localhost", "127.0.0.1", "::1")
CA_KEY = "ca.key"
SERVER, WORKER = "server", "worker"  # folders
CLOCKS_DIFFER = timedelta(hours=1)  # on another machine
_NAME = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9._-]{0,250}[A-Za-z0-9])?")


def make_certificates(
    folder: Path, *, hosts: Sequence[str] = (), days: int = 365, force: bool = False
) -> tuple[Path, ...]:
    """Makes a CA and two folders for `--tls-dir`, `server` and `worker`; keys are for their owner alone.

    Args:
        folder: where; it is made.
        hosts: names and addresses of servers, beside those of this machine.
        days: for which they are valid; less than 0: they have expired.
        force: replace what is there.

    Returns:
        The files.

    Raises:
        UsageError: some of them are there already, the folder cannot be written, or a host's name is none.
    """
    names = [_general_name(host) for host in dict.fromkeys((*ALWAYS, socket.gethostname(), *hosts))]
    ca_key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, f"parameter server test CA {os.urandom(4).hex()}")]
    )
    builder = _builder(subject, subject, ca_key.public_key(), abs(days))
    ca = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    files = {Path(CA): _pem(ca), Path(CA_KEY): _key_pem(ca_key)}
    for role in (SERVER, WORKER):
        key = ec.generate_private_key(ec.SECP256R1())
        common = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"ps-{role}")])
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        leaf = _builder(common, subject, key.public_key(), days)
        if role == SERVER:
            purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
            leaf = leaf.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = (
            leaf.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
            )
            .sign(ca_key, hashes.SHA256())
        )
        files |= {
            Path(role, CA): _pem(ca),
            Path(role, CERTIFICATE): _pem(certificate),
            Path(role, KEY): _key_pem(key),
        }
    return _write(folder, files, force=force)


def _write(folder: Path, files: Mapping[Path, bytes], *, force: bool) -> tuple[Path, ...]:
    there = [str(folder / name) for name in files if (folder / name).exists()]
    if there and not force:
        raise UsageError(f"{there[0]} is there already: --force replaces it, and what it opened is shut then")
    try:
        for name, text in files.items():
            _replace(folder / name, text)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror or error}") from None
    return tuple(folder / name for name in files)


def _replace(path: Path, text: bytes) -> None:
    """In one step: whoever reads meanwhile finds the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".")  # for its owner alone
    with os.fdopen(descriptor, "wb") as file:
        file.write(text)
    if path.suffix != ".key":
        Path(name).chmod(0o644)
    shutil.move(name, path)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        if not _NAME.fullmatch(host):
            raise UsageError(f"--host {host[:80]!r} is neither a name nor an address") from None
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    end = now + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, end) - CLOCKS_DIFFER)
        .not_valid_after(end)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
