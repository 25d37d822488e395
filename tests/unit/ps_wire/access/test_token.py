"""Tokens: which file holds one, what each of them opens, and that none is ever shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from ps_wire.access.access import Access, read
from ps_wire.access.token import ANYBODY, Caller, TokenCheck, metadata, of_job
from ps_wire.access.token import read as read_token
from ps_wire.errors import TokenRefused, UsageError

SERVICE = "a-token-that-is-long-enough"
CHECK = TokenCheck(lambda: (SERVICE,))


def carried(token: str | None, job: str | None = None) -> dict[str, str]:
    return dict(metadata(token, job))


def test_the_services_token_may_do_everything_whatever_job_is_named():
    assert CHECK.caller(carried(SERVICE)) == ANYBODY
    assert CHECK.caller(carried(SERVICE, "a")) == ANYBODY
    ANYBODY.check("any")
    ANYBODY.check_service("be a shard")


def test_the_token_of_a_job_opens_that_job_alone():
    caller = CHECK.caller(carried(of_job(SERVICE, "a"), "a"))
    assert caller == Caller(job="a")
    caller.check("a")
    assert (caller.sees("a"), caller.sees("b"), caller.sees("")) == (True, False, False)
    for refused in (lambda: caller.check("b"), lambda: caller.check_service("be a shard")):
        with pytest.raises(TokenRefused, match="job a"):
            refused()


@pytest.mark.parametrize(
    "given",
    [
        {},
        carried(None, "a"),
        carried(""),
        carried(SERVICE[:-1]),
        carried(SERVICE + "x"),
        carried(SERVICE.upper()),
        carried(of_job(SERVICE, "a")),
        carried(of_job(SERVICE, "a"), "b"),
        carried(of_job(SERVICE + "x", "a"), "a"),
        carried("\N{SNOWMAN}" * 16, "a"),
        {"authorization": SERVICE},
        {"authorization": f"Basic {SERVICE}"},
        {"authorization": SERVICE.encode()},
        {"ps-job": b"a", "authorization": f"Bearer {of_job(SERVICE, 'a')}"},
    ],
)
def test_any_other_token_is_refused_and_not_shown(given: dict[str, str]):
    with pytest.raises(TokenRefused) as refused:
        CHECK.caller(given)
    assert refused.value.exit_code == 78
    assert SERVICE not in str(refused.value)
    assert of_job(SERVICE, "a") not in str(refused.value)


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch):
    """By the library's function for it, the service's and the job's."""
    compared = []
    monkeypatch.setattr(
        "ps_wire.access.token.hmac.compare_digest", lambda one, other: compared.append((one, other))
    )
    with pytest.raises(TokenRefused):
        CHECK.caller(carried("guess", "a"))
    assert compared == [(b"guess", SERVICE.encode()), (b"guess", of_job(SERVICE, "a").encode())]


@pytest.mark.parametrize("text", [SERVICE, f"{SERVICE}\n", f"  {SERVICE}\r\n"])
def test_a_file_holds_a_token_as_its_only_line(tmp_path: Path, text: str):
    (tmp_path / "token").write_text(text)
    assert read_token(tmp_path / "token") == SERVICE


def test_a_file_that_changes_is_read_again_and_a_bad_one_is_not_taken(tmp_path: Path):
    """First the new token is taken beside the old one, then it is shown, then the old one is refused."""
    path, told = tmp_path / "token", []
    path.write_text(SERVICE)
    access = read(token_file=path, tls_dir=None, complain=told.append)
    check, new = TokenCheck(access.tokens), "another-token-of-the-service"
    for text, shown, good in (
        (f"{SERVICE}\n{new}\n", SERVICE, {SERVICE, new}),
        (f"{new}\n{SERVICE}\n", new, {SERVICE, new}),
        (new, new, {new}),
        ("no token", new, {new}),
    ):
        path.write_text(text)
        assert access.metadata == metadata(shown, None)
        for token in (SERVICE, new):
            for tried, job in ((token, None), (of_job(token, "a"), "a")):
                if token in good:
                    assert check.caller(carried(tried, job)).sees("a")
                else:
                    with pytest.raises(TokenRefused):
                        check.caller(carried(tried, job))
    assert len(told) == 1
    assert "a changed token is not taken" in told[0]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"fifteen-letters",
        b"x" * 513,
        b"x" * 99999,
        b"two words, long enough",
        b"one-good-token-here\n\nand-another-one-here",
        b"\xff" * 32,
    ],
)
def test_what_is_no_token_is_refused_and_not_shown(tmp_path: Path, data: bytes):
    (tmp_path / "token").write_bytes(data)
    with pytest.raises(TokenRefused, match=r"token holds no token: one line of 16 to 512") as refused:
        read_token(tmp_path / "token")
    assert not any(part in str(refused.value) for part in ("letters", "xxx", "words"))


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(TokenRefused, match=r"nowhere: No such file or directory \(--token-file"):
        read_token(tmp_path / "nowhere")


def test_no_representation_shows_a_token(tmp_path: Path):
    (tmp_path / "token").write_text(SERVICE)
    access = read(token_file=tmp_path / "token", tls_dir=None, job="a", complain=print)
    assert access.tokens() == (SERVICE,)
    assert access.metadata == metadata(SERVICE, "a")
    assert SERVICE not in repr((access, access.token, CHECK, Access(token=SERVICE)))


def test_only_jobs_have_tokens_of_their_own():
    with pytest.raises(UsageError, match="job name"):
        of_job(SERVICE, "a b")
    assert of_job(SERVICE, "a") != of_job(SERVICE, "b") != of_job(SERVICE + "x", "b")
