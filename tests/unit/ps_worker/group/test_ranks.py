"""Which rank a process is, as its launcher says, and what settings refuse of a group."""

from __future__ import annotations

import pytest

from ps_wire.errors import UsageError
from ps_wire.process.ranks import ALONE, Ranks, find
from ps_worker import settings

SERVED = {"PS_SERVERS": "127.0.0.1:50051", "PS_GROUP_SIZE": "2"}


def torchrun(rank: int, world: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}


@pytest.mark.parametrize(
    "environment",
    [
        torchrun(5, 6),
        {"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "5"},
    ],
)
def test_the_ranks_of_a_launcher_are_dealt_to_groups_in_order(environment: dict[str, str]) -> None:
    place = find(environment, 2, None)

    assert place.ranks == Ranks(rank=1, size=2, local_rank=5)
    assert (place.worker, place.num_workers) == (2, 3)


def test_a_group_with_a_number_of_its_own_is_all_that_its_launcher_starts() -> None:
    assert find(torchrun(1, 2), 2, 7).worker == 7
    with pytest.raises(UsageError, match="WORLD_SIZE says 4 processes"):
        find(torchrun(1, 4), 2, 7)


def test_our_own_launcher_comes_before_others() -> None:
    place = find({**torchrun(3, 4), "PS_GROUP_RANK": "0", "PS_LOCAL_RANK": "2"}, 2, 1)

    assert place.ranks == Ranks(rank=0, size=2, local_rank=2)
    assert place.worker == 1


@pytest.mark.parametrize(
    "environment", [torchrun(3, 4), {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "3"}]
)
def test_a_rank_whose_number_somebody_else_says_has_its_place_on_the_host_from_its_launcher(
    environment: dict[str, str],
) -> None:
    by_script = find(environment, 2, 1, rank=1)
    by_hand = find({**environment, "PS_GROUP_RANK": "1"}, 2, 1)

    assert by_script.ranks == by_hand.ranks == Ranks(rank=1, size=2, local_rank=3)


def test_without_a_group_no_launcher_is_asked() -> None:
    made = settings.read({"PS_SERVERS": "127.0.0.1:50051", "RANK": "x", "WORLD_SIZE": "y"})

    assert made.ranks == ALONE
    assert made.num_workers == 1


def test_a_group_without_servers_is_worker_0() -> None:
    made = settings.read({"PS_SERVERS": "none", **torchrun(1, 2), "PS_GROUP_SIZE": "2"})

    assert (made.servers, made.worker, made.num_workers, made.ranks.rank) == ((), 0, 1, 1)


def test_groups_are_counted_where_nobody_says_how_many_workers_there_are() -> None:
    made = settings.read({**SERVED, **torchrun(3, 6)})

    assert (made.worker, made.num_workers, made.ranks.rank) == (1, 3, 1)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({**SERVED, **torchrun(0, 5)}, "groups of 2"),
        (SERVED, "nothing says which rank"),
        ({**SERVED, "RANK": "one", "WORLD_SIZE": "2"}, "RANK must be a whole number"),
        ({**SERVED, **torchrun(0, 2), "PS_GROUP_SIZE": "0"}, "group_size"),
        ({**SERVED, **torchrun(0, 2000), "PS_GROUP_SIZE": "2000"}, "1 to 1024"),
        ({**SERVED, "PS_GROUP_RANK": "2", "PS_WORKER": "0"}, "rank 2 of a group of 2"),
        ({**SERVED, "PS_GROUP_RANK": "0"}, "worker .PS_WORKER. is None"),
        ({**SERVED, **torchrun(2, 4), "PS_NUM_WORKERS": "1"}, "from 0 to 0"),
        ({**SERVED, **torchrun(0, 4), "PS_SERVERS": "none"}, "num_workers .* is 2, which needs servers"),
        ({**SERVED, **torchrun(0, 2), "PS_GROUP_REDUCE": "magic"}, "group_reduce"),
        ({**SERVED, **torchrun(0, 4), "PS_CONSISTENCY": "bsp:backup=1"}, "no backup"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_variable(environment: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        settings.read(environment)


@pytest.mark.parametrize("switch", ["", "0", "1", "true"])
def test_with_certificates_ranks_are_on_one_host_unless_a_person_permits_what_is_not_encrypted(
    switch: str,
) -> None:
    given = {**SERVED, **torchrun(0, 2), "PS_INSECURE_GROUP": switch}

    assert settings.read(given).one_host == ""
    said = settings.read({**given, "PS_TLS_DIR": "/certificates"}).one_host
    assert ("--insecure-group" in said) == (switch in ("", "0"))


def test_a_reader_is_in_no_group() -> None:
    assert settings.read({**SERVED, "PS_ROLE": "reader"}).ranks == ALONE


STAGED = {"PS_SERVERS": "127.0.0.1:50051", "PS_PIPELINE_STAGES": "3"}


def test_a_stage_that_a_person_starts_is_the_rank_of_its_number() -> None:
    made = settings.read({**STAGED, "PS_WORKER": "1", "PS_NUM_WORKERS": "2", "PS_STAGE": "2"})

    assert made.pipeline
    assert (made.worker, made.ranks) == (1, Ranks(rank=2, size=3))


def test_the_stages_of_a_launcher_are_dealt_to_workers_in_order() -> None:
    made = settings.read({**STAGED, **torchrun(5, 6)})

    assert made.pipeline
    assert (made.worker, made.num_workers, made.ranks.rank) == (1, 2, 2)
    assert not settings.read({**SERVED, **torchrun(3, 6)}).pipeline


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"PS_STAGE": "3", "PS_WORKER": "0"}, "3 stages are numbered from 0 to 2"),
        ({"PS_STAGE": "1"}, "does not say of which worker"),
        ({"PS_GROUP_SIZE": "2", **torchrun(0, 6)}, "leave group_size out"),
        ({"PS_SERVERS": "none", "PS_STAGE": "0", "PS_WORKER": "0"}, "servers is not set"),
    ],
)
def test_what_does_not_fit_a_pipeline_is_refused(environment: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        settings.read({**STAGED, **environment})
