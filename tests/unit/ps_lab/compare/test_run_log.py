"""A run's log on a full disk: its readers go on, and the run is not taken for whole."""

from pathlib import Path

import pytest

from ps_lab.compare.run_log import RunLog
from ps_lab.errors import OutputFailed
from ps_worker.recording.recorder import GAVE_UP

FULL = Path("/dev/full")


def test_lines_of_processes_are_in_the_file(tmp_path: Path):
    with RunLog(tmp_path / "log") as log:
        log.add("worker 0", "step 1")
        log.check()
    log.add("worker 0", "after the end")
    assert (tmp_path / "log").read_text() == "worker 0 | step 1\n"


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
def test_without_room_a_reader_goes_on_and_the_run_is_not_whole():
    with RunLog(FULL) as log:
        log.add("worker 0", "step 1")
        log.add("worker 0", "step 2")
        with pytest.raises(
            OutputFailed, match=r"/dev/full cannot be written: No space left on device\. .*--resume"
        ):
            log.check()


def test_a_worker_that_records_no_more_makes_a_run_that_is_not_whole(tmp_path: Path):
    with RunLog(tmp_path / "log") as log:
        log.add("worker 1", f"WARNING: {GAVE_UP} in records: No space left on device")
        with pytest.raises(OutputFailed, match=r"worker 1 says: WARNING: .*No space left on device"):
            log.check()
