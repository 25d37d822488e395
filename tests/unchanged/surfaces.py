"""Surfaces that people and programs rely on: help texts, pages, names in traces, files, frames."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tests.unchanged import states
from tests.unchanged.running import HOST, Service, output, script
from tests.unchanged.tree import Tree

PACKAGES = ("ps_wire", "ps_server", "ps_worker", "ps_lab")
COMMANDS = (
    ("ps-server",),
    ("ps-worker",),
    ("ps-lab",),
    *(
        ("ps-lab", name)
        for name in ("launch", "status", "demo", "certs", "token", "bench", "snapshot", "job")
    ),
    *(("ps-lab", "snapshot", name) for name in ("take", "list", "verify", "restore", "export")),
    ("ps-lab", "job", "drop"),
)
BEHIND = "127.0.0.2"  # where the servers of recorded frames listen; workers know `HOST` alone
HEADER = struct.Struct("<IBBBBIHHQQIIQIfII")  # the first table of docs/protocol.md
FIELDS = (
    *("magic", "protocol", "kind", "codec", "flags", "partition", "table", "rank", "step", "version"),
    *("worker", "generation", "incarnation", "hyper", "weight", "payload_bytes", "meta_bytes"),
)
HELLO = 1
TOKEN_BYTES = 16  # at the beginning of a HELLO's meta; drawn


def help_texts(tree: Tree) -> Iterator[tuple[str, Any]]:
    """`--help` of all commands, line by line."""
    for command in COMMANDS:
        text = output(*tree.command(command[0]), *command[1:], "--help")
        yield f"help/{' '.join(command)}", text.splitlines()


def pages(tree: Tree) -> Iterator[tuple[str, Any]]:
    """The API page as `make api` would write it, and the tables of the protocol."""
    page = output(*tree.script("api_page.py"), str(tree.path / "docs" / "generate.py"))
    for chapter in re.split(r"^(?=###? )", page, flags=re.MULTILINE):
        title = chapter.partition("\n")[0].strip("#` ")
        yield f"api/{title}", chapter.splitlines()
    section = ""
    tables: dict[str, list[str]] = {}
    for line in (tree.path / "docs" / "protocol.md").read_text().splitlines():
        if line.startswith("#"):
            section = line.strip("# ")
        elif line.startswith("|"):
            tables.setdefault(section, []).append(line)
    yield from ((f"protocol table/{section}", lines) for section, lines in tables.items())


def names(tree: Tree) -> Iterator[tuple[str, Any]]:
    """Names of spans with those of their arguments, and names of threads, as the sources have them."""
    spans: dict[str, set[str]] = {}
    threads: set[str] = set()
    for path in sorted(path for package in PACKAGES for path in (tree.path / package).rglob("*.py")):
        if "v1" not in path.parts:
            for node in ast.walk(ast.parse(path.read_text())):
                if found := _span(node):
                    spans.setdefault(found[0], set()).add(found[1])
                threads |= _thread_names(node)
    yield from ((f"span/{name}", sorted(arguments)) for name, arguments in spans.items())
    yield "thread names", sorted(threads)


def _span(node: ast.AST) -> tuple[str, str] | None:
    if isinstance(node, ast.FunctionDef):
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("traced"):
                return _text(decorator.args[0]), ", ".join(it.arg for it in node.args.args)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "trace.span":
        last = [ast.unparse(it).rpartition(".")[2].lstrip("_") for it in node.args[1:]]
        return _text(node.args[0]), ", ".join(last)
    return None


def _thread_names(node: ast.AST) -> set[str]:
    """Constants that name a thread, or a pool of them: `ps-...`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return set(re.findall(r"^ps-[a-z-]+$", node.value))
    return set()


def _text(node: ast.expr) -> str:
    return str(ast.literal_eval(node))


def snapshot(tree: Tree, folder: Path) -> Iterator[tuple[str, Any]]:
    """Keys of a snapshot's manifest and of its files, of a job that trains."""
    store = folder / "snapshots"
    options = ("--snapshot-dir", str(store), "--state-dir")
    with ExitStack() as stack:
        servers = Service(stack, 2)
        servers.start(tree, [(*options, str(folder / f"snapshot-state-{shard}")) for shard in range(2)])
        worker = stack.enter_context(script(tree, "go_on.py", servers.servers))
        worker.answer()
        take = ("snapshot", "take", "--servers", servers.servers, "--job", "snapshots")
        output(*tree.command("ps-lab"), *take)
        worker.tell()
        worker.end()
        servers.stop()
    (manifest,) = sorted(store.rglob("*manifest*.json"))[-1:]
    yield "snapshot/manifest", states.shape(json.loads(manifest.read_text()))
    for file in sorted(manifest.parent.rglob("*.safetensors")):
        tensors, texts, _ = states.safetensors(file)
        # Blobs of workers are named with `@`; numbers in them are texts of any length.
        sizes = {name: [it["dtype"], it["shape"]] for name, it in tensors.items() if name[0] != "@"}
        yield f"snapshot/{file.name}/tensors", sizes | dict.fromkeys(tensors.keys() - sizes.keys(), "blob")
        yield f"snapshot/{file.name}/texts", {name: _parsed(text) for name, text in texts.items()}


def _parsed(text: str) -> Any:
    try:
        return states.shape(json.loads(text))
    except ValueError:
        return "text"


def frames(tree: Tree) -> Iterator[tuple[str, Any]]:
    """All frames of two steps of one worker, as they pass on a wire between it and its server."""
    with ExitStack() as stack:
        servers = Service(stack, 1, host=BEHIND)
        port = int(servers.addresses[0].rpartition(":")[2])
        with socket.create_server((BEHIND, 0)) as free:
            data_port = int(free.getsockname()[1])
        servers.start(tree, [("--data-port", str(data_port), "--insecure")])
        stack.enter_context(Wire(port))
        wire = stack.enter_context(Wire(data_port))
        worker = stack.enter_context(script(tree, "one_step.py", f"{HOST}:{port}"))
        worker.end()
        servers.stop()
    for direction, recorded in (("to the shard", wire.sent), ("to the worker", wire.received)):
        yield f"frames/{direction}", list(decoded(bytes(recorded)))


def decoded(raw: bytes) -> Iterator[dict[str, Any]]:
    """Frames one behind the other, by the protocol's first table; without the token, which is drawn."""
    at = 0
    while at < len(raw):
        fields = dict(zip(FIELDS, HEADER.unpack_from(raw, at), strict=True))
        meta_at = at + HEADER.size
        payload_at = meta_at + -(-fields["meta_bytes"] // 16) * 16
        meta = raw[meta_at : meta_at + fields["meta_bytes"]]
        payload = raw[payload_at : payload_at + fields["payload_bytes"]]
        at = payload_at + fields["payload_bytes"]
        if fields["kind"] == HELLO:
            fields["generation"] = 0
            meta = meta[TOKEN_BYTES:]
        yield fields | {"meta": meta.hex(), "payload": hashlib.sha256(payload).hexdigest()}


class Wire:
    """Takes connections on one port of loopback, and passes and records what goes over them."""

    def __init__(self, port: int) -> None:
        self.sent = bytearray()
        self.received = bytearray()
        self._port = port
        self._listening = socket.create_server((HOST, port))
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            far = socket.create_connection((BEHIND, self._port))
            for source, sink, recorded in ((near, far, self.sent), (far, near, self.received)):
                threading.Thread(target=_pass, args=(source, sink, recorded), daemon=True).start()


def _pass(source: socket.socket, sink: socket.socket, recorded: bytearray) -> None:
    try:
        while data := source.recv(1 << 16):
            recorded += data
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the other end has gone
