"""A pipeline whose two stages are on two hosts: a namespace each, with a link between them.

Run inside `UNSHARE`; the argument is a folder. It says how many bytes have gone over the link from the first
stage.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.faults.links import ENTER, Link, ip
from tests.until import LIMIT_S

SCRIPT = str(Path(__file__).with_name("pipeline_script.py"))
STEPS = 3


def main() -> None:
    folder = sys.argv[1]
    ip("link", "set", "lo", "up")
    with Link(1) as link:
        server = f"{link.host}:5001"
        words = ["ps-server", "--shard", "0/1", "--host", link.host, "--port", "5001", "--insecure"]
        serving = subprocess.Popen(words)
        stages = []
        for stage, where in enumerate(([], ["nsenter", f"--net={link.environment[ENTER]}"])):
            words = [*where, "ps-worker", "--servers", server, "--worker", "0", "--pipeline-stages", "2"]
            stages.append(subprocess.Popen([*words, "--stage", str(stage), SCRIPT, folder, str(STEPS)]))
        codes = [stage.wait(LIMIT_S) for stage in stages]
        serving.terminate()
        serving.wait(LIMIT_S)
        shown = subprocess.run(
            ["ip", "-s", "-j", "link", "show", "w1"], check=True, capture_output=True, text=True
        ).stdout
        print("codes", codes, "bytes", json.loads(shown)[0]["stats64"]["tx"]["bytes"], flush=True)


if __name__ == "__main__":
    main()
