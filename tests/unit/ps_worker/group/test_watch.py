"""Signs of life of ranks: who is silent, gone or has left, by a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ps_wire.process.ranks import Ranks
from ps_worker.group.abort import Abort
from ps_worker.group.watch import Watch

LEASE_S = 10.0


class Store:
    """A store in a dict; `gone`: its keeper has gone; `asked`: called with each question."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.gone = False
        self.asked: Callable[[], object] = lambda: None

    def set(self, key: str, value: str) -> None:
        self._check()
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        self._check()
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        self._check()
        return all(key in self.values for key in keys)

    def _check(self) -> None:
        self.asked()
        if self.gone:
            raise RuntimeError("Connection reset by peer")


class Group:
    """The watches of a group, looked at by hand."""

    def __init__(self, size: int) -> None:
        self.now_s = 0.0
        self.store = Store()
        self.aborts = [Abort() for _ in range(size)]
        self.watches = [
            Watch(
                Ranks(rank=rank, size=size),
                self.store,
                self.aborts[rank],
                lease_s=LEASE_S,
                hosts=tuple(f"host{it}" for it in range(size)),
                clock=lambda: self.now_s,
            )
            for rank in range(size)
        ]

    def pass_time(self, seconds: float, *silent: int) -> None:
        """All but those look twice in every second."""
        for _ in range(int(seconds * 2)):
            self.now_s += 0.5
            for rank, watch in enumerate(self.watches):
                if rank not in silent:
                    watch.look()

    @property
    def reasons(self) -> list[str | None]:
        return [None if abort.error is None else abort.error.message for abort in self.aborts]


def test_nobody_is_missed_while_all_give_signs() -> None:
    group = Group(3)

    group.pass_time(60)

    assert group.reasons == [None] * 3


def test_a_rank_that_is_silent_for_half_a_lease_ends_the_group_and_is_named() -> None:
    group = Group(3)
    group.pass_time(1)

    group.pass_time(LEASE_S / 2, 1)
    assert group.reasons == [None] * 3

    group.pass_time(1, 1)
    assert group.reasons[1] is None  # it is silent itself
    assert all("rank 1 on host1 was silent for" in str(group.reasons[rank]) for rank in (0, 2))


def test_a_leader_that_is_silent_for_a_lease_ends_the_others() -> None:
    group = Group(2)
    group.pass_time(1)

    group.pass_time(LEASE_S, 0)
    assert group.reasons[1] is None

    group.pass_time(1, 0)
    assert "rank 0 on host0 was silent for" in str(group.reasons[1])


def test_a_store_that_does_not_answer_ends_who_waits_and_is_asked_no_more() -> None:
    group = Group(2)
    group.pass_time(1)
    seen: list[str | None] = []

    def hang() -> None:
        for seconds in (LEASE_S, 1.0):
            group.now_s += seconds
            group.watches[1].check_answered()
            seen.append(group.reasons[1])
        raise RuntimeError("the question was given up")

    group.store.asked = hang
    group.watches[1].look()

    assert seen[0] is None
    assert "rank 0 on host0 was silent for 11.0 s" in str(seen[1])
    group.store.gone = True
    assert group.watches[1].reason() is None
    group.watches[1].leave()
    assert "left" not in group.store.values.values()


def test_a_rank_that_asks_nothing_for_a_while_takes_no_store_for_silent() -> None:
    group = Group(2)
    group.pass_time(1)

    group.now_s += 3 * LEASE_S
    for watch in group.watches:
        watch.check_answered()

    assert group.reasons == [None, None]


def test_time_in_which_a_rank_did_not_look_itself_is_no_silence_of_others() -> None:
    """Where a machine is paused, or overloaded, all of its ranks are; what comes then counts again."""
    group = Group(3)
    group.pass_time(1)
    group.watches[0].look()  # it has seen the newest signs of all

    group.now_s += 3 * LEASE_S
    group.watches[0].look()
    group.watches[2].look()
    assert group.reasons == [None] * 3

    group.pass_time(LEASE_S / 2 + 1, 1)
    assert "rank 1 on host1 was silent for" in str(group.reasons[0])


@pytest.mark.parametrize("first", ["look", "reason"])
def test_a_store_that_is_gone_means_that_the_leader_is_and_is_asked_once(first: str) -> None:
    group = Group(2)
    group.store.gone = True
    asked: list[str] = []
    group.store.asked = lambda: asked.append("once")
    watch = group.watches[1]

    if first == "look":
        watch.look()
        assert "rank 0, which keeps the group's store, has gone" in str(group.reasons[1])
    assert watch.reason() is None
    watch.tell("rank 0 has gone")
    watch.look()
    watch.leave()

    assert asked == ["once"]


def test_a_rank_that_has_left_in_order_is_not_missed() -> None:
    group = Group(2)
    group.pass_time(1)
    group.watches[1].leave()

    group.pass_time(3 * LEASE_S, 1)

    assert group.reasons == [None, None]


def test_the_leader_knows_whether_all_others_have_left_in_order() -> None:
    group = Group(3)
    assert group.watches[1].leave()
    assert group.watches[2].leave()

    assert group.watches[0].leave()
    assert group.watches[0].leave(), "also when it is asked again"


def test_the_first_reason_stays_and_reaches_all() -> None:
    group = Group(3)
    group.watches[2].tell("rank 2 has run out of memory")
    group.watches[1].tell("another reason")

    group.pass_time(0.5)

    assert all("rank 2 has run out of memory" in str(reason) for reason in group.reasons)
    assert group.watches[0].reason() == "rank 2 has run out of memory"


@pytest.mark.parametrize(("broken", "agreed", "looks"), [(0, 0, 8), (1, 0, 4), (0, 1, 11), (1, 1, 4)])
def test_the_leader_waits_for_the_others_before_it_takes_the_store_away(
    broken: int, agreed: int, looks: int
) -> None:
    """Longer where all leave at one step: one that is held up would hear that rank 0 has gone."""
    group = Group(2)
    if broken:
        group.aborts[0].set("rank 1 has gone")
    asked: list[float] = []
    watch = Watch(
        Ranks(rank=0, size=2),
        group.store,
        group.aborts[0],
        lease_s=LEASE_S,
        hosts=("a", "b"),
        clock=lambda: asked.append(0.0) or float(len(asked)),  # type: ignore[func-returns-value]
    )

    assert not watch.leave(agreed=bool(agreed))  # rank 1 never comes: each look at the clock is a second

    assert looks - 2 <= len(asked) <= looks
    assert group.store.values["alive/0"] == b"left"
