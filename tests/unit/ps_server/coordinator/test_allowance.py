"""How often something may be asked for."""

from ps_server.coordinator.allowance import Allowance


def test_so_many_times_in_so_many_seconds_each_name_by_itself():
    allowance = Allowance(times=2, window_s=60.0)
    for now_s in (100.0, 110.0):
        assert allowance.wait_s("a", now_s) == 0.0
        allowance.take("a", now_s)
    assert allowance.wait_s("a", 120.0) == 40.0
    assert allowance.wait_s("b", 120.0) == 0.0
    assert allowance.wait_s("a", 160.0) == 0.0
    allowance.take("a", 160.0)
    assert allowance.wait_s("a", 165.0) == 5.0


def test_names_that_nobody_asks_for_any_more_are_forgotten():
    allowance = Allowance(times=2, window_s=60.0)
    for number in range(100):
        allowance.take(str(number), float(number))
    allowance.take("x", 1000.0)
    assert list(allowance._taken) == ["x"]
