"""Generates `ps_wire/v1/` from `protos/ps_wire/v1/*.proto`: `make protos`."""

import sys
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

PROTOS = Path(__file__).resolve().parent


def generate(out: Path) -> None:
    """Writes the message classes, their type stubs and the gRPC stubs under `out`.

    Args:
        out: the folder that holds, or gets, `ps_wire/v1/`.

    Raises:
        RuntimeError: the compiler refused the sources; it has said why on stderr.
    """
    sources = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    status = protoc.main(
        [
            "protoc",
            f"-I{PROTOS}",
            f"-I{well_known}",
            f"--python_out={out}",
            f"--pyi_out={out}",
            f"--grpc_python_out={out}",
            *sources,
        ]
    )
    if status != 0:
        raise RuntimeError(f"protoc ended with status {status}")


if __name__ == "__main__":
    generate(PROTOS.parent)
    sys.stdout.write("generated ps_wire/v1\n")
