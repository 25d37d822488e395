"""Text of a peer: what people read of it in logs and terminals, and the JSON in it.

It is escaped where it is logged or shown, whatever has carried it there: in the formatter of the server's
log, at the worker's terminal, in the tables and lines of `ps-lab`, and where an error of a peer is made anew.
"""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

MAX_LINE = 4000  # characters of a line of a log, of an error, of a cell of a table
MAX_NESTING = 200  # of lists and mappings in each other
_OPENS = ord("[")
_OTHERS = bytes(set(range(256)) - set(b'"[]{}'))
_PIECE = 100  # brackets that are counted at once


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


def parse_json(text: str | bytes) -> Any:
    """As `json.loads`, of what a peer has written: what nests too deep is refused before it is parsed.

    The parser would come to the end of the stack. It says so, but garbage may be collected just there, and
    finalizers of other objects fail.

    Raises:
        ValueError: it is no JSON in UTF-8, or nests deeper than `MAX_NESTING`.
    """
    if isinstance(text, bytes):
        text = text.decode()
    quoted = text.replace("\\\\", "").replace('\\"', "").encode(errors="replace").translate(None, _OTHERS)
    brackets = b"".join(quoted.split(b'"')[::2]).replace(b"{", b"[")
    depth = 0
    for at in range(0, len(brackets), _PIECE):
        piece = brackets[at : at + _PIECE]
        opened = piece.count(b"[")
        if depth + opened > MAX_NESTING:  # perhaps: a piece may close as many
            steps = (1 if it == _OPENS else -1 for it in piece)
            if max(accumulate(steps, initial=depth)) > MAX_NESTING:
                raise ValueError(f"more than {MAX_NESTING} lists and mappings in each other")
        depth += 2 * opened - len(piece)
    return json.loads(text)
