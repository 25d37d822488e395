"""Generates `ps_wire/v1/` from `protos/ps_wire/v1/*.proto`: `make protos`."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc_tools
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto
from grpc_tools import protoc

PROTOS = Path(__file__).resolve().parent
CALLS = '''"""Calls of the services in `{source}`, as who calls makes them. Generated: `make protos`.

A call takes a message, or an iterator of messages where the client streams, and returns a message, or replies
where the server streams. What it raises is its maker's to say.
"""

from collections.abc import Iterator
from typing import Protocol, TypeVar

from ps_wire.v1 import {modules}

Reply_co = TypeVar("Reply_co", covariant=True)


class Replies(Protocol[Reply_co]):
    """What a server streams; a call that has not ended can be cancelled."""

    def __iter__(self) -> Iterator[Reply_co]: ...

    def __next__(self) -> Reply_co: ...

    def cancel(self) -> object: ...
'''
CALL = """
    def {name}(
        self, request: {request}, /, *, timeout: float | None = None, wait_for_ready: bool = True
    ) -> {reply}: ...
"""


def generate(out: Path) -> None:
    """Writes the message classes, their type stubs, the gRPC stubs and the types of calls under `out`.

    Args:
        out: the folder that holds, or gets, `ps_wire/v1/`.

    Raises:
        RuntimeError: the compiler refused the sources; it has said why on stderr.
    """
    sources = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        described = Path(folder) / "described"
        status = protoc.main(
            [
                "protoc",
                f"-I{PROTOS}",
                f"-I{well_known}",
                f"--python_out={out}",
                f"--pyi_out={out}",
                f"--grpc_python_out={out}",
                f"--descriptor_set_out={described}",
                *sources,
            ]
        )
        if status != 0:
            raise RuntimeError(f"protoc ended with status {status}")
        files = FileDescriptorSet.FromString(described.read_bytes()).file
    module_of = {f".{file.package}.{it.name}": _module(file) for file in files for it in file.message_type}
    for file in files:
        if file.service:
            path = out / file.name.replace(".proto", "_pb2_calls.py")
            path.write_text("".join(_calls(file, module_of)), encoding="utf-8")


def _module(file: FileDescriptorProto) -> str:
    return Path(file.name).stem + "_pb2"


def _calls(file: FileDescriptorProto, module_of: dict[str, str]) -> Iterator[str]:
    """The text of the module of a file's services."""
    methods = [method for service in file.service for method in service.method]
    used = {module_of[name] for method in methods for name in (method.input_type, method.output_type)}
    yield CALLS.format(source=file.name, modules=", ".join(sorted(used)))
    for service in file.service:
        yield f'\n\nclass {service.name}Calls(Protocol):\n    """The methods of `{service.name}`."""\n'
        yield from (_call(method, module_of) for method in service.method)


def _call(method: MethodDescriptorProto, module_of: dict[str, str]) -> str:
    request, reply = (
        f"{module_of[name]}.{name.rpartition('.')[2]}" for name in (method.input_type, method.output_type)
    )
    if method.client_streaming:
        request = f"Iterator[{request}]"
    if method.server_streaming:
        reply = f"Replies[{reply}]"
    return CALL.format(name=method.name, request=request, reply=reply)


if __name__ == "__main__":
    generate(PROTOS.parent)
    sys.stdout.write("generated ps_wire/v1\n")
