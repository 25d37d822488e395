"""The line that says how a job gets on."""

from ps_lab.status.progress import Meter
from ps_lab.status.rates import WINDOW_S
from tests.unit.ps_lab.made import made_job, made_table, made_worker


def test_nothing_is_said_before_the_first_step() -> None:
    assert Meter().read(made_job(workers=(made_worker(0), made_worker(1))), 0.0) is None


def test_the_line_has_steps_rate_metrics_with_loss_first_and_staleness() -> None:
    meter = Meter()
    meter.read(made_job(workers=(made_worker(0, step=1, samples=10), made_worker(1))), 100.0)
    progress = meter.read(
        made_job(
            workers=(
                made_worker(0, step=9, samples=1030, metrics={"accuracy": 0.5, "loss": 0.25}),
                made_worker(1, step=7, samples=980, metrics={"loss": 0.75}),
            ),
            tables=(made_table(tau_counts={0: 1, 3: 1}),),
        ),
        102.0,
    )
    assert str(progress) == "step 7..9  1,000 samples/s  loss 0.5  accuracy 0.5  staleness mean 1.5 max 3"


def test_workers_in_step_have_one_number_and_one_look_has_no_rate() -> None:
    progress = Meter().read(made_job(workers=(made_worker(0, step=4), made_worker(1, step=4))), 0.0)
    assert str(progress) == "step 4  staleness mean 0.0 max 0"


def test_the_rate_forgets_what_is_older_than_its_window() -> None:
    meter = Meter()
    rate = None
    for second in range(20):
        # 100 samples a second, and 10 from second 10 on
        samples = min(second, 10) * 100 + max(second - 10, 0) * 10
        progress = meter.read(made_job(workers=(made_worker(0, step=1, samples=samples),)), float(second))
        assert progress is not None
        rate = progress.samples_per_s
    assert WINDOW_S < 9
    assert rate == 10.0
