"""What `ps-lab` ends with."""

import signal

import pytest

from ps_lab.errors import DemoFailed, Interrupted, exit_code_of, process_failed, shell_code
from ps_wire.errors import ConsistencyInvalid, PsError, ServerUnreachable, ShardMismatch


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (process_failed("worker 2", 3), 3),
        (process_failed("worker 0", 78), 78),
        (process_failed("worker 1", 137), 137),
        (process_failed("server 0", 0), 1),
        (Interrupted("", signal=signal.SIGINT), 130),
        (Interrupted("", signal=signal.SIGTERM), 75),
        (Interrupted("", signal=signal.SIGHUP), 75),
        (DemoFailed(""), 1),
        (ConsistencyInvalid(""), 64),
        (ServerUnreachable(""), 69),
        (ShardMismatch(""), 78),
    ],
)
def test_every_error_has_its_exit_code(error: PsError, code: int) -> None:
    assert exit_code_of(error) == code


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (3, "worker 2 exited with code 3"),
        (137, "worker 2 was ended by SIGKILL"),
        (200, "worker 2 exited with code 200"),
        (0, "worker 2 ended before the workers did"),
    ],
)
def test_the_failed_process_is_named_with_how_it_ended(code: int, sentence: str) -> None:
    assert process_failed("worker 2", code).message == sentence


def test_a_death_by_signal_has_the_code_that_a_shell_gives_it() -> None:
    assert (shell_code(0), shell_code(78), shell_code(-signal.SIGSEGV)) == (0, 78, 139)
