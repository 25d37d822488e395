"""docs/compare.md: its tables of keys, columns and disturbances are those of the code."""

from __future__ import annotations

from dataclasses import MISSING, fields

from ps_lab.compare.experiment import Evaluation, Experiment, Host, LearningRates, ModelArguments, Setup
from ps_lab.compare.profiles import KINDS
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
    known |= {f"stop.{name}" for name in ("time_s", "samples", "metric", "at_least", "at_most")}
    known |= {"profiles.name", "profiles.kind"}
    assert keys == known


def test_every_column_of_a_record_is_explained_in_the_codes_words():
    rows = {row[0].strip("`"): (row[1], row[2]) for row in table(PAGE, "column", "unit", "meaning")}
    assert rows == {column.name: (column.unit, column.meaning) for column in COLUMNS}


def test_every_kind_of_disturbance_has_its_keys():
    rows = {row[0].strip("`"): row[1] for row in table(PAGE, "kind", "keys")}
    assert rows.keys() == {"none", *KINDS}
    for kind, type_ in KINDS.items():
        names = ", ".join(f"`{field.name}`" for field in fields(type_))
        assert rows[kind] == names, kind
        assert all(field.default is MISSING or field.name in names for field in fields(type_))
