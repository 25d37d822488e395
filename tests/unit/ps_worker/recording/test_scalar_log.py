"""Scalars for TensorBoard, read as TensorBoard reads them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from ps_wire.errors import UsageError
from ps_worker.recording.scalar_log import ScalarLog
from tests.scalars import scalars


def nobody(line: str) -> None:
    raise AssertionError(line)


def test_a_job_is_a_run_with_the_names_of_the_script_without_what_is_void(tmp_path: Path):
    pytest.importorskip("tensorboard")
    log = ScalarLog(tmp_path, "digits", warn=nobody)
    before = ScalarLog(tmp_path, "digits", warn=nobody)
    before.enter(first=True, since=0)
    before.log("loss", 100.0, 1)
    before.close()
    log = ScalarLog(tmp_path, "digits", warn=nobody)
    log.enter(first=True, since=0)  # another job of the name
    for step in (1, 2, 3):
        log.log("loss", 0.5 * step, step)
    log.log("val/accuracy", 0.25, 1)
    log.enter(first=True, since=2)  # the job went back
    log.log("loss", 7.0, 2)
    log.enter(first=True, since=None)  # a process came to the job that is under way
    log.log("loss", 8.0, 3)
    log.close()
    log.log("loss", 9.0, 4)  # nobody is there to write it
    assert scalars(tmp_path / "digits") == {
        "loss": [(1, 0.5), (2, 7.0), (3, 8.0)],
        "val/accuracy": [(1, 0.25)],
    }


def test_workers_but_the_first_make_no_file(tmp_path: Path):
    pytest.importorskip("tensorboard")
    log = ScalarLog(tmp_path, "digits", warn=nobody)
    log.enter(first=False, since=0)
    log.log("loss", 1.0, 1)
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_costs_the_log_and_one_warning(tmp_path: Path):
    pytest.importorskip("tensorboard")
    (tmp_path / "digits").write_text("a file")
    said: list[str] = []
    log = ScalarLog(tmp_path, "digits", warn=said.append)
    for _ in range(2):
        log.enter(first=True, since=0)
        log.log("loss", 1.0, 1)
    log.close()
    assert len(said) == 1
    assert "no scalars are logged" in said[0]


def test_without_the_package_its_name_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"PS_LOG_DIR.*pip install tensorboard"):
        ScalarLog(tmp_path, "digits", warn=nobody)
