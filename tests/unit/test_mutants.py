"""The table of mutants keeps to the code: each row's text stands where it says, and its tests are there.

And what a run of a row's tests says of it; the runs themselves are `make mutants`.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from ps_wire.process import kernels
from ps_worker.memory import tensor_list
from tests.mutants.__main__ import Faulty, Killed, Results, Verdict, verdict
from tests.mutants.mutant import Mutant
from tests.mutants.table import problems, rows
from tests.mutants.tree import COMPILED, CannotBuild
from tests.mutants.trial import Outcome

ROW = Mutant(
    name="one",
    file="ps_server/agreement/gate.py",
    text="return clock <= self.limit(version, slowest)\n",
    fault="return clock < self.limit(version, slowest)\n",
    tests=("tests/unit/ps_server/agreement/test_gate.py",),
)


def test_each_row_has_its_text_once_and_names_tests_that_are_there():
    """So no row is lost when the code that it is about is written anew."""
    assert problems(rows()) == []


def test_what_rows_of_c_build_is_where_it_is_loaded_from():
    """Else each of them would be void, and leave a mutated library to the rows after it."""
    loaded = {Path(*module.__name__.split(".")).parent for module in (kernels, tensor_list)}
    assert {Path(source).parent for source in COMPILED} == loaded
    assert all(Path(source).parent == Path(made).parent for source, made in COMPILED.items())


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"file": "ps_server/nothing.py"}, "there is no ps_server/nothing.py"),
        ({"text": "return"}, "times"),
        ({"text": "return never\n"}, "0 times"),
        ({"fault": "return clock <= self.limit(version, slowest)\n"}, "is what stands there"),
        ({"fault": "return clock <\n"}, "is no Python"),
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


TEST = f"{ROW.tests[0]}::test_it"
RAN = Outcome(end="passed", failed="", passed={TEST: 0.5}, skipped=frozenset(), at=TEST, loaded=True)


@pytest.mark.parametrize(
    ("outcome", "word", "why"),
    [
        (RAN, "survived", "no test fails"),
        (replace(RAN, loaded=False), "void", "never import"),
        (replace(RAN, passed={}, skipped=frozenset({TEST})), "void", "skipped"),
        (replace(RAN, end="not collected"), "void", "cannot be run"),
        (replace(RAN, end="killed by 9", at=""), "void", "cannot be run"),
        (CannotBuild("no C"), "void", "no C"),
    ],
)
def test_no_row_is_killed_where_no_test_has_failed(outcome, word, why):
    found = verdict(Faulty(ROW), outcome, 1.0)
    assert isinstance(found, Verdict)
    assert found.word == word
    assert why in found.why


@pytest.mark.parametrize(
    ("outcome", "hung_s"),
    [
        (replace(RAN, end="failed", failed=TEST), 0.0),
        (replace(RAN, end="killed by 11"), 0.0),
        (replace(RAN, end="hung"), 60.0),
    ],
)
def test_a_test_that_fails_with_a_fault_is_looked_at_without_it(outcome, hung_s):
    """Before it counts; one that came to a limit also says to which."""
    test, killed = verdict(Faulty(ROW, 60.0), outcome, 1.0)
    assert test == TEST
    assert isinstance(killed, Killed)
    assert killed.hung_s == hung_s


def test_a_run_that_was_interrupted_goes_on_with_the_rows_that_are_not_killed(tmp_path: Path):
    """And with those that stand otherwise in the table by now."""
    killed, survived, changed = (replace(ROW, name=name) for name in ("killed", "survived", "changed"))
    words = [(killed, "killed"), (survived, "survived"), (changed, "killed")]
    found = [Verdict(row, word, "so it is", 1.0) for row, word in words]
    assert list(Results(tmp_path / "results").note(found)) == found
    table = [killed, survived, replace(changed, fault="return True\n")]
    assert Results(tmp_path / "results").left(table) == table[1:]
