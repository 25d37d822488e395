"""The table of mutants keeps to the code: each row's text stands where it says, and its tests are there."""

from dataclasses import replace

import pytest

from tests.mutants.mutant import Mutant
from tests.mutants.table import problems, rows

ROW = Mutant(
    name="one",
    file="ps_server/gate.py",
    text="return version >= clock\n",
    fault="return version > clock\n",
    tests=("tests/unit/ps_server/test_gate.py",),
)


def test_each_row_has_its_text_once_and_names_tests_that_are_there():
    """So no row is lost when the code that it is about is written anew."""
    assert problems(rows()) == []


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"file": "ps_server/nothing.py"}, "there is no ps_server/nothing.py"),
        ({"text": "return"}, "times"),
        ({"text": "return never\n"}, "0 times"),
        ({"fault": "return version >= clock\n"}, "is what stands there"),
        ({"fault": "return version >\n"}, "is no Python"),
        ({"tests": ()}, "names no test"),
        ({"tests": ("tests/unit/test_nothing.py",)}, "there is no tests/unit/test_nothing.py"),
        ({"tests": (f"{ROW.tests[0]}::test_nothing",)}, "::test_nothing"),
    ],
)
def test_what_is_wrong_with_a_row_is_said(changes, word):
    """One sentence, with the row's name."""
    (problem,) = problems([replace(ROW, **changes)])
    assert problem.startswith("one: ")
    assert word in problem
    assert problems([ROW]) == []


def test_a_name_is_given_once():
    """What a report says of a name is said of one fault."""
    assert problems([ROW, ROW]) == ["one: two rows have this name"]
