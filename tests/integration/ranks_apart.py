"""A group whose ranks are on two hosts: a namespace each, with a link between them.

Run inside `UNSHARE`; arguments: a folder, the size of the group, and options of `ps-worker`. The first half
of the ranks is on the first host, with the server. It says how each rank has ended, how many bytes have gone
over the link each way, and what the ranks have said.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from ps_lab.cluster.cluster import command_path
from tests.faults.links import ENTER, Link, ip
from tests.until import LIMIT_S

SCRIPT = str(Path(__file__).with_name("group_script.py"))
STEPS = 4
WORDS = "large", "small partitions"


def main() -> None:
    folder, size, options = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    ip("link", "set", "lo", "up")
    with Link(1) as link, ExitStack() as stack:

        def start(*words: str, **environment: str) -> subprocess.Popen[str]:
            started = subprocess.Popen(
                words,
                env=os.environ | environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            stack.callback(started.kill)
            return started

        serves = f"--shard 0/1 --host {link.host} --port 5001 --insecure"
        serving = start(command_path("ps-server"), *serves.split())
        ranks = []
        for rank in range(size):
            there = rank >= size // 2
            where = ["nsenter", f"--net={link.environment[ENTER]}"] if there else []
            own = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank % (size // 2))}
            words = [command_path("ps-worker"), "--servers", f"{link.host}:5001", "--group-size", str(size)]
            ranks.append(start(*where, *words, *options, SCRIPT, folder, str(STEPS), *WORDS, **own))
        said = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
        serving.terminate()
        serving.communicate(timeout=LIMIT_S)
        shown = subprocess.run(
            ["ip", "-s", "-j", "link", "show", "w1"], check=True, capture_output=True, text=True
        ).stdout
        sent = json.loads(shown)[0]["stats64"]
        found = {
            "codes": [rank.returncode for rank in ranks],
            "there": sent["tx"]["bytes"],
            "back": sent["rx"]["bytes"],
            "said": said,
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
