"""A host of a run: where a process lives, as others reach it and as it is started there."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host, or a network namespace that stands for one.

    Attributes:
        address: under which others reach it.
        interface: that has the address; for who asks for it by name.
        enter: words before a command that is to run there.
    """

    address: str
    interface: str
    enter: tuple[str, ...] = ()

    @property
    def environment(self) -> Mapping[str, str]:
        """For processes there that gloo or TensorPipe connects: which interface they take."""
        return {"GLOO_SOCKET_IFNAME": self.interface, "TP_SOCKET_IFNAME": self.interface}


LOCAL = Host(address="127.0.0.1", interface="lo" if sys.platform == "linux" else "lo0")
