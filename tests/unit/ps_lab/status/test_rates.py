"""Rates over the last seconds, of what only grows."""

from ps_lab.status.rates import WINDOW_S, Rates


def test_rates_are_of_the_last_seconds_and_forget_who_has_gone():
    rates = Rates()
    assert rates.rate("a", 0.0, 0.0) is None
    for second in range(1, 20):
        found = rates.rate("a", 10.0 * max(second - 10, 0), float(second))
    assert found == 10.0
    assert len(rates._seen["a"]) <= WINDOW_S + 2
    assert rates.rate("a", 1.0, 30.0) is None
    rates.forget_others()
    rates.forget_others()
    assert not rates._seen
