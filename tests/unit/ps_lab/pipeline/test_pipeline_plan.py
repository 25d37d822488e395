"""`ps-lab pipeline plan`: stages, the schedule as a table and as a picture, the bubble; what is refused."""

from __future__ import annotations

import re
import sys
from xml.etree import ElementTree as ET

import pytest
import torch
from torch import nn

from ps_lab import cli
from ps_lab.pipeline import display
from ps_lab.pipeline.picture import draw
from ps_lab.pipeline.planning import planned

MODEL = """
import torch
from torch import nn

def build():
    layers = [nn.Linear(4, 4, bias=False) for _ in range(4)]
    return nn.Sequential(*layers), torch.ones(8, 4)

def bare():
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))

def number():
    return 3
"""


@pytest.fixture(name="plan")
def _plan(tmp_path, monkeypatch, capsys):
    """Runs the command on the file above."""
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["ps-lab", "pipeline", "plan", *arguments])
        monkeypatch.delitem(sys.modules, "model", raising=False)
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def layers(count=4):
    return nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(count)))


def test_stages_schedule_and_bubble_are_shown(plan, tmp_path):
    arguments = ("--stages", "2", "--microbatches", "4", "--at", "2", "--picture", "out.svg")
    code, text = plan("model.py:build", *arguments)
    assert code == 0, text
    assert re.search(r"0 +│ 0, 1 +│ +32 │ +\d+\.\d\d │ +\d+\.\d\d │ +0\.00 │ +2 │ +0\.0 │", text), text
    assert "stage 0 F0 F1 .  B0 F2 B1 F3 B2 .  B3\n" in text
    assert "stage 1 .  F0 B0 F1 B1 F2 B2 F3 B3 .\n" in text
    assert (
        "bubble of 1f1b: 20.0% of the ticks; of stages that take equally long it is (S-1)/(M+S-1) = 20.0%"
        in text
    )
    assert "with these times: a step of" in text
    assert len(ET.parse(tmp_path / "out.svg").findall(".//{*}rect")) > 16


def test_without_a_batch_parameters_alone_are_shared(plan):
    code, text = plan("model.py:bare", "--stages", "4")
    assert code == 0, text
    assert re.search(r"3 +│ 3 +│ +20 │ +- │ +- │", text), text
    assert "with these times" not in text


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("model.py", "--stages", "2"), 64, "a model is FILE:FUNCTION, as model.py:build, got 'model.py'"),
        (("model.pi:build", "--stages", "2"), 64, "there is no file model.pi"),
        (("model.py:built", "--stages", "2"), 64, "model.py has no function built"),
        (("model.py:number", "--stages", "2"), 64, "gives int, and not a model"),
        (("model.py:bare", "--stages", "2", "--by", "time"), 78, "return the model and a batch"),
        (("model.py:build", "--stages", "5"), 78, "5 stages need as many blocks, and the model has 4"),
        (
            ("model.py:build", "--stages", "2", "--microbatches", "3"),
            78,
            "3 micro-batches do not divide a batch",
        ),
        (("model.py:build", "--stages", "4", "--microbatches", "2"), 78, "1f1b takes at least as many"),
        (("model.py:build", "--stages", "2", "--schedule", "2f2b"), 78, "schedule is one of gpipe, 1f1b"),
        (("model.py:build", "--stages", "2", "--by", "luck"), 78, "by time, memory, parameters or at names"),
        (("model.py:build", "--stages", "2", "--at", "7"), 78, "no block is named '7'; there are 0, 1, 2, 3"),
        (
            ("model.py:build", "--stages", "3", "--at", "2", "--at", "1"),
            78,
            "stages follow each other as blocks",
        ),
        (
            ("model.py:build", "--stages", "3", "--at", "2"),
            78,
            "3 stages begin at 2 names behind the first, got 1",
        ),
        (("model.py:build", "--stages", "2", "--at", "2", "--by", "time"), 64, "give one of them"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(plan, arguments, code, said):
    assert plan(*arguments)[0] == code
    assert said in plan(*arguments)[1]


def test_memory_counts_the_activations_of_microbatches_in_flight():
    """1f1b holds fewer than gpipe: that is what it is for."""
    plans = {
        name: planned(
            layers(), [torch.ones(8, 4)], stages=4, ranks=4, schedule=name, microbatches=8, by="memory"
        )
        for name in ("gpipe", "1f1b")
    }
    weights, activations = 2 * 4 * 4 * 4, 4 * 4
    assert [it.memory_bytes for it in plans["gpipe"].stages] == [weights + 8 * activations] * 4
    held = [weights + count * activations for count in (4, 3, 2, 1)]
    assert [it.memory_bytes for it in plans["1f1b"].stages] == held
    assert [it.sent_bytes for it in plans["1f1b"].stages] == [16, 16, 16, 0]


def test_several_stages_on_a_rank_are_named_in_its_row():
    plan = planned(
        layers(), (), stages=4, ranks=2, schedule="interleaved1f1b", microbatches=4, by="parameters"
    )
    lines = list(display.schedule(plan, 200))
    assert lines[1].startswith("rank 0 0F0 0F1 2F0 2F1 ")
    assert "(R-1)/(2M+R-1) = 11.1%" in "".join(display.bubble(plan))
    assert ">2.0</text>" in draw(plan)


def test_a_long_schedule_goes_over_several_lines():
    plan = planned(layers(), (), stages=4, ranks=4, schedule="gpipe", microbatches=8, by="parameters")
    lines = list(display.schedule(plan, 60))
    assert max(map(len, lines)) <= 60
    assert [line.split()[:2] for line in lines if line.startswith("stage 3")] == [["stage", "3"]] * 2
