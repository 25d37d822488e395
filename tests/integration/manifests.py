"""The snapshots under a folder, of which a server may delete some while somebody looks."""

from __future__ import annotations

import os
from pathlib import Path

from ps_wire.snapshot.manifest import MANIFEST


def manifests(folder: Path) -> set[Path]:
    """Of all complete ones. `rglob` of Python 3.11 raises where a folder goes that it is about to list."""
    return {Path(at) / MANIFEST for at, _, files in os.walk(folder) if MANIFEST in files}
