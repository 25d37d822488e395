"""In a process under test: limits in time of its own, where those of the product are longer than a test.

The environment has them as JSON: {"ps_worker.transport.liveness.SILENT_S": 0.5}.
"""

from __future__ import annotations

import importlib
import json
import os

from tests.until import LIMIT_S

LIMITS = "FAULTS_LIMITS"  # of the environment


def environment(**limits: float | tuple[int, ...]) -> dict[str, str]:
    """For a process; names with "__" in the place of dots."""
    return {"TESTS_INSTALL": __name__, LIMITS: text(**limits)}


def text(**limits: float | tuple[int, ...]) -> str:
    """What the environment has of them."""
    return json.dumps({name.replace("__", "."): value for name, value in limits.items()})


def install() -> None:
    """Sets what the environment says."""
    for name, value in json.loads(os.environ.get(LIMITS, "{}")).items():
        module, _, constant = name.rpartition(".")
        known = importlib.import_module(module)
        assert hasattr(known, constant), name
        setattr(known, constant, tuple(value) if isinstance(value, list) else value)


MAPPED = environment(ps_worker__transport__carrier_choice__GREET_LIMIT_S=LIMIT_S)
"""For a process whose weights are to be mapped, however late a shard is."""
