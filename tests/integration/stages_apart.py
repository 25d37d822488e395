"""A pipeline whose two stages are on two hosts: a namespace each, with a link between them.

Begun by `tests.faults.apart`; the argument is a folder. It says how many bytes have gone over the link from
the first stage.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from tests.faults.links import Link, ip
from tests.integration.processes import Zygote

SCRIPT = str(Path(__file__).with_name("pipeline_script.py"))
STEPS = 3
INSTALL = {"TESTS_INSTALL": "tests.faults.links"}


def main() -> None:
    folder = sys.argv[1]
    ip("link", "set", "lo", "up")
    with Link(1) as link, closing(Zygote()) as zygote:
        server = f"{link.host}:5001"
        options = f"--shard 0/1 --host {link.host} --port 5001 --insecure"
        serving = zygote.start("ps-server", *options.split())
        stages = []
        for stage, where in enumerate(({}, INSTALL | link.environment)):
            options = f"--servers {server} --worker 0 --pipeline-stages 2 --stage {stage}"
            words = ["ps-worker", *options.split(), SCRIPT, folder, str(STEPS)]
            stages.append(zygote.start(*words, environment=where))
        codes = [stage.wait_end() for stage in stages]
        for stage in stages:
            print(stage.text)
        serving.signal(signal.SIGTERM)
        serving.wait_end()
        shown = subprocess.run(
            ["ip", "-s", "-j", "link", "show", "w1"], check=True, capture_output=True, text=True
        ).stdout
        print("codes", codes, "bytes", json.loads(shown)[0]["stats64"]["tx"]["bytes"], flush=True)


if __name__ == "__main__":
    main()
