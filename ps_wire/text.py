"""Text of a peer that people read in logs and terminals."""

from __future__ import annotations


def one_line(text: str, max_characters: int) -> str:
    """At most so many characters of it, on one line: what is no printable character becomes a question mark.

    Else a peer could write lines of a log that are not the server's, or talk to a terminal.
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text[:max_characters])
