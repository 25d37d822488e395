"""What a peer says of itself is one line for people."""

import pytest

from ps_wire.text import one_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("host-1.example", "host-1.example"),
        ("a\nWARNING forged", r"a\nWARNING forged"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("caf\N{LATIN SMALL LETTER E WITH ACUTE}", "caf\N{LATIN SMALL LETTER E WITH ACUTE}"),
        ("a\u202eb\u2028c", r"a\u202eb\u2028c"),  # writes from right to left; ends a line
        ("\ud800", r"\ud800"),
        ("x" * 300, "x" * 255),
        ("\n" * 300, r"\n" * 127 + "\\"),
    ],
)
def test_it_stays_on_its_line_and_within_its_length(text, line):
    assert one_line(text, 255) == line
    assert one_line(line, 255) == line
