"""Every variable and argument of every pod goes through the real command lines, and means what it says."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
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

from . import compose
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


def take(
    command: str, words: Sequence[str], environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> Any:
    """The options of a server, or the settings of a worker, that are started so."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("PS_")}
    monkeypatch.setattr(os, "environ", {**others, **environment})  # a worker's command writes into it
    monkeypatch.setattr(sys, "path", [*sys.path])
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


def with_token(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Its file of a token is one that is there."""
    token = folder / "token"
    token.write_text("0123456789abcdef\n")
    own = {"PS_TOKEN_FILE": str(token)} if "PS_TOKEN_FILE" in environment else {}
    return {**environment, **own}


@pytest.mark.parametrize(("pod", "container"), EACH)
def test_a_command_takes_what_its_container_says(
    pod: Pod, container: Object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    environment = pod.environment(container)
    command, *words = [
        expand(word, environment) for word in [*container["command"], *container.get("args", ())]
    ]
    taken = take(command, words, with_token(environment, tmp_path), monkeypatch)
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


@pytest.mark.parametrize("name", compose.read())
def test_a_command_takes_what_its_service_of_the_compose_file_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    service = compose.read()[name]
    command, *words = service.command
    taken = take(command, words, with_token(service.environment, tmp_path), monkeypatch)
    if isinstance(taken, ServerOptions):
        assert f"server-{taken.shard}" == name == taken.advertise
        assert taken.num_shards == 2
        assert (taken.host, taken.data_port, taken.health_port) == ("0.0.0.0", 50053, 50052)
        assert taken.state_dir == Path("/var/lib/ps/state")
        assert taken.snapshots.every_s == 300
    else:
        assert isinstance(taken, Settings)
        assert f"worker-{taken.worker}" == name
        assert taken.servers == ("server-0:50051", "server-1:50051")
        assert (taken.num_workers, str(taken.consistency)) == (4, "bsp")
        assert (taken.connect_limit_s, taken.retry_limit_s) == (600, 600)


def test_variables_without_an_option_are_those_that_workers_read(monkeypatch: pytest.MonkeyPatch):
    """A name that is wrong here would hide one that is wrong in a manifest."""
    read: set[str] = set()

    class Watched(dict[str, str]):
        def get(self, key: str, default: object = None) -> Any:
            read.add(key)
            return super().get(key, default)

    settings.read(Watched())
    assert read >= WORKERS
