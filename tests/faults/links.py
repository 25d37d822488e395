"""Networks of their own for processes: a namespace each, with a link to where the servers are.

It works inside a network namespace that was made for it (`unshare --user --net`), so nothing of the machine's
own network is touched, and all of it is gone with the last process. A link can be cut, made slow, lose
packets, and swallow all of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import subprocess
from pathlib import Path
from typing import Self

from ps_lab.cluster.namespace import Namespace
from tests.until import LIMIT_S

ENTER = "FAULTS_NETWORK"  # of the environment: the namespace that a process enters
UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--mount")
TRY = "mount -t tmpfs none /tmp"
CLONE_NEWNET = 0x40000000
DISK_BYTES = 64 << 20
BLOCK_BYTES = 4096
NOBODY = "02:00:00:00:00:01"  # no device has this address: what is sent to it vanishes


def refusal() -> str | None:
    """Why there can be no namespaces here; None: there can."""
    try:
        tried = subprocess.run(
            [
                *UNSHARE,
                "sh",
                "-c",
                f"ip link set lo up && ip link add va type veth peer name vb && tc -V && {TRY}",
            ],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except OSError as error:
        return f"no unshare here: {error.strerror}"
    return (
        None
        if tried.returncode == 0
        else f"namespaces with slow links and small disks are not to be had: {tried.stderr.strip()}"
    )


class Link:
    """A namespace, and its link to ours.

    Attributes:
        host: address of our end, where servers are reached from inside.
    """

    def __init__(self, number: int) -> None:
        self.host = f"10.77.{number}.1"
        self._name = f"w{number}"
        self._inside = f"10.77.{number}.2"
        self._rate: str | None = None
        self._namespace = Namespace()
        pid = str(self._namespace.pid)
        ip("link", "add", self._name, "type", "veth", "peer", "name", "eth0", "netns", pid)
        ip("addr", "add", f"{self.host}/24", "dev", self._name)
        ip("link", "set", self._name, "up")
        for words in (
            ("addr", "add", f"{self._inside}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            self._enter("ip", *words)

    @property
    def environment(self) -> dict[str, str]:
        """Of a process that is to live inside."""
        return {ENTER: self._namespace.path}

    def cut(self) -> None:
        """Nothing gets through any more; nobody is told."""
        ip("link", "set", self._name, "down")

    def mend(self) -> None:
        """As before."""
        ip("link", "set", self._name, "up")

    def slow(self, rate: str) -> None:
        """What comes to the inside takes its time: "8mbit"."""
        self._rate = rate
        self._queue(f"rate {rate} burst 32k latency 400ms")

    def silence(self) -> None:
        """Packets vanish both ways, and the link is up: whoever sends is told nothing."""
        ip("neigh", "replace", self._inside, "lladdr", NOBODY, "dev", self._name, "nud", "permanent")
        self._enter("ip", "neigh", "replace", self.host, "lladdr", NOBODY, "dev", "eth0", "nud", "permanent")

    def speak(self) -> None:
        """After `silence`, as before."""
        ip("neigh", "del", self._inside, "dev", self._name)
        self._enter("ip", "neigh", "del", self.host, "dev", "eth0")

    def lose(self) -> None:
        """What comes to the inside goes through so short a queue that packets are lost."""
        self._queue("rate 20mbit burst 4k limit 4k")

    def lost(self) -> int:
        """Packets that were, since `lose`."""
        words = subprocess.run(
            ["tc", "-s", "qdisc", "show", "dev", self._name], check=True, capture_output=True, text=True
        ).stdout
        return sum(map(int, re.findall(r"\(dropped (\d+)", words)))

    def lose_no_more(self) -> None:
        """After `lose`, as before."""
        subprocess.run(["tc", "qdisc", "del", "dev", self._name, "root"], check=True)
        if self._rate is not None:
            self.slow(self._rate)

    def _queue(self, words: str) -> None:
        subprocess.run(
            ["tc", "qdisc", "replace", "dev", self._name, "root", "tbf", *words.split()], check=True
        )

    def _enter(self, *words: str) -> None:
        subprocess.run([*self._namespace.enter, *words], check=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        ip("link", "del", self._name)  # else it goes with the namespace, some time later
        self._namespace.close()


class Disk:
    """A small one at `folder`, in the namespace that `UNSHARE` makes; what is on it goes with it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(folder)], check=True)
        self._filler = folder / ".filler"

    def fill(self) -> None:
        """There is no room for a single byte, until something on it is deleted; called again, also then."""
        with self._filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(BLOCK_BYTES))

    def empty(self) -> None:
        """After `fill`, as before."""
        self._filler.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", str(self._folder)], check=True)


def ip(*words: str) -> None:
    """Runs `ip`."""
    subprocess.run(["ip", *words], check=True)


def install() -> None:
    """Enters the namespace that the environment names; in a process that has one thread."""
    if name := os.environ.get(ENTER):
        descriptor = os.open(name, os.O_RDONLY)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {Path(name)}")
        os.close(descriptor)
