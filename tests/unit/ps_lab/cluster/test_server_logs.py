"""Where the lines of a run's servers go."""

from __future__ import annotations

from pathlib import Path

import pytest

from ps_lab.cluster.server_logs import ServerLogs
from ps_wire.errors import UsageError

CALM = "2026-11-23T04:00:00.000Z INFO shard=0/1 a worker joined"
TROUBLE = "2026-11-23T04:00:01.000Z WARNING shard=0/1 a worker is silent"
BROKEN = ["2026-11-23T04:00:02.000Z ERROR shard=0/1 a bug", "  | Traceback", "  | ValueError: x"]


def taken(logs: ServerLogs, *lines: str) -> None:
    for line in lines:
        logs.receive("server 0", line)


def test_what_servers_log_is_in_files_and_trouble_is_shown_too(tmp_path: Path) -> None:
    shown: list[tuple[str, str]] = []
    logs = ServerLogs(str(tmp_path / "logs"), lambda process, line: shown.append((process, line)))
    taken(logs, CALM, TROUBLE, *BROKEN, CALM, "  | of a calm line", "ps-server: UsageError: no")
    logs.receive("worker 0", "step 1")
    logs.receive("server 1", CALM)
    logs.close(well=True)
    lines = [TROUBLE, *BROKEN, "ps-server: UsageError: no"]
    assert shown == [*(("server 0", line) for line in lines), ("worker 0", "step 1")]
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["server-0.log", "server-1.log"]
    written = (tmp_path / "logs" / "server-0.log").read_text().splitlines()
    assert written == [CALM, TROUBLE, *BROKEN, CALM, "  | of a calm line", "ps-server: UsageError: no"]


def test_with_show_every_line_is_shown_and_no_folder_is_made() -> None:
    shown: list[str] = []
    logs = ServerLogs("show", lambda _process, line: shown.append(line))
    taken(logs, CALM, TROUBLE)
    logs.close(well=True)
    assert logs.folder is None
    assert shown == [CALM, TROUBLE]


@pytest.mark.parametrize("well", [True, False])
def test_a_folder_of_the_systems_goes_where_the_run_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, well: bool
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    logs = ServerLogs(None, lambda _process, _line: None)
    taken(logs, CALM)
    logs.close(well=well)
    assert logs.folder is not None
    assert logs.folder.exists() != well
    assert logs.folder.parent == tmp_path


def test_a_folder_that_cannot_be_made_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"--logs .*file: .*; it is a folder, or show"):
        ServerLogs(str(tmp_path / "file"), lambda _process, _line: None)
