"""A mutant: one deliberate fault in one file, and the tests that must fail with it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One fault, as the text of a file that is replaced.

    Attributes:
        name: what the fault is, in a few words; unique.
        file: the path from the repository's root.
        text: what stands in the file, exactly once, line breaks and indentation included.
        fault: what stands there instead.
        tests: pytest's node ids (files, or `file::test`), of which one at least must fail.
        survives: why no test can see it, for one that is no fault after all; else empty.
    """

    name: str
    file: str
    text: str
    fault: str
    tests: tuple[str, ...]
    survives: str = ""
