"""Every variable and argument of every pod goes through the real command lines, and means what it says."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Never

import pytest
import typer

from ps_server import cli as server_cli
from ps_server.process import server as server_module
from ps_server.process.server import ServerOptions
from ps_worker import cli as worker_cli
from ps_worker import settings
from ps_worker.settings import Settings

from .manifests import DEPLOY, EXAMPLES, OVERLAYS, Object, Pod, containers, example, expand, overlay, pods
from .rules import WORKERS

ALL = [
    *((name, overlay(name)) for name in OVERLAYS),
    *((path.stem, example(path)) for path in EXAMPLES),
]
EACH = [
    pytest.param(pod, container, id=f"{name}-{pod.name}-{container['name']}")
    for name, objects in ALL
    for pod in pods(objects)
    for container in containers(pod.workload)
]


class Started(Exception):
    """What the command was about to do, instead of doing it."""


def take(pod: Pod, container: Object, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The options of a server, or the settings of a worker, of this container."""
    token = folder / "token"
    token.write_text("0123456789abcdef\n")
    for name in [name for name in os.environ if name.startswith("PS_")]:
        monkeypatch.delenv(name)
    environment = pod.environment(container)
    for name, value in environment.items():
        monkeypatch.setenv(name, str(token) if name == "PS_TOKEN_FILE" else value)
    command, *words = [
        expand(word, environment) for word in [*container["command"], *container.get("args", ())]
    ]
    words = [word.replace("/opt/ps", str(DEPLOY.parent)) for word in words]
    monkeypatch.setattr(sys, "argv", [command, *words])

    class Server:
        def __init__(self, options: ServerOptions) -> None:
            raise Started(options)

    def run(_script: object) -> Never:
        raise Started(settings.read())

    monkeypatch.setattr(server_module, "Server", Server)
    monkeypatch.setattr(worker_cli, "_run", run)
    monkeypatch.setattr(worker_cli.stopping, "install", lambda _limit_s: None)
    app = {"ps-server": server_cli.app, "ps-worker": worker_cli.app}[command]
    with pytest.raises(Started) as started:
        typer.main.get_command(app)(words, standalone_mode=False)
    return started.value.args[0]


@pytest.mark.parametrize(("pod", "container"), EACH)
def test_a_command_takes_what_its_container_says(
    pod: Pod, container: Object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    taken = take(pod, container, tmp_path, monkeypatch)
    environment = pod.environment(container)
    if isinstance(taken, ServerOptions):
        assert f"{taken.shard}/{taken.num_shards}" == environment["PS_SHARD"]
        assert str(taken.port) == environment["PS_PORT"]
        assert str(taken.health_port or "") == environment.get("PS_HEALTH_PORT", "")
        assert taken.snapshots.every_s or taken.snapshots.every_steps
        assert taken.state_dir == Path(environment["PS_STATE_DIR"])
        assert (taken.coordinator is None) == (taken.shard == 0)
    else:
        assert isinstance(taken, Settings)
        assert str(taken.worker) == environment["PS_WORKER"]
        assert taken.connect_limit_s == 600
        assert environment["PS_NUM_WORKERS"] == str(taken.num_workers)
        assert environment["PS_CONSISTENCY"] == str(taken.consistency)


def test_variables_without_an_option_are_those_that_workers_read(monkeypatch: pytest.MonkeyPatch):
    """A name that is wrong here would hide one that is wrong in a manifest."""
    read: set[str] = set()

    class Watched(dict[str, str]):
        def get(self, key: str, default: object = None) -> Any:
            read.add(key)
            return super().get(key, default)

    settings.read(Watched())
    assert read >= WORKERS
