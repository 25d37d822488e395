"""The examples run as they are, on servers, and learn."""

import re
from pathlib import Path

import pytest

from .processes import Start

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def launched(
    spawn: Start, consistency: str, script: str, *arguments: str, options: tuple[str, ...] = ()
) -> str:
    """The output of an example on one server and two workers."""
    process = spawn(
        *("ps-lab", "launch", "--num-servers", "1", "--num-workers", "2"),
        *("--consistency", consistency, *options, str(EXAMPLES / script)),
        *arguments,
    )
    assert process.wait_end() == 0, process.text
    return process.text


def test_the_digits_are_learned_in_two_epochs(spawn: Start) -> None:
    pytest.importorskip("sklearn")
    output = launched(spawn, "asp", "digits.py", "--epochs", "2")
    accuracy = re.search(r"worker 0 \| test accuracy ([\d.]+)", output)
    assert accuracy is not None, output
    assert float(accuracy[1]) > 0.6


def test_groups_of_ranks_learn_the_digits_and_one_process_of_all_says_so(spawn: Start) -> None:
    pytest.importorskip("sklearn")
    output = launched(spawn, "ssp:3", "digits_groups.py", "--epochs", "2", options=("--group-size", "2"))
    accuracies = re.findall(r"\| test accuracy ([\d.]+)", output)
    assert len(accuracies) == 1, output
    assert float(accuracies[0]) > 0.6


def test_two_pipelines_of_two_stages_learn_from_a_text(spawn: Start) -> None:
    few = ("--steps", "20", "--batch-size", "8")
    output = launched(spawn, "ssp:2", "char_lm_pipeline.py", *few, options=("--pipeline-stages", "2"))
    losses = re.findall(r"\| step 20: loss ([\d.]+)", output)
    assert len(losses) == 1, output
    assert float(losses[0]) < 4.0  # of uniform guesses: 4.6


def test_the_language_model_gets_better(spawn: Start) -> None:
    output = launched(spawn, "bsp", "char_lm.py", "--steps", "40", "--batch-size", "4")
    losses = [float(loss) for loss in re.findall(r"worker 0 \| step \d+: loss ([\d.]+)", output)]
    assert len(losses) == 2, output
    assert max(losses) < 4.0  # of uniform guesses: 4.6, the log of 98 characters
