"""Figures as JSON, where some are no finite numbers."""

from __future__ import annotations

import json
import math

from ps_lab.status.json_text import json_text
from tests.unit.ps_lab.made import made_job, made_status, made_worker


def refused(text: str) -> None:
    """A strict reader, such as a browser, knows none of these."""
    raise AssertionError(f"{text} is no JSON")


def test_a_status_with_nan_is_json() -> None:
    metrics = {"loss": math.nan, "norm": math.inf, "least": -math.inf, "accuracy": 0.5}
    status = made_status(made_job(workers=(made_worker(0, metrics=metrics),)))
    read = json.loads(json_text(status.to_json(), indent=2), parse_constant=refused)
    said = {"loss": "nan", "norm": "inf", "least": "-inf", "accuracy": 0.5}
    assert read["jobs"][0]["workers"][0]["metrics"] == said


def test_what_is_finite_stays_as_it_is() -> None:
    assert json_text({"a": (1, 2.5, True, None)}) == '{"a":[1,2.5,true,null]}'
