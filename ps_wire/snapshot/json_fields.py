"""JSON that a peer has written, read field by field: each value is of its kind and in its range, or named.

A field's name is its path from the top: `workers.3.lease_s`, `shares[2].left[0]`. Whoever reads says the
whole form: what is missing, and what nobody knows, is refused, too. It must not know what the fields mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ps_wire.text import parse_json

Json: TypeAlias = Mapping[str, Any]

MAX_COUNT = (1 << 40) - 1  # of steps, versions, pushes: their sums over 2^24 partitions fit into 64 bits
MAX_SAMPLES = (1 << 53) - 1
MAX_DIGITS = 20  # of a number that is a key, or is shown
SHOWN_CHARACTERS = 60


class FieldInvalid(ValueError):
    """A field that is not what it has to be; the message names it, what was expected, and what came.

    Attributes:
        field: its path.
    """

    def __init__(self, field: str, expected: str, got: object) -> None:
        super().__init__(f"{field or 'the whole'}: expected {expected}, got {shown(got)}")
        self.field = field


def shown(value: object) -> str:
    """A value of a peer as people read it, short whatever it is."""
    match value:
        case int() if not -(1 << 64) < value < 1 << 64:
            return f"a number of {value.bit_length()} bits"
        case str():
            return ascii(value[:SHOWN_CHARACTERS])
        case list() | dict():
            return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    return repr(value)[:SHOWN_CHARACTERS]


def read(text: str | bytes, field: str = "") -> Any:
    """The JSON in a text; what JSON does not have (NaN, infinities) is refused as no number, where it stands.

    Raises:
        FieldInvalid: it is none.
    """
    try:
        return parse_json(text)
    except ValueError:
        raise FieldInvalid(field, "JSON", text if isinstance(text, str) else None) from None


@dataclass(frozen=True, slots=True)
class Field:
    """One value, and its path. Every method raises `FieldInvalid` where the value is of another kind."""

    value: Any
    path: str = ""

    def refuse(self, expected: str) -> FieldInvalid:
        """The error that says so; to be raised."""
        return FieldInvalid(self.path, expected, self.value)

    def whole(self, most: int = MAX_COUNT, least: int = 0) -> int:
        """A whole number in this range."""
        value = self.value
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.refuse(f"a whole number in {least}..{most}")
        return value

    def real(self, most: float, least: float = 0.0) -> float:
        """A finite number in this range."""
        value = self.value
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if not fits or not least <= value <= most or not math.isfinite(value):
            raise self.refuse(f"a number in {least:g}..{most:g}")
        return float(value)

    def flag(self) -> bool:
        """True or false."""
        if not isinstance(self.value, bool):
            raise self.refuse("true or false")
        return self.value

    def text(self, most: int) -> str:
        """At most so many characters, which can be encoded."""
        value = self.value
        if not isinstance(value, str) or len(value) > most or any("\ud800" <= it <= "\udfff" for it in value):
            raise self.refuse(f"a text of at most {most} characters")
        return value

    def entries(self, most: int) -> list[Field]:
        """The values of a list of at most so many."""
        if not isinstance(self.value, list | tuple) or len(self.value) > most:
            raise self.refuse(f"a list of at most {most}")
        return [Field(value, f"{self.path}[{index}]") for index, value in enumerate(self.value)]

    def tuple(self, size: int) -> list[Field]:
        """The values of a list of so many."""
        found = self.entries(size)
        if len(found) != size:
            raise self.refuse(f"a list of {size}")
        return found

    def form(self, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Field]:
        """The fields of an object that has these, and no others."""
        value = self.mapping()
        for name in required:
            if name not in value:
                raise self.within(name, "nothing").refuse("a value")
        for name in value:
            if name not in required and name not in optional:
                raise FieldInvalid(self.path, f"no field {name[:SHOWN_CHARACTERS]!a}", value)
        return {name: self.within(name, it) for name, it in value.items()}

    def numbered(self, most: int, count: int) -> dict[int, Field]:
        """The fields of an object of at most `count`, whose keys are whole numbers in 0..`most`."""
        value = self.mapping()
        if len(value) > count:
            raise self.refuse(f"an object of at most {count}")
        found = {}
        for key, it in value.items():
            number = int(key) if key.isascii() and key.isdigit() and len(key) <= MAX_DIGITS else -1
            if str(number) != key or number > most:
                raise FieldInvalid(self.path, f"keys that are whole numbers in 0..{most}", key)
            found[number] = self.within(key, it)
        return found

    def within(self, name: str, value: Any) -> Field:
        """A part of it."""
        return Field(value, f"{self.path}.{name}" if self.path else name)

    def mapping(self) -> dict[str, Any]:
        """The object that it is, its values as they are."""
        if not isinstance(self.value, dict):
            raise self.refuse("an object")
        return self.value
