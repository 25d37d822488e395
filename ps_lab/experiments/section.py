"""A table of a TOML file, read key by key: each has a type, and an unknown one is refused with the nearest.

It knows nothing of experiments. Invariant: every error names the key with all tables above it.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any

from ps_wire.errors import UsageError

MAX_ENTRIES = 1000  # of one list


class Section:
    """One table of a TOML file that is being read; every key must be known."""

    def __init__(self, values: object, *, where: str, known: Iterable[str]) -> None:
        """Begins to read a table.

        Args:
            values: what TOML has there.
            where: keys of the tables above, with dots; "" for the whole file.
            known: names of all keys that it may have.

        Raises:
            UsageError: it is no table, or has a key that is not known.
        """
        self.where = where
        if not isinstance(values, Mapping):
            raise UsageError(f"{where} must be a table, got {_shown(values)}", key=where)
        self._values = dict(values)
        names = tuple(known)
        for name in self._values:
            if name not in names:
                raise UsageError(
                    f"unknown key {self.key(name)!r}; {nearest(name, names)}", key=self.key(name)
                )

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def key(self, name: str) -> str:
        """The name with those of the tables above."""
        return f"{self.where}.{name}" if self.where else name

    def raw(self, name: str) -> Any:
        """The value as it stands there.

        Raises:
            UsageError: nothing does.
        """
        if name not in self._values:
            raise UsageError(f"{self.key(name)} is missing", key=self.key(name))
        return self._values[name]

    def text(self, name: str, *, empty: bool = False) -> str:
        """A text; else raises `UsageError`, as all below do."""
        value = self.raw(name)
        if not isinstance(value, str) or not (value or empty):
            raise self.refused(name, "a text", value)
        return value

    def whole(self, name: str, *, least: int = 0) -> int:
        """A whole number, not less than `least`."""
        return self._whole(name, self.raw(name), least)

    def number(self, name: str, *, least: float = -math.inf, above: float = -math.inf) -> float:
        """A finite number, not less than `least` and larger than `above`."""
        return self._number(name, self.raw(name), least, above)

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self.raw(name)
        if not isinstance(value, bool):
            raise self.refused(name, "true or false", value)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts."""
        values = self._list(name)
        for value in values:
            if not isinstance(value, str):
                raise self.refused(name, "a list of texts", value)
        return values

    def wholes(self, name: str, *, least: int = 0) -> tuple[int, ...]:
        """A list of whole numbers."""
        return tuple(self._whole(name, value, least) for value in self._list(name))

    def numbers(self, name: str, *, above: float = -math.inf) -> tuple[float, ...]:
        """A list of finite numbers."""
        return tuple(self._number(name, value, -math.inf, above) for value in self._list(name))

    def tables(self, name: str) -> tuple[Any, ...]:
        """A list of tables, not read yet."""
        return self._list(name)

    def refused(self, name: str, wanted: str, value: object) -> UsageError:
        """The error to raise for a value that is not what was wanted."""
        return UsageError(f"{self.key(name)} must be {wanted}, got {_shown(value)}", key=self.key(name))

    def _list(self, name: str) -> tuple[Any, ...]:
        value = self.raw(name)
        if not isinstance(value, list):
            raise self.refused(name, "a list", value)
        if len(value) > MAX_ENTRIES:
            raise self.refused(name, f"a list of at most {MAX_ENTRIES}", len(value))
        return tuple(value)

    def _whole(self, name: str, value: object, least: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
            raise self.refused(name, f"a whole number >= {least}", value)
        return value

    def _number(self, name: str, value: object, least: float, above: float) -> float:
        good = not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
        if not good or not (value >= least and value > above):  # type: ignore[operator]
            bound = f" > {above:g}" if above > -math.inf else f" >= {least:g}" if least > -math.inf else ""
            raise self.refused(name, f"a number{bound}", value)
        return float(value)  # type: ignore[arg-type]


def nearest(name: str, known: Iterable[str]) -> str:
    """Says for a name that is not known which one is near, or names all of them."""
    names = tuple(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"valid are: {', '.join(names)}"


def _shown(value: object) -> str:
    return repr(value)[:80]
