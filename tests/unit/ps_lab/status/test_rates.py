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


def test_what_has_not_grown_yet_has_no_rate_until_it_had_the_time_to() -> None:
    """Workers report every two seconds: between two of them it is not 0."""
    rates = Rates()
    assert rates.rate("a", 100.0, 0.0) is None
    assert rates.rate("a", 100.0, 0.5) is None
    assert rates.rate("a", 200.0, 1.0) == 100.0
    still = Rates()
    found = [still.rate("a", 100.0, second) for second in (0.0, WINDOW_S / 2, WINDOW_S)]
    assert found == [None, None, 0.0]
