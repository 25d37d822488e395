"""What a peer says of itself is one line for people."""

import json
import random

import pytest

from ps_wire.text import MAX_NESTING, one_line, parse_json


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


def nested(depth: int) -> str:
    return '[{"a\\\\": ' * (depth // 2) + ("[]" if depth % 2 else "1") + "}]" * (depth // 2)


@pytest.mark.parametrize("kind", [str.encode, str])
def test_json_nests_so_deep_and_no_deeper(kind):
    assert parse_json(kind(nested(MAX_NESTING))) == json.loads(nested(MAX_NESTING))
    for depth in (MAX_NESTING + 1, 100_000):
        with pytest.raises(ValueError, match="more than 200"):
            parse_json(kind(nested(depth)))


@pytest.mark.parametrize(
    "text",
    ["[" * 1000, "[" * 1000 + '"', '{"a":' * 1000, '["\\\\",' + "[" * 1000, "[" * 300 + "]" * 999],
    ids=range(5),
)
def test_what_is_no_json_and_nests_too_deep_is_refused_before_it_is_parsed(text: str):
    with pytest.raises(ValueError, match="more than 200"):
        parse_json(text)


def test_brackets_in_texts_are_no_lists():
    """Whatever stands before and behind them: quotes and backslashes that are escaped, too."""
    draw = random.Random(5)
    for _ in range(500):
        texts = [
            "".join(draw.choices('[[[{]}"\\na\x00\u5b5b\ud800', k=draw.randint(0, 900))) for _ in range(3)
        ]
        value = {text: [text, [text]] for text in texts}
        for written in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
            assert parse_json(written) == value


@pytest.mark.parametrize("text", [b"\xff", b"", b"{", "[1,]", b"9" * 9999, '{"a": 1}'.encode("utf-16")])
def test_what_is_no_json_in_utf_8_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
