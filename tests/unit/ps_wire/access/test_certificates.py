"""Files of certificates: what is wrong is said by name, and changed ones are taken when they are good."""

from __future__ import annotations

import shutil
import ssl
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ps_lab.cluster.certificate_authority import make_certificates
from ps_wire.access.certificates import TlsFolder
from ps_wire.errors import TlsRefused, UsageError


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    for name, days in (("one", 5), ("other", 5), ("expired", -1)):
        make_certificates(folder / name, days=days)
    return folder


def folder_of(made: Path, tmp_path: Path, role: str = "server") -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(made / "one" / role, tmp_path / role))


def opened(path: Path, *, serves: bool = True, said: list[str] | None = None) -> TlsFolder:
    return TlsFolder(path, serves=serves, complain=(said if said is not None else []).append)


def test_both_ends_show_a_certificate_and_speak_no_older_tls(made: Path):
    """Whoever accepts connections, too: a peer without one is nobody."""
    identity = opened(made / "one" / "server").identity()
    for context in (identity.accepting, identity.connecting):
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize(("role", "serves"), [("server", True), ("server", False), ("worker", False)])
def test_what_certs_makes_is_taken_in_its_role(made: Path, role: str, serves: bool):
    identity = opened(made / "one" / role, serves=serves).identity()
    assert identity.certificate == (made / "one" / role / "tls.crt").read_bytes()
    assert b"PRIVATE" not in repr(identity).encode()


def test_a_workers_certificate_is_none_for_a_server(made: Path):
    with pytest.raises(TlsRefused, match=r"tls.crt: .*purpose.* meant for servers and clients"):
        opened(made / "one" / "worker")


def without(name: str) -> Callable[[Path, Path], None]:
    return lambda _made, path: (path / name).unlink()


def holding(name: str, text: bytes) -> Callable[[Path, Path], None]:
    return lambda _made, path: (path / name).write_bytes(text) and None


def of_other(*names: str) -> Callable[[Path, Path], None]:
    def change(made: Path, path: Path) -> None:
        for name in names:
            shutil.copy(made / "other" / "server" / name, path / name)

    return change


def expired(made: Path, path: Path) -> None:
    shutil.copytree(made / "expired" / "server", path, dirs_exist_ok=True)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (without("ca.crt"), r"ca.crt: No such file.*PS_TLS_DIR"),
        (without("tls.crt"), r"tls.crt: No such file"),
        (without("tls.key"), r"tls.key: No such file"),
        (holding("ca.crt", b"nothing"), r"ca.crt holds no certificate in PEM"),
        (holding("tls.crt", b"nothing"), r"tls.crt or .*tls.key is not PEM"),
        (holding("tls.key", b"nothing"), r"tls.crt or .*tls.key is not PEM"),
        (of_other("tls.key"), r"tls.key is not the key of .*tls.crt"),
        (of_other("ca.crt"), r"tls.crt: .*; it must be valid now, signed by .*ca.crt"),
        (of_other("tls.crt", "tls.key"), r"tls.crt: .*; it must be valid now, signed by .*ca.crt"),
        (expired, r"tls.crt: certificate has expired"),
    ],
)
def test_what_is_wrong_with_the_files_is_said_by_name(
    made: Path, tmp_path: Path, change: Callable[[Path, Path], None], text: str
):
    path = folder_of(made, tmp_path)
    change(made, path)
    with pytest.raises(TlsRefused, match=text) as refused:
        opened(path)
    assert refused.value.exit_code == 78


def test_changed_files_are_taken_once_all_of_them_are_there(made: Path, tmp_path: Path):
    """In between the old ones stay in use, and a line says why; nothing is read while nothing changes."""
    path, said = folder_of(made, tmp_path), []
    folder = opened(path, said=said)
    first = folder.identity()
    assert folder.identity() is first
    of_other("tls.crt")(made, path)
    assert [folder.identity(), folder.identity()] == [first, first]
    assert len(said) == 1
    assert "tls.key is not the key of" in said[0]
    of_other("tls.key", "ca.crt")(made, path)
    second = folder.identity()
    assert second.certificate == (made / "other" / "server" / "tls.crt").read_bytes()
    without("tls.crt")(made, path)
    assert folder.identity() is second
    assert len(said) == 2


def test_a_certificate_that_expires_in_use_is_found(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = opened(folder_of(made, tmp_path))
    folder.check()
    monkeypatch.setattr("ps_wire.access.certificates.time.time", lambda: 4e9)
    with pytest.raises(TlsRefused, match=r"ca.crt has expired, on "):
        folder.check()


def test_keys_are_for_their_owner_alone_and_nothing_is_overwritten(tmp_path: Path):
    paths = make_certificates(tmp_path / "new")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in paths}
    assert modes == {"ca.crt": 0o644, "ca.key": 0o600, "tls.crt": 0o644, "tls.key": 0o600}
    before = {path: path.read_bytes() for path in paths}
    with pytest.raises(UsageError, match="is there already: --force replaces it"):
        make_certificates(tmp_path / "new")
    assert {path: path.read_bytes() for path in paths} == before
    make_certificates(tmp_path / "new", force=True)
    assert all(path.read_bytes() != before[path] for path in paths)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "ca.crt",
        "ca.key",
        "server",
        "worker",
    ]


@pytest.mark.parametrize("host", ["a b", "-x", "*", "x/y", "", "a\n"])
def test_what_is_no_name_of_a_host_is_refused(tmp_path: Path, host: str):
    with pytest.raises(UsageError, match="is neither a name nor an address"):
        make_certificates(tmp_path, hosts=[host])
    assert not list(tmp_path.iterdir())
