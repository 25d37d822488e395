"""A group whose ranks are on two hosts: a namespace each, with a link between them.

Begun by `tests.faults.apart`; arguments: a folder, the size of the group, and options of `ps-worker`. The
first half of the ranks is on the first host, with the server. It says how each rank has ended, how many bytes
have gone over the link each way, and what the ranks have said.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.faults.links import Link, ip
from tests.integration.processes import Zygote

SCRIPT = str(Path(__file__).with_name("group_script.py"))
STEPS = 4
WIDE = "wide"  # so that what ranks say at other times is little beside a step
INSTALL = {"TESTS_INSTALL": "tests.faults.links"}


def main() -> None:
    folder, size, options = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    ip("link", "set", "lo", "up")
    zygote = Zygote()
    try:
        with Link(1) as link:
            serves = f"--shard 0/1 --host {link.host} --port 5001 --insecure"
            serving = zygote.start("ps-server", *serves.split())
            ranks = []
            for rank in range(size):
                own = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank % (size // 2))}
                where = INSTALL | link.environment if rank >= size // 2 else {}
                words = ["ps-worker", "--servers", f"{link.host}:5001", "--group-size", str(size), *options]
                script = [SCRIPT, folder, str(STEPS), WIDE]
                ranks.append(zygote.start(*words, *script, environment=own | where))
            codes = [rank.wait_end() for rank in ranks]
            serving.kill()
            shown = subprocess.run(
                ["ip", "-s", "-j", "link", "show", "w1"], check=True, capture_output=True, text=True
            ).stdout
            sent = json.loads(shown)[0]["stats64"]
            said = [rank.text for rank in ranks]
            found = {"codes": codes, "there": sent["tx"]["bytes"], "back": sent["rx"]["bytes"], "said": said}
            print(json.dumps(found), flush=True)
    finally:
        zygote.close()


if __name__ == "__main__":
    main()
