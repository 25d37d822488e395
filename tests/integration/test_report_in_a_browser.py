"""The report in a real browser: headless Chromium shows every figure, and has nothing to complain of."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.ps_lab.compare.made import EXPERIMENT, made_folder
from tests.until import LIMIT_S

pytestmark = pytest.mark.integration

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# What the page itself does not have: it counts the figures that the browser could draw.
COUNTS = """
<script>addEventListener("load", () => {
  const seen = [...document.images].filter(one => one.complete && one.naturalWidth > 100);
  document.title = `seen ${seen.length} of ${document.images.length}`;
});</script>
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_chromium_shows_all_figures_and_complains_of_nothing(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra compare is not installed")
    from ps_lab.compare.report import make  # noqa: PLC0415 - the extra may not be there

    folder = made_folder(tmp_path / "out", EXPERIMENT.replace("[0, 1, 2, 3, 4]", "[0]"))
    report = make(folder.path)
    figures = len(list((report.page.parent / "figures").glob("*.svg")))
    page = report.page.with_name("counted.html")
    page.write_text(report.page.read_text().replace("</body>", f"{COUNTS}</body>"))
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *(
                f"--user-data-dir={tmp_path / 'profile'}",
                "--enable-logging=stderr",
                "--virtual-time-budget=60000",
            ),
            *("--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert figures > 5
    assert re.findall(r"<title>(.*?)</title>", done.stdout)[-1] == f"seen {figures} of {figures}"
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert complaints == []
