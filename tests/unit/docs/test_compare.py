"""Pages on experiments: their tables of keys, columns and stragglers are those of the code."""

from __future__ import annotations

from dataclasses import fields

from ps_lab.experiments.experiment import Evaluation, Experiment, Host, LearningRates, ModelArguments, Setup
from ps_lab.experiments.profiles import Profile
from ps_wire.spec.stragglers import KINDS, parse
from ps_worker.recording.columns import COLUMNS

from .pages import table

PAGE = "docs/compare.md"


def test_every_key_of_an_experiment_is_explained():
    keys = {row[0].strip("`") for row in table(PAGE, "key", "meaning")}
    sections = {"learning_rates": LearningRates, "optimizer": ModelArguments, "evaluation": Evaluation}
    known = {field.name for field in (*fields(Experiment), *fields(Setup))} - {
        "setup",
        "hosts",
        "profiles",
        "stop",
    }
    known = (known - sections.keys()) | {f"hosts.{field.name}" for field in fields(Host)}
    known |= {f"{name}.{field.name}" for name, type_ in sections.items() for field in fields(type_)}
    known |= {f"stop.{name}" for name in ("time_s", "samples", "metric", "at_least", "at_most", "goes_on")}
    known |= {f"profiles.{field.name}" for field in fields(Profile)}
    assert keys == known


def test_every_column_of_a_record_is_explained_in_the_codes_words():
    rows = {row[0].strip("`"): (row[1], row[2]) for row in table(PAGE, "column", "unit", "meaning")}
    assert rows == {column.name: (column.unit, column.meaning) for column in COLUMNS}


def test_every_straggler_is_explained_by_a_text_that_can_be_typed():
    texts = [row[0].strip("`") for row in table("docs/simulate.md", "text", "meaning")]
    assert [text.partition(":")[0] for text in texts] == ["none", *KINDS]
    assert [len(parse(text).parts) for text in texts] == [0] + [1] * len(KINDS)
