"""What the step bench refuses, and what it makes of its times."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch

from ps_lab.bench import step
from ps_lab.bench.children import step_models
from ps_lab.bench.figures import Round
from ps_lab.bench.step import ALONE, DDP, StepOutcome, StepSetup, Variant, parse_variants
from ps_wire.errors import UsageError

ON, OFF = Variant(overlap=True, bucket_mb="25"), Variant(overlap=False, bucket_mb="25")
SETUP = StepSetup(
    model="mlp",
    split=1,
    batch_size=64,
    num_servers=1,
    num_workers=2,
    asked_carrier="grpc",
    consistency="bsp",
    optimizer="sgd",
    rounds=1,
    variants=(ON, OFF),
)


def outcome(**seconds: float) -> StepOutcome:
    times = {ALONE: 1.0, DDP: 3.0, ON.name: 1.5, OFF.name: 2.0} | seconds
    rounds = {name: [Round(seconds=value, cpu_s=None)] for name, value in times.items()}
    return StepOutcome(setup=SETUP, carrier="grpc", parameters=10, tensors=2, rounds=rounds)


def test_what_counts_is_the_time_beyond_compute_against_that_of_ddp() -> None:
    figures = json.loads(json.dumps(outcome().to_json()))
    assert figures["alone"]["step_s"]["median"] == 1.0
    assert figures["ddp"]["beyond_compute_s"] == 2.0
    assert (figures["project"]["beyond_compute_s"], figures["project"]["ratio"]) == (0.5, 0.25)
    assert (figures["project"]["overlap"], figures["project"]["bucket_mb"]) == (True, "25")
    assert [(item["overlap"], item["ratio"]) for item in figures["ablations"]] == [(False, 0.5)]


def test_overlap_hides_what_it_saves() -> None:
    assert outcome().hidden(ON) == 0.5
    assert outcome().hidden(OFF) is None
    assert dataclasses.replace(outcome(), setup=dataclasses.replace(SETUP, variants=(ON,))).hidden(ON) is None


def test_no_more_than_everything_can_be_hidden() -> None:
    assert outcome(**{ON.name: 0.9}).hidden(ON) == 1.0


def test_there_is_no_ratio_where_ddp_adds_nothing() -> None:
    assert outcome(**{DDP: 0.9}).ratio(ON.name) is None


def test_times_are_per_step() -> None:
    made = step._per_step(Round(seconds=2.0 * step.STEPS, cpu_s=1.0 * step.STEPS))
    assert made == Round(seconds=2.0, cpu_s=1.0)


def test_variants_are_all_combinations() -> None:
    assert [(item.bucket_mb, item.overlap) for item in parse_variants("on,off", "0, all")] == [
        ("0", True),
        ("0", False),
        ("all", True),
        ("all", False),
    ]


@pytest.mark.parametrize(
    ("overlap", "bucket_mb", "said"),
    [
        ("maybe", "25", "'maybe'"),
        ("", "25", "on, off"),
        ("on,on", "25", "twice"),
        ("on", "-1", "'-1'"),
        ("on", "many", "'many'"),
        ("on", "2.5", "'2.5'"),
        ("on", "1,1", "twice"),
    ],
)
def test_variants_that_make_no_sense_are_refused(overlap: str, bucket_mb: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_variants(overlap, bucket_mb)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "bert"}, "mlp, cnn, gpt"),
        ({"model": "cnn", "split": 2}, "--split"),
        ({"asked_carrier": "pigeon"}, "'pigeon'"),
        ({"optimizer": "lbfgs"}, "sgd, adam"),
        ({"consistency": "often"}, "valid are"),
        ({"device": "toaster"}, "--device 'toaster'"),
    ],
)
def test_a_setup_that_makes_no_sense_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        dataclasses.replace(SETUP, **change)


def test_every_model_can_be_built_by_its_process() -> None:
    assert tuple(step_models.BUILD) == step.MODELS


@pytest.mark.parametrize("model", ["cnn", "gpt"])
def test_a_model_has_a_loss_and_a_gradient_for_each_parameter(model: str) -> None:
    made = step_models.BUILD[model](1)
    step_models.make_loss(model, 2, 0, torch.device("cpu"))(made).backward()
    assert all(parameter.grad is not None for parameter in made.parameters())


def test_a_split_layer_is_the_whole_one_in_more_tensors() -> None:
    torch.manual_seed(0)
    whole = step_models.SplitLinear(8, 30, split=1)
    torch.manual_seed(0)
    split = step_models.SplitLinear(8, 30, split=10)
    assert len(list(split.parameters())) == 10 * len(list(whole.parameters()))
    x = torch.randn(4, 8)
    torch.testing.assert_close(split(x), whole(x))
