"""A pipeline whose two stages are on two hosts: a namespace each, with a link between them.

Run inside `UNSHARE`; the argument is a folder. It says how many bytes have gone over the link from the first
stage.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from ps_lab.cluster.cluster import command_path
from tests.faults.links import ENTER, Link, ip
from tests.until import LIMIT_S

SCRIPT = str(Path(__file__).with_name("pipeline_script.py"))
STEPS = 3


def main() -> None:
    folder = sys.argv[1]
    ip("link", "set", "lo", "up")
    with Link(1) as link, ExitStack() as stack:

        def start(*words: str) -> subprocess.Popen[bytes]:
            started = subprocess.Popen(words)
            stack.callback(started.kill)
            return started

        server = f"{link.host}:5001"
        options = f"--shard 0/1 --host {link.host} --port 5001 --insecure"
        serving = start(command_path("ps-server"), *options.split())
        stages = []
        for stage, where in enumerate(([], ["nsenter", f"--net={link.environment[ENTER]}"])):
            options = f"--servers {server} --worker 0 --pipeline-stages 2 --stage {stage}"
            words = [command_path("ps-worker"), *options.split(), SCRIPT, folder, str(STEPS)]
            stages.append(start(*where, *words))
        codes = [stage.wait(LIMIT_S) for stage in stages]
        serving.terminate()
        serving.wait(LIMIT_S)
        shown = subprocess.run(
            ["ip", "-s", "-j", "link", "show", "w1"], check=True, capture_output=True, text=True
        ).stdout
        print("codes", codes, "bytes", json.loads(shown)[0]["stats64"]["tx"]["bytes"], flush=True)


if __name__ == "__main__":
    main()
