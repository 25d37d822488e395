"""Waits for the end of processes that are nobody's children here."""

from ps_lab.cluster.process_handle import ProcessHandle
from tests.until import LIMIT_S


def wait_gone(pid: int) -> None:
    """Until a process that is not our child has ended; fails at the limit."""
    try:
        handle = ProcessHandle(pid)
    except ProcessLookupError:
        return
    assert handle.wait(LIMIT_S), f"process {pid} is still there"
    handle.close()
