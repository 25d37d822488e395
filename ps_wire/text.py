"""Text of a peer that people read in logs and terminals.

It is escaped where it is logged or shown, whatever has carried it there: in the formatter of the server's
log, at the worker's terminal, in the tables and lines of `ps-lab`, and where an error of a peer is made anew.
"""

from __future__ import annotations

MAX_LINE = 4000  # characters of a line of a log, of an error, of a cell of a table


def one_line(text: str, max_characters: int = MAX_LINE) -> str:
    r"""At most so many characters of it, on one line: others than printable ones become `\n`, `\x1b`.

    Else a peer could write lines of a log that are not the server's, or talk to a terminal. Done twice, it is
    what it was.
    """
    if text.isprintable():
        return text[:max_characters]
    letters = (it if it.isprintable() else _escaped(it) for it in text[:max_characters])
    return "".join(letters)[:max_characters]


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
