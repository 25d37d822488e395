"""An experiment is checked once: what it has is read, and what it cannot have is named."""

from pathlib import Path

import pytest

from ps_lab.experiments.experiment import Experiment, Host, Target, parse, read
from ps_wire.errors import UsageError

WHOLE = """
name = "all"
description = "Everything that there is."
script = "train.py"
arguments = ["--epochs", "3"]
models = ["bsp", "bsp:backup=1", "ssp:3", "asp", "asp:max_delay=8"]
baselines = ["none", "ddp"]
servers = 3
workers = [2, 4]
group_size = 2
carrier = "tcp"
wire_dtype = "bf16"
seeds = [0, 1, 2]
seed_argument = "--random-seed"
repeats = 2
record = false
budget_s = 3600

[[hosts]]
workers = [1]
megabits_per_s = 100
delay_ms = 5

[learning_rates]
argument = "--rate"
grid = [0.1, 0.2]
common = 0.1
models.asp = [0.05, 0.1]

[optimizer]
arguments = ["--momentum", "0.9"]
models.asp = []

[stop]
time_s = 60
samples = 100000
metric = "accuracy"
at_least = 0.97
goes_on = true

[evaluation]
script = "evaluate.py"
every_s = 5
arguments = ["--quick"]

[[profiles]]
name = "quiet"

[[profiles]]
name = "stumbles"
straggler = "transient:p=0.1,f=4"

[[profiles]]
name = "dies"
straggler = "crash:step=10,restart=0,worker=1"
"""
LEAST = 'name = "least"\nscript = "train.py"\nmodels = ["bsp"]\n'
PROFILE = LEAST + '[[profiles]]\nname = "a"\n'


def test_everything_is_read():
    found = parse(WHOLE)
    assert found.models == ("bsp", "bsp:backup=1", "ssp:3", "asp", "asp:max_delay=8")
    assert found.parties[:2] == ("none", "ddp")
    assert found.reference == "bsp"
    assert found.setup.workers == (2, 4)
    assert found.setup.hosts == (Host(workers=(1,), megabits_per_s=100.0, delay_ms=5.0),)
    assert found.setup.wire_dtype == "bf16"
    assert found.learning_rates.of("asp") == (0.1, 0.05)  # the common one first
    assert found.learning_rates.of("ssp:3") == (0.1, 0.2)
    assert found.optimizer.of("bsp") == ("--momentum", "0.9")
    assert found.optimizer.of("asp") == ()
    assert found.stop.target == Target(metric="accuracy", value=0.97, larger_is_better=True)
    assert found.stop.goes_on
    assert found.evaluation is not None
    assert found.evaluation.every_s == 5.0
    assert [str(profile.straggler) for profile in found.profiles] == [
        "none",
        "transient:p=0.1,f=4",
        "crash:step=10,restart=0,worker=1",
    ]
    assert str(found.profiles[1].stragglers(3)) == "transient:p=0.1,f=4;seed=3"
    assert found.repeats == 2
    assert not found.record
    assert found.budget_s == 3600


def test_three_keys_are_enough():
    found = parse(LEAST)
    assert found == Experiment(name="least", script="train.py", models=("bsp",))
    assert found.learning_rates.of("bsp") == (None,)
    assert [str(profile) for profile in found.profiles] == ["nothing is disturbed"]


def test_models_are_written_in_one_way():
    assert parse(LEAST.replace('"bsp"', '" ssp:03 "')).models == ("ssp:3",)


def test_a_target_is_met_from_its_side_alone_and_never_by_nan():
    least = Target(metric="accuracy", value=0.9, larger_is_better=True)
    most = Target(metric="loss", value=0.1, larger_is_better=False)
    assert [least.met(value) for value in (0.8, 0.9, 1.0, float("nan"))] == [False, True, True, False]
    assert [most.met(value) for value in (0.2, 0.1, 0.0, float("nan"))] == [False, True, True, False]
    assert str(most) == "loss <= 0.1"


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        (LEAST + "modells = []", "modells", "did you mean 'models'"),
        (LEAST + "[stopp]\n", "stopp", "did you mean 'stop'"),
        (LEAST + "[stop]\ntime = 3", "stop.time", "did you mean 'time_s'"),
        (LEAST + "[stop]\nzzz = 3", "stop.zzz", "valid are: time_s"),
        (LEAST + "[learning_rates]\nmodels.asp = [1.0]", "learning_rates.models.asp", "did you mean .bsp"),
        (LEAST + "[optimizer]\nmodels.bspp = []", "optimizer.models.bspp", "did you mean 'bsp'"),
        (PROFILE + 'straggler = "transiant:p=1,f=2"', "profiles[0].straggler", "did you mean transient"),
        (PROFILE + 'straggler = "constant:f=4,worker=4"', "profiles[0].straggler", "below 4"),
        (PROFILE + 'straggler = "constant:f=4;seed=1"', "profiles[0].straggler", "take seed= away"),
        (PROFILE + 'stragler = "none"', "profiles[0].stragler", "did you mean 'straggler'"),
        (PROFILE + 'kind = "constant"', "profiles[0].kind", "unknown key"),
        (LEAST + '[[profiles]]\nstraggler = "none"', "profiles[0].name", "is missing"),
        (LEAST + '[[profiles]]\nname = "a"\n' * 2, "profiles", "stands there twice"),
        (LEAST + "seeds = [10000000000]", "seeds", "from 0 to"),
        (LEAST.replace('["bsp"]', '["bsp", "bsp"]'), "models", "'bsp' stands there twice"),
        (LEAST.replace('["bsp"]', '["ssp:3", "ssp:03"]'), "models", "'ssp:3' stands there twice"),
        (LEAST.replace('["bsp"]', '["ssp"]'), "models", "unknown consistency"),
        (LEAST.replace('["bsp"]', '["ddp"]'), "models", "is a baseline"),
        (LEAST.replace('["bsp"]', "[]"), "models", "nothing is compared"),
        (LEAST.replace('["bsp"]', '"bsp"'), "models", "must be a list"),
        (LEAST.replace('["bsp"]', "[3]"), "models", "a list of texts"),
        (LEAST + 'baselines = ["dp"]', "baselines", "did you mean 'ddp'"),
        (LEAST + "seeds = []", "seeds", "not empty"),
        (LEAST + "seeds = [1, 1]", "seeds", "twice"),
        (LEAST + "seeds = [-1]", "seeds", ">= 0"),
        (LEAST + "workers = 0", "workers", ">= 1"),
        (LEAST + "workers = true", "workers", "got True"),
        (LEAST + 'workers = "two"', "workers", "a whole number or a list of them, got 'two'"),
        (LEAST + "servers = 1.5", "servers", "whole number"),
        (LEAST + 'carrier = "pigeon"', "carrier", "pigeon"),
        (LEAST + 'wire_dtype = "fp8"', "wire_dtype", "fp8"),
        (LEAST + "budget_s = 0", "budget_s", "> 0"),
        (LEAST + "budget_s = inf", "budget_s", "number"),
        (LEAST + "[stop]\nmetric = 'loss'", "stop.metric", "at_least and stop.at_most"),
        (LEAST + "[stop]\nat_most = 0.1", "stop.at_most", "needs stop.metric"),
        (LEAST + "[stop]\ngoes_on = true", "stop.goes_on", "needs stop.metric"),
        (LEAST + "[learning_rates]\ngrid = [0.1]\ncommon = 0.2", "learning_rates.common", "also of bsp"),
        (LEAST + "[learning_rates]\ngrid = [0.0]", "learning_rates.grid", "> 0"),
        (LEAST + "[[hosts]]\nworkers = [9]\nmegabits_per_s = 1", "hosts[0].workers", "below 4"),
        (LEAST + "hosts = [3]", "hosts[0]", "must be a table"),
        (LEAST + "stop = 3", "stop", "must be a table"),
        (LEAST.replace('name = "least"', 'name = "a/b"'), None, "job name"),
        ('script = "a"\nmodels = []', "name", "is missing"),
    ],
)
def test_what_it_cannot_have_is_named_with_the_nearest(text, key, says):
    with pytest.raises(UsageError, match=says.replace("[", r"\[")) as refused:
        parse(text)
    assert refused.value.facts.get("key") == key


def test_what_is_no_toml_is_said():
    with pytest.raises(UsageError, match="no TOML"):
        parse("models = [")


def test_a_profile_says_what_it_does():
    text = 'straggler = "pause:step=5,s=2;constant:f=3,worker=1+2"\narguments = ["--label-skew", "0.3"]'
    found = parse(PROFILE + text).profiles[0]
    assert str(found) == (
        "the process stands still for 2 s before step 5 (worker 0); compute takes 3 times as long in every "
        "step (workers 1, 2); the script also gets --label-skew 0.3"
    )
    assert not found.quiet
    assert found.to_json()["straggler"] == "pause:step=5,s=2;constant:f=3,worker=1+2"


def test_the_fingerprint_is_of_what_is_compared():
    """A folder goes on with a longer budget, and not with another seed."""
    found = parse(LEAST)
    assert parse(LEAST + "budget_s = 5\ndescription = 'x'").fingerprint() == found.fingerprint()
    other = parse(LEAST + "seeds = [5]")
    assert other.fingerprint() != found.fingerprint()
    assert other.differs_in(found) == ("seeds",)


def test_a_file_names_scripts_from_its_own_folder(tmp_path: Path):
    path = tmp_path / "one.toml"
    path.write_text(LEAST)
    with pytest.raises(UsageError, match=r"script: .*train\.py is not a file"):
        read(path)
    (tmp_path / "train.py").touch()
    found, text = read(path)
    assert found.name == "least"
    assert text == LEAST
    path.write_text(LEAST + "seedss = [0]")
    with pytest.raises(UsageError, match=r"one\.toml: unknown key 'seedss'"):
        read(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="no UTF-8"):
        read(path)
    with pytest.raises(UsageError, match=r"cannot read .*two\.toml"):
        read(tmp_path / "two.toml")
