"""docs/pipeline.md: its pictures are those that the generator draws, and its script is the example's."""

from __future__ import annotations

import importlib.util
import re

from .pages import ROOT

DOCS = ROOT / "docs"


def test_the_pictures_have_not_drifted():
    """Generated again, they are the committed ones, and all are shown."""
    spec = importlib.util.spec_from_file_location("generate_pipeline", DOCS / "generate_pipeline.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (DOCS / "pipeline.md").read_text()
    for name, text in module.generate().items():
        assert (DOCS / name).read_text() == text, "run `make api`"
        assert f"]({name})" in page


def test_lines_of_a_script_are_those_of_the_example():
    found = re.findall(r"```python of (\S+)\n(.*?)```", (DOCS / "pipeline.md").read_text(), re.DOTALL)
    assert found
    for path, text in found:
        assert text in (ROOT / path).read_text()
