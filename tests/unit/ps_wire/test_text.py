"""What a peer says of itself is one line for people."""

import pytest

from ps_wire.text import one_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("host-1.example", "host-1.example"),
        ("a\nWARNING forged", "a?WARNING forged"),
        ("\x1b]0;title\x07", "?]0;title?"),
        ("caf\N{LATIN SMALL LETTER E WITH ACUTE}", "caf\N{LATIN SMALL LETTER E WITH ACUTE}"),
        ("x" * 300, "x" * 255),
    ],
)
def test_it_stays_on_its_line_and_within_its_length(text, line):
    assert one_line(text, 255) == line
