"""README and docs as data: their pages, code blocks, commands and tables."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/README.md")),
        *(ROOT / "docs").rglob("*.md"),
    ]
)
_BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    """Its path in the repository."""
    return str(page.relative_to(ROOT))


@dataclass(frozen=True)
class Block:
    """A fenced block: where, what its first line says after the fence, its text."""

    page: str
    line: int
    info: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(info: str) -> list[Block]:
    """All blocks of that kind, of all pages."""
    return [block for page in PAGES for block in blocks_of(page) if block.info == info]


def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page."""
    text = page.read_text()
    return [
        Block(name_of(page), text.count("\n", 0, match.start()) + 2, match[1].strip(), match[2])
        for match in _BLOCK.finditer(text)
    ]


def prose(page: Path) -> str:
    """A page without its blocks."""
    return _BLOCK.sub("", page.read_text())


def commands() -> list[tuple[str, list[str]]]:
    """(where, words) of every command of every `console` block."""
    return [
        (f"{block.page}:{block.line + offset}", shlex.split(line[2:]))
        for block in blocks("console")
        for offset, line in enumerate(block.text.splitlines())
        if line.startswith("$ ")
    ]


def table(page: str, *header: str) -> list[list[str]]:
    """The rows of the tables of a page whose first columns are so headed."""
    rows: list[list[str]] = []
    inside = False
    for line in (ROOT / page).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if tuple(cells[: len(header)]) == header:
            inside = True
        elif not cells:
            inside = False
        elif inside and not re.fullmatch(r"-+:?", cells[0]):
            rows.append(cells)
    assert rows, f"{page} has no table {header}"
    return rows
