"""Figures that are made and not painted: painting is what a report costs; most tests ask for its words."""

from typing import Any, BinaryIO

import pytest

EMPTY = {
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
    "png": b"\x89PNG\r\n\x1a\n",
}


def unpainted(monkeypatch: pytest.MonkeyPatch, *formats: str) -> None:
    """Has figures saved in these formats be empty files."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - the extra compare may be absent

    paint = Figure.savefig

    def save(self: Figure, file: BinaryIO, *, format: str, **options: Any) -> None:  # noqa: A002
        if format in formats:
            file.write(EMPTY[format])
        else:
            paint(self, file, format=format, **options)

    monkeypatch.setattr(Figure, "savefig", save)
