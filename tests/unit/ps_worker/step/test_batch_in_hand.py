"""Whether a batch counts, and how many steps are taken again."""

from __future__ import annotations

from ps_worker.step.batch_in_hand import BatchInHand


def test_steps_that_are_taken_again_are_void_until_none_is_left():
    batch = BatchInHand()
    batch.fall_behind(2)
    seen = []
    for _ in range(3):
        batch.replay()
        seen.append((batch.behind, batch.void))
        batch.end()
    assert seen == [(2, True), (1, True), (0, False)]


def test_a_step_that_was_sat_out_is_taken_again_only_where_it_counts_for_the_script():
    batch = BatchInHand()
    batch.sit_out(again=False)
    assert batch.behind == 0
    batch.sit_out(again=True)
    assert batch.behind == 1
    assert not batch.void


def test_a_batch_of_before_the_worker_joined_again_is_void_until_the_next():
    """And nothing is taken again: the worker is where the job is."""
    for goes_on in (BatchInHand.end, BatchInHand.renew):
        batch = BatchInHand()
        batch.fall_behind(5)
        batch.reenter(void=True)
        assert (batch.behind, batch.void) == (0, True)
        goes_on(batch)
        assert (batch.behind, batch.void) == (0, False)
