"""However a script ends, what it has recorded is there; a bad profile ends a worker before it trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from ps_worker.recording import columns

from .processes import Start

pytestmark = pytest.mark.integration

SCRIPT = """
import os, signal, torch
import ps_worker as ps
with ps.connect() as worker:
    model = torch.nn.Linear(4, 1)
    optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        worker.log(loss=step)
    {end}
"""

SIGTERM = (
    "os.kill(os.getpid(), signal.SIGTERM); model(torch.ones(2, 4)).sum().backward(); "
    "optimizer.step()  # whose end is the process's"
)


def run(spawn: Start, folder: Path, end: str, **environment: str) -> tuple[int, str]:
    """Exit code, and what was said."""
    script = folder / "script.py"
    script.write_text(SCRIPT.replace("{end}", end))
    process = spawn(
        "ps-worker", "--servers", "none", str(script), PS_RECORD=str(folder / "records"), **environment
    )
    return process.wait_end(), process.text


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("worker.finish()", 0),
        ("raise ValueError('over')", 1),
        (SIGTERM, 75),
    ],
)
def test_all_steps_are_in_the_file(spawn: Start, tmp_path: Path, end: str, code: int):
    ended, said = run(spawn, tmp_path, end)
    assert ended == code, said
    (path,) = (tmp_path / "records").iterdir()
    header, *lines = path.read_text().splitlines(keepends=True)
    assert columns.decode_header(header).worker == 0
    assert [columns.decode(line).loss for line in lines] == [0, 1, 2, 3]


def test_a_profile_that_makes_no_sense_ends_a_worker_with_64(spawn: Start, tmp_path: Path):
    ended, said = run(spawn, tmp_path, "worker.finish()", PS_STRAGGLER="constant:f=0.5")
    assert ended == 64
    assert "straggler constant: f must be from 1" in said
    assert "PS_STRAGGLER" in said
