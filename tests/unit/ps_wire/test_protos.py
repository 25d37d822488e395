"""The committed `ps_wire/v1` is what the `.proto` files generate."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import ps_wire.v1

REPOSITORY = Path(__file__).resolve().parents[3]
COMMITTED = Path(ps_wire.v1.__file__).parent


def test_the_generated_files_have_not_drifted(tmp_path):
    """Generated again, every file is the committed one byte for byte, and there is no other."""
    pytest.importorskip("grpc_tools")
    module = importlib.util.spec_from_file_location("generate_protos", REPOSITORY / "protos" / "generate.py")
    generate = importlib.util.module_from_spec(module)
    module.loader.exec_module(generate)
    generate.generate(tmp_path)
    made = {path.name: path.read_bytes() for path in (tmp_path / "ps_wire" / "v1").iterdir()}
    committed = {path.name: path.read_bytes() for path in COMMITTED.glob("*_pb2*")}
    sources = [path.read_text() for path in (REPOSITORY / "protos").rglob("*.proto")]
    assert len(made) == 3 * len(sources) + sum("\nservice " in text for text in sources) > 0
    assert made.keys() == committed.keys()
    differ = [name for name, data in made.items() if data != committed[name]]
    assert not differ, f"run `make protos`: {differ} differ"
