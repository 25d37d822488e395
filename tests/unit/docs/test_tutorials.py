"""docs/tutorials/: what a page shows of a script stands in that script."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from .pages import PAGES, ROOT, Block, blocks_of, table

SCRIPTS = ROOT / "examples" / "tutorials"
OF = "python of "
EXCERPTS = [block for page in PAGES for block in blocks_of(page) if block.info.startswith(OF)]
# Of a page that puts two scripts beside each other: the other side's heading, its script or block, and ours.
BESIDE: dict[str, tuple[str, Path | str, str]] = {
    "from-ddp": ("DistributedDataParallel", SCRIPTS / "ddp.py", "from_ddp.py"),
    "from-horovod": ("Horovod", "python horovod", "from_horovod.py"),
    "from-tensorflow": ("ParameterServerStrategy", "python tensorflow", "from_tensorflow.py"),
    "from-torch-rpc": ("`torch.distributed.rpc`", SCRIPTS / "torch_rpc.py", "from_torch_rpc.py"),
}


def squeezed(code: str) -> str:
    """Code without what a formatter may change."""
    return re.sub(r"\s", "", code).replace(",)", ")")


def code_in(cell: str) -> list[str]:
    """The pieces of code of a cell; single names are none."""
    return [span for span in re.findall(r"`([^`]+)`", cell) if re.search(r"[(=]|:$", span)]


@pytest.mark.parametrize("block", EXCERPTS, ids=str)
def test_an_excerpt_stands_in_its_script(block: Block) -> None:
    assert block.text in (ROOT / block.info.removeprefix(OF)).read_text()


@pytest.mark.parametrize("name", BESIDE)
def test_both_sides_of_a_table_stand_in_their_scripts(name: str) -> None:
    heading, other, ours = BESIDE[name]
    page = f"docs/tutorials/{name}.md"
    if isinstance(other, Path):
        theirs = other.read_text()
    else:
        (theirs,) = [block.text for block in blocks_of(ROOT / page) if block.info == other]
        ast.parse(theirs)
    sides = squeezed(theirs), squeezed((SCRIPTS / ours).read_text())
    rows = table(page, heading, "here")
    assert len(rows) >= 10
    for row in rows:
        for cell, script in zip(row, sides, strict=True):
            missing = [span for span in code_in(cell) if squeezed(span) not in script]
            assert not missing, missing


def test_every_page_is_in_the_list_and_every_script_has_a_page() -> None:
    pages = {path.name for path in (ROOT / "docs" / "tutorials").glob("*.md")} - {"README.md"}
    listed = (ROOT / "docs" / "tutorials" / "README.md").read_text()
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", listed)) == pages
    text = "".join(path.read_text() for path in (ROOT / "docs" / "tutorials").glob("*.md"))
    scripts = {path.name for path in SCRIPTS.glob("*.py")} - {"planted.py"}
    assert {name for name in scripts if f"examples/tutorials/{name}" not in text} == set()
