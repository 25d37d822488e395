"""Messages between ranks: what the leader is answered reaches all; who differs ends the group by name."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ps_wire.errors import GroupBroken, JobMismatch
from ps_worker.group.abort import Abort
from ps_worker.group.channel import MAX_HEADER_BYTES, SIZES, Channel, Said
from ps_worker.group.lines import RankLines
from tests.unit.ps_worker.group.wires import town
from tests.until import LIMIT_S, until


def test_an_answer_of_the_leader_reaches_all_ranks_with_what_they_brought() -> None:
    def ask(heard: list[Said]) -> Said:
        return Said({"sum": sum(one.fields["n"] for one in heard)}, b"".join(one.blob for one in heard))

    with town(3) as group:
        found = group.run(
            lambda rank: group.channels[rank].relay("a question", ask, Said({"n": rank}, bytes([rank])))
        )

    assert [one.fields["sum"] for one in found] == [3, 3, 3]
    assert [one.blob for one in found] == [b"\x01\x02"] * 3


def test_an_error_of_the_leaders_question_is_raised_on_all_ranks() -> None:
    def ask(_: list[Said]) -> Said:
        raise JobMismatch("the job has another consistency", expected="bsp")

    with town(3) as group:
        found = group.run(lambda rank: group.channels[rank].relay("connect()", ask))

    assert [type(error) for error in found] == [JobMismatch] * 3
    assert {error.message for error in found} == {"the job has another consistency"}
    assert all(error.facts == {"expected": "bsp"} for error in found)


def test_ranks_that_do_different_things_end_together_and_both_are_named() -> None:
    with town(3) as group:
        found = group.run(
            lambda rank: group.channels[rank].relay("finish()" if rank == 2 else "step 7", lambda _: Said())
        )

    assert all(isinstance(error, GroupBroken) for error in found)
    assert group.said[0].startswith("rank 0 is at step 7, and rank 2 on host2 at finish()")
    assert all("rank 2 on host2 at finish()" in str(error) for error in found)


def test_who_waits_for_a_rank_that_has_gone_is_told_which() -> None:
    with town(2) as group:
        group.cut(1)

        found = group.run(lambda rank: None if rank else group.channels[0].relay("step 1", lambda _: Said()))

    assert isinstance(found[0], GroupBroken)
    assert "rank 1 on host1 has gone" in found[0].message


def test_the_end_of_the_group_frees_who_waits_though_nothing_comes() -> None:
    with town(2) as group:
        found = group.run(
            lambda rank: (
                group.channels[1].hear("step 1") if rank else group.aborts[1].set("rank 5 was silent")
            )
        )

    assert isinstance(found[1], GroupBroken)


def test_a_message_of_impossible_length_ends_the_group() -> None:
    with town(2) as group:
        group.sockets[1, 0].sendall(SIZES.pack(False, MAX_HEADER_BYTES + 1, 0))

        found = group.run(lambda rank: None if rank else group.channels[0].hear_from(1, "step 1"))

    assert isinstance(found[0], GroupBroken)
    assert "impossible length" in found[0].message


@pytest.mark.parametrize("text", [b"no JSON", b"[1, 2]"])
def test_what_is_no_message_ends_the_group(text: bytes) -> None:
    with town(2) as group:
        group.sockets[1, 0].sendall(SIZES.pack(False, len(text), 0) + text)

        found = group.run(lambda rank: None if rank else group.channels[0].hear_from(1, "step 1"))

    assert isinstance(found[0], GroupBroken)
    assert "no message" in found[0].message


def test_what_each_rank_says_reaches_every_other() -> None:
    with town(4) as group:
        found = group.run(lambda rank: group.channels[rank].share("step 3", {"n": rank * "x"}))

    assert all([one.fields["n"] for one in heard] == ["", "x", "xx", "xxx"] for heard in found)


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_who_says_something_else_to_all_is_named_on_all(odd: int) -> None:
    def script(rank: int) -> object:
        if rank == odd:
            return group.channels[rank].relay("finish()", lambda _: Said())
        return group.channels[rank].share("step 3")

    with town(3) as group:
        found = group.run(script)

    assert all(isinstance(error, GroupBroken) for error in found)
    rest = 1 if odd == 0 else odd
    names = ("finish()", "step 3") if odd == 0 else ("step 3", "finish()")
    assert all(
        f"rank 0 is at {names[0]}, and rank {rest} on host{rest} at {names[1]}" in str(it) for it in found
    )


def test_scripts_that_stand_at_the_same_place_compare_it_before_what_they_say_next() -> None:
    def script(rank: int) -> list[Any]:
        channel = group.channels[rank]
        channel.stand("step 3")
        channel.compare_places()
        return [one.fields["n"] for one in channel.share("weights", {"n": rank})]

    with town(3) as group:
        assert [group.run(script) for _ in range(2)] == [[[0, 1, 2]] * 3] * 2


def test_scripts_that_stand_at_one_place_after_the_other_compare_each() -> None:
    """As in a step of an optimizer over two tables."""

    def script(rank: int) -> list[Any]:
        channel = group.channels[rank]
        channel.stand("step 3 of table 0")
        channel.stand("step 3 of table 1")
        return [one.fields["n"] for one in channel.share("weights", {"n": rank})]

    with town(3) as group:
        assert group.run(script) == [[0, 1, 2]] * 3


def test_a_script_that_is_interrupted_while_it_speaks_or_looks_ends_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half a message may have left, or come."""
    calls: dict[str, Callable[[Channel], object]] = {
        "queue": lambda channel: channel.say("step 3"),
        "receive": lambda channel: channel.all_have_said(),
    }
    for interrupted, call in calls.items():
        with town(2) as group, monkeypatch.context() as patched:
            patched.setattr(RankLines, interrupted, _interrupt)

            with pytest.raises(KeyboardInterrupt):
                call(group.channels[0])

            assert group.said == ["rank 0 was interrupted while it waited for the others"]


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("waits", [0, 1, 2])
@pytest.mark.parametrize("other", ["share", "relay", "stand"])
def test_a_script_that_stands_elsewhere_is_named_though_it_waits_for_others_there(
    waits: int, other: str
) -> None:
    """Nobody hears the others of who waits: they hear it, or it looks now and then, as the last one does."""

    def script(rank: int) -> object:
        channel = group.channels[rank]
        if rank == waits:
            channel.stand("step 3")
            return _looks(channel)
        if other == "stand":
            channel.stand("finish()")
            return _looks(channel)
        return channel.share("finish()") if other == "share" else channel.relay("finish()", lambda _: Said())

    with town(3) as group:
        found = group.run(script)

    assert all(isinstance(error, GroupBroken) for error in found)
    assert all("step 3" in str(error) and "finish()" in str(error) for error in found), found


def _looks(channel: Channel) -> None:
    def ended() -> bool:
        channel.compare_places()
        channel.check()  # as all who wait do
        return False

    until(ended)


def test_a_script_waits_for_nobody_where_it_stands_and_each_place_is_compared_in_its_turn() -> None:
    places, ahead = (["step 3", "step 4", "step 5"], ["step 3", "step 4", "evaluate"]), threading.Event()

    def script(rank: int) -> None:
        channel = group.channels[rank]
        if rank:
            assert ahead.wait(LIMIT_S)
        for place in places[rank]:
            channel.stand(place)
            channel.compare_places()
        ahead.set()
        _looks(channel)

    with town(2) as group:
        found = group.run(script)

    assert all(isinstance(error, GroupBroken) for error in found), found
    assert "rank 0 is at step 5, and rank 1 on host1 at evaluate;" in str(found[0])


def test_who_waits_for_others_at_a_place_compares_that_alone() -> None:
    """One of them has said it, and is heard last; another one comes later."""
    said, waits = threading.Event(), threading.Event()

    def script(rank: int) -> list[Any]:
        if rank == 1:
            assert waits.wait(LIMIT_S)
        channel = group.channels[rank]
        channel.stand("step 3 of table 0")
        channel.stand("step 3 of table 1")
        if rank == 2:
            said.set()
        assert said.wait(LIMIT_S)
        return [one.fields["n"] for one in channel.share("weights", {"n": rank})]

    with town(3) as group:
        group.look[0] = waits.set
        found = group.run(script)

    assert found == [[0, 1, 2]] * 3


def test_who_has_left_in_order_ends_nobody_who_does_not_wait_for_it() -> None:
    stood = []

    def script() -> object:
        channel = group.channels[0]
        for step in range(3):  # the first words to a closed connection leave
            channel.stand(f"step {step}")
            channel.compare_places()
            stood.append(step)
        return channel.share("finish()")

    with town(2) as group:
        group.run(lambda rank: group.channels[1].stand("step 0") if rank else None)
        group.channels[1].close()
        found = group.run(lambda rank: None if rank else script())

    assert stood == [0, 1, 2]
    assert group.said == ["rank 1 on host1 has gone"]
    assert isinstance(found[0], GroupBroken)


def test_who_looks_while_half_a_message_is_here_reads_nothing_of_its_rest() -> None:
    late, place = ({"what": what} for what in ("weights", "step 3"))
    data = b"".join(
        SIZES.pack(is_late, len(text), 0) + text
        for is_late, text in ((True, json.dumps(late).encode()), (False, json.dumps(place).encode()))
    )
    rest = [data[5:], data[:5]]  # of the words, as they come

    def look() -> None:
        if rest:
            group.sockets[1, 0].sendall(rest.pop())

    def script() -> object:
        channel = group.channels[0]
        channel.stand("step 3")
        group.look[0] = look
        return channel.hear_all(channel.say("weights"))

    with town(2) as group:
        found = group.run(lambda rank: None if rank else script())

    assert found[0][1].fields == late, found
    assert not group.said


def test_another_thread_than_the_scripts_compares_nothing() -> None:
    with town(2) as group:
        group.run(lambda rank: None if rank else group.channels[0].stand("step 0"))
        group.run(lambda rank: group.channels[1].say("step 1", late=False) if rank else None)
        group.channels[0].compare_places()  # as who is beside it does while it waits
        assert not group.said


def test_what_the_leader_says_of_something_else_is_no_answer() -> None:
    """Though nobody has heard yet that this rank is elsewhere."""
    with town(2) as group:
        group.channels[0].say("step 3", late=False)

        found = group.run(
            lambda rank: group.channels[1].relay("finish()", lambda _: Said()) if rank else None
        )

    assert isinstance(found[1], GroupBroken)
    assert "rank 0 is at step 3, and rank 1 on host1 at finish()" in str(found[1])


def test_what_is_said_for_later_is_heard_in_its_order_whatever_else_is_exchanged() -> None:
    def script(rank: int) -> list[list[int]]:
        channel = group.channels[rank]
        first, second = (channel.say(f"later {it}", {"n": 10 * rank + it}) for it in range(2))
        at_once = channel.share("now", {"n": 100 + rank})
        heard = [channel.hear_all(first), at_once, channel.hear_all(second)]
        return [[one.fields["n"] for one in every] for every in heard]

    with town(3) as group:
        found = group.run(script)

    assert found == [[[0, 10, 20], [100, 101, 102], [1, 11, 21]]] * 3


def test_what_is_said_for_later_is_heard_whichever_of_it_is_waited_for_first() -> None:
    """One of two tables may not be trained for a while, or never again."""

    def script(rank: int) -> list[list[int]]:
        channel = group.channels[rank]
        sayings = [channel.say(f"later {it}", {"n": 10 * rank + it}) for it in range(4)]
        heard = [channel.hear_all(sayings[it]) for it in (2, 0, 1)]
        return [[one.fields["n"] for one in every] for every in heard]

    with town(2) as group:
        found = group.run(script)

    assert found == [[[2, 12], [0, 10], [1, 11]]] * 2


def test_tensors_cross_each_other_and_arrive_in_the_order_in_which_they_are_sent() -> None:
    def script(rank: int) -> list[torch.Tensor]:
        others = [it for it in range(3) if it != rank]
        sends = [(to, torch.full((5,), 10.0 * rank + part)) for part in range(2) for to in others]
        parts = [torch.zeros(5) for _ in range(4)]
        group.channels[rank].swap(sends, [(others[it // 2], part) for it, part in enumerate(parts)])
        return parts

    with town(3) as group:
        found = group.run(script)

    for rank, parts in enumerate(found):
        wanted = [10.0 * other + part for other in range(3) if other != rank for part in range(2)]
        assert [float(it[0]) for it in parts] == wanted


def test_what_has_been_sent_and_received_is_not_kept() -> None:
    """Of tied weights it is as large as an embedding, and the next exchange of tensors may be far off."""

    def script(rank: int) -> weakref.ref[object]:
        memory = [np.zeros(4, dtype=np.float32) for _ in range(2)]
        mine, theirs = map(torch.from_numpy, memory)
        group.channels[rank].swap([(1 - rank, mine)], [(1 - rank, theirs)])
        return weakref.ref(memory[1])

    with town(2) as group:
        assert [it() for it in group.run(script)] == [None, None]


def test_who_waits_for_something_else_hears_of_the_end_of_the_group_once() -> None:
    abort, heard = Abort(), []
    abort.when_set(heard.append)

    error = abort.set("rank 1 has gone")
    abort.set("rank 2 has gone")
    abort.when_set(heard.append)

    assert heard == [error, error]


def test_what_is_said_ahead_is_there_when_all_have_said_it_and_is_heard_before_anything_else() -> None:
    def script(rank: int) -> list[Any]:
        channel = group.channels[rank]
        if rank == 2:
            slow.wait(LIMIT_S)
        sayings = [channel.say(f"bucket {it}", {"n": 10 * rank + it}, late=False) for it in range(2)]
        if rank < 2:
            both.wait(LIMIT_S)
        early = rank == 0 and channel.all_have_said()
        if rank == 0:
            slow.set()
        until(channel.all_have_said)
        heard = [[one.fields["n"] for one in channel.hear_all(saying)] for saying in sayings]
        return [early, heard, [one.fields["n"] for one in channel.share("then", {"n": rank})]]

    slow, both = threading.Event(), threading.Barrier(2)
    with town(3) as group:
        found = group.run(script)

    assert found == [[False, [[0, 10, 20], [1, 11, 21]], [0, 1, 2]]] * 3


@pytest.mark.parametrize("other", [0, 1])
def test_a_rank_that_goes_on_without_having_said_what_others_have_is_named(other: int) -> None:
    def script(rank: int) -> object:
        channel = group.channels[rank]
        if rank == other:
            return channel.relay("the end", lambda _: Said())
        return channel.hear_all(channel.say("bucket 0", late=False))

    with town(2) as group:
        found = group.run(script)

    assert all(isinstance(error, GroupBroken) for error in found)
    assert any("bucket 0" in error.message for error in found)
    assert any("the end" in error.message for error in found)
