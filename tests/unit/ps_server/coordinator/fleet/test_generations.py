"""Generations only grow, over processes too, and tell an older coordinator that it is one."""

from __future__ import annotations

import errno
import fcntl
import os
import socket

import pytest

from ps_server.coordinator.fleet.generations import KEPT, Generations, Hold
from ps_server.coordinator.recovery import floor_of
from ps_wire.errors import ConfigurationRefused, Fenced
from ps_wire.frames.frame import MAX_GENERATION


def test_generations_grow_over_restarts(tmp_path):
    """Each number is a file that only one process can create."""
    folder = tmp_path / "state"
    first = Generations(folder)
    taken = [first.own, first.next(), first.next()]
    second = Generations(folder)
    assert [*taken, second.own, second.next()] == [1, 2, 3, 4, 5]


def test_of_two_coordinators_on_one_directory_the_older_is_fenced(tmp_path):
    """It learns it when it looks, and when it takes a number; the newer one goes on."""
    older, newer = Generations(tmp_path), Generations(tmp_path)
    with pytest.raises(Fenced, match="another shard 0"):
        older.check()
    with pytest.raises(Fenced):
        older.next()
    newer.check()
    assert newer.next() > newer.own > older.own


def test_a_number_outlives_a_loss_of_power(tmp_path, monkeypatch):
    """The file, its folder and the folder's own name are synced before the number is used."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda it: synced.append(os.fstat(it).st_ino))
    generations = Generations(tmp_path / "state")
    for number in (1, 2):
        file = tmp_path / "state" / f"generation-{number}"
        assert [it.stat().st_ino for it in (file, file.parent, tmp_path)] == synced
        synced.clear()
        generations.next()


def test_a_folder_above_that_may_not_be_opened_fails_no_start(tmp_path, monkeypatch):
    """As /var/lib of another user: it can be passed through, and what is in it was made by somebody else."""
    opened = os.open

    def guarded(path, *rest):
        if path == tmp_path:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *rest)

    monkeypatch.setattr(os, "open", guarded)
    assert Generations(tmp_path / "state").own == 1


def test_of_two_that_take_a_number_at_once_one_gets_it(tmp_path, monkeypatch):
    """Both have seen the same files: the number is who makes the file's, and the other takes the next."""
    older = Generations(tmp_path)
    numbers = Generations._numbers
    stale = iter([[], numbers(older)])
    monkeypatch.setattr(Generations, "_numbers", lambda _: next(stale))
    assert Generations(tmp_path).own == older.own + 1


def test_old_files_are_removed(tmp_path):
    """As many are kept as tell who is the newest."""
    generations = Generations(tmp_path)
    for _ in range(3 * KEPT):
        generations.next()
    assert len(list(tmp_path.iterdir())) <= KEPT + 1
    assert Generations(tmp_path).own == 3 * KEPT + 2


def test_numbers_go_on_past_16_bits_and_end_with_those_of_a_frame(tmp_path):
    """32 bits: where they end, the remedy is named, and no incarnation is outside of a frame's 64 bits."""
    (tmp_path / "generation-65535").write_text("65535")
    generations = Generations(tmp_path)
    assert [generations.own, generations.next()] == [65_536, 65_537]
    (tmp_path / f"generation-{MAX_GENERATION - 1}").write_text(str(generations.own))
    last = generations.next()
    assert last == MAX_GENERATION
    assert floor_of(last - 1) + MAX_GENERATION < floor_of(last) <= floor_of(last) + MAX_GENERATION < 1 << 64
    with pytest.raises(ConfigurationRefused, match="empty it once all servers are stopped"):
        generations.next()


def test_without_a_directory_numbers_do_not_last():
    generations = Generations(None)
    assert [generations.own, generations.next()] == [1, 2]
    assert not generations.lasting
    generations.check()


def test_a_directory_that_cannot_be_written_is_refused(tmp_path):
    """With the option's name."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationRefused, match="--state-dir"):
        Generations(tmp_path / "file")


def test_a_directory_is_held_by_one_at_a_time_and_the_second_is_told_by_whom(tmp_path):
    """As long as the first one has it, or lives; the next one takes the name of the one before off."""
    first = Hold(tmp_path / "state")
    with pytest.raises(Fenced, match=f"host {socket.gethostname()}, pid {os.getpid()}"):
        Hold(tmp_path / "state")
    first.let_go()
    first.let_go()
    Hold(tmp_path / "state").let_go()
    assert (tmp_path / "state" / "holder").read_text().count("host") == 1


def test_on_a_file_system_without_locks_the_numbers_alone_decide(tmp_path, monkeypatch):
    def without(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", without)
    Hold(tmp_path)
    Hold(tmp_path)


def test_a_directory_that_cannot_be_written_is_not_held(tmp_path):
    (tmp_path / "state").write_text("a file")
    with pytest.raises(ConfigurationRefused, match="--state-dir"):
        Hold(tmp_path / "state")
