"""Who is on which host, and who sends to whom so that a link between hosts carries everything once."""

from __future__ import annotations

from ps_worker.group.hosts import Hosts


def test_ranks_belong_to_hosts_in_the_order_of_their_first_ranks() -> None:
    hosts = Hosts(["b", "a", "b", "c"])

    assert list(hosts.ranks) == [[0, 2], [1], [3]]
    assert [hosts.of(rank) for rank in range(4)] == [0, 1, 0, 2]
    assert hosts.near(2) == [0, 2]
    assert (hosts.apart, hosts.shared) == (True, True)


def test_one_host_is_not_apart_and_hosts_of_one_rank_share_none() -> None:
    assert (Hosts("aa").apart, Hosts("aa").shared) == (False, True)
    assert (Hosts("ab").apart, Hosts("ab").shared) == (True, False)


def test_what_goes_to_a_host_goes_there_once_and_on_from_there() -> None:
    hosts = Hosts("aabbb")

    assert hosts.hops(0, range(5), turn=1) == ([(0, 1), (0, 3)], [(3, 2), (3, 4)])
    assert hosts.hops(0, range(5), turn=2) == ([(0, 1), (0, 4)], [(4, 2), (4, 3)])


def test_who_does_not_want_it_neither_gets_it_nor_passes_it_on() -> None:
    hosts = Hosts("aabbb")

    assert hosts.hops(3, [1, 4], turn=0) == ([(3, 1), (3, 4)], [])
    assert hosts.hops(0, [2, 4], turn=0) == ([(0, 2)], [(2, 4)])
