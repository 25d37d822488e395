"""The laws that are checked on recorded runs: honest records violate none, each is violated by its fault."""

from dataclasses import replace

import pytest

from ps_lab.compare.folder import Folder
from ps_lab.compare.laws import Holds, bound_on_tau, verdicts
from ps_lab.compare.outcome import WorkerCounts
from ps_lab.compare.results import Recording, RunData, read_runs

from .made import EXPERIMENT, made_folder

TEXT = EXPERIMENT.replace('"asp"]', '"asp", "bsp:backup=1", "asp:max_delay=2"]\nbaselines = ["ddp"]')


@pytest.fixture(scope="module", name="runs")
def _runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunData]:
    path = tmp_path_factory.mktemp("laws") / "out"
    made_folder(path, TEXT, only=lambda run: run.seed == 0 and run.profile.name == "transient")
    return {data.run.model: data for data in read_runs(Folder.open(path)) if data.ended}


def verdict(data: RunData, law: int):
    return next(one for one in verdicts(data) if one.law == law)


def bent(data: RunData, place: int, **values: object) -> RunData:
    """The same run, with other values in one step of worker 1."""
    recordings = list(data.recordings)
    steps = list(recordings[1].steps)
    steps[place] = replace(steps[place], **values)
    recordings[1] = Recording(header=recordings[1].header, steps=tuple(steps), whole=True)
    return replace(data, recordings=tuple(recordings))


def test_honest_runs_violate_nothing(runs: dict[str, RunData]):
    holds = {(model, one.law): one.holds for model, data in runs.items() for one in verdicts(data)}
    for model, laws in {"bsp": (5, 6, 12), "ssp:3": (5, 6, 12), "asp": (7, 12)}.items():
        assert all(holds[model, law] is Holds.YES for law in laws), model
    assert Holds.NO not in {one for (model, _), one in holds.items() if model in {"bsp", "ssp:3", "asp"}}


def test_what_a_law_does_not_speak_of_is_not_called_true(runs: dict[str, RunData]):
    assert verdict(runs["asp"], 5).holds is Holds.OPEN
    assert verdict(runs["asp"], 6).holds is Holds.OPEN
    assert verdict(runs["bsp"], 7).holds is Holds.OPEN
    assert verdict(runs["bsp:backup=1"], 5).holds is Holds.OPEN
    assert {one.holds for one in verdicts(runs["ddp"])} == {Holds.OPEN}
    assert {one.holds for one in verdicts(replace(runs["bsp"], recordings=()))} == {Holds.OPEN}


def test_law_5_sees_a_gap_that_is_too_large(runs: dict[str, RunData]):
    seen = verdict(bent(runs["ssp:3"], 20, gap=5), 5)
    assert seen.holds is Holds.NO
    assert "was 5, the bound s + 1 is 4" in seen.text
    assert verdict(bent(runs["ssp:3"], 20, gap=4), 5).holds is Holds.YES
    assert verdict(bent(runs["bsp"], 20, gap=2), 5).holds is Holds.NO


def test_law_5_sees_who_computed_too_early(runs: dict[str, RunData]):
    """Also where the gaps that were recorded are honest."""
    seen = verdict(bent(runs["bsp"], 40, started_s=0.01), 5)
    assert seen.holds is Holds.NO
    assert "worker 1 began step 40" in seen.text


def test_law_6_sees_a_tau_above_its_bound(runs: dict[str, RunData]):
    over = {"version_read": 10, "version_applied": 32, "tau": 22}
    seen = verdict(bent(runs["ssp:3"], 20, **over), 6)
    assert seen.holds is Holds.NO
    assert "22, the bound is 21" in seen.text
    fits = {"version_read": 10, "version_applied": 31, "tau": 21}
    assert verdict(bent(runs["ssp:3"], 20, **fits), 6).holds is Holds.YES
    assert verdict(bent(runs["bsp"], 20, **fits), 6).holds is Holds.NO
    assert verdict(bent(runs["asp:max_delay=2"], 20, **fits), 6).holds is Holds.NO


def test_law_6_speaks_of_constant_members_alone(runs: dict[str, RunData]):
    data = runs["ssp:3"]
    assert verdict(replace(data, recordings=data.recordings[:3]), 6).holds is Holds.OPEN
    twice = (*data.recordings[:3], replace(data.recordings[2], header=data.recordings[2].header))
    assert verdict(replace(data, recordings=twice), 6).holds is Holds.OPEN


def test_law_7_sees_any_wait(runs: dict[str, RunData]):
    seen = verdict(bent(runs["asp"], 20, gate_s=1e-6), 7)
    assert seen.holds is Holds.NO
    assert seen.checked == 240


def test_law_12_sees_a_push_that_nobody_accounts_for(runs: dict[str, RunData]):
    data = runs["bsp"]
    assert data.outcome is not None
    lost = WorkerCounts(worker=2, received=10, applied=8, dropped=1, abstained=0)
    seen = verdict(replace(data, outcome=replace(data.outcome, counts=(lost,))), 12)
    assert seen.holds is Holds.NO
    assert "worker 2" in seen.text
    assert verdict(replace(data, outcome=replace(data.outcome, counts=())), 12).holds is Holds.OPEN


def test_law_12_sees_a_drop_that_the_servers_do_not_know(runs: dict[str, RunData]):
    gone = {"version_applied": None, "tau": None, "dropped": 2}
    assert verdict(bent(runs["asp:max_delay=2"], 20, **gone), 12).holds is Holds.NO


@pytest.mark.parametrize(
    ("model", "workers", "bound"),
    [
        ("bsp", 4, 0), ("ssp:0", 4, 3), ("ssp:3", 4, 21), ("ssp:3", 1, 0),
        ("asp", 4, None), ("asp:max_delay=5", 4, 5), ("ddp", 4, 0),
    ],
)  # fmt: skip
def test_the_bound_on_tau(model: str, workers: int, bound: int | None):
    assert bound_on_tau(model, workers) == bound
