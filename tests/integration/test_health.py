"""`ps-lab health`: what a container's probe asks, and its exit code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ps_lab.cluster.certificate_authority import make_certificates
from ps_lab.cluster.ports import free_ports

from .processes import LIMIT_S, Start
from .servers import SERVING, Servers, wait_health

pytestmark = pytest.mark.integration


@pytest.fixture(name="asked")
def _asked(spawn: Start) -> Callable[..., tuple[int, str]]:
    def asked(*words: str) -> tuple[int, str]:
        """Exit code, and the line that was said."""
        done = spawn("ps-lab", "health", "--limit", f"{LIMIT_S:g}", *words)
        code = done.wait_end()
        assert "Traceback" not in done.text
        return code, done.text.strip()

    return asked


def test_it_ends_with_0_where_a_server_serves_and_with_69_where_it_waits_or_nobody_is(
    cluster: Servers, spawn: Start, asked: Callable[..., tuple[int, str]]
) -> None:
    """A shard that waits for its coordinator lives, and does not serve."""
    port, nobody = free_ports(2)
    alone = f"127.0.0.1:{port}"
    words = ("--shard", "1/2", "--port", str(port), "--coordinator", f"127.0.0.1:{nobody}")
    spawn("ps-server", *words)
    wait_health(alone, SERVING, "liveness")
    assert asked(cluster.addresses[0]) == (0, f"{cluster.addresses[0]} serves")
    code, line = asked(alone)
    assert code == 69
    assert line.startswith(f"ps-lab: ServerNotReady: server {alone} says NOT_SERVING")
    assert asked(alone, "--liveness") == (0, f"{alone} serves")
    code, line = asked(f"127.0.0.1:{nobody}")
    assert code == 69
    assert f"server 127.0.0.1:{nobody} cannot be reached" in line
    assert asked("no-port")[0] == 64


def test_with_certificates_it_asks_the_control_port_and_without_the_port_for_probes(
    spawn: Start, asked: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    """A probe has neither certificates nor a token."""
    make_certificates(tmp_path, hosts=(), days=1, force=False)
    port, health_port = free_ports(2)
    words = ("--port", str(port), "--health-port", str(health_port))
    spawn("ps-server", *words, "--tls-dir", str(tmp_path / "server"))
    probed = f"127.0.0.1:{health_port}"
    wait_health(probed, SERVING)
    assert asked(probed)[0] == 0
    control = f"127.0.0.1:{port}"
    assert asked(control, "--tls-dir", str(tmp_path / "worker"))[0] == 0
    assert asked(control)[0] == 78
