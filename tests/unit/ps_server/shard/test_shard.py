"""All jobs of one shard: their memory against the limit, tokens, members, tables."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
import torch

from ps_server.rpc.complaints import MAX_LINES
from ps_server.shard.connection_tokens import MAX_TOKENS, TOKEN_BYTES
from ps_server.shard.memory_budget import CELL_BYTES, PARAMETER_BYTES
from ps_server.shard.shard import MAX_PARTITIONS
from ps_server.shard.table.kept_hyperparameters import KEPT_HYPERPARAMETERS, set_bytes
from ps_wire.errors import (
    ConfigurationRefused,
    JobUnknown,
    MemoryLimitExceeded,
    OptimizerUnsupported,
    StrangerRefused,
)
from ps_wire.frames import frame as wire
from ps_wire.frames.frame import FIRST_READER, Kind
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import BucketOptions
from tests.unit.ps_server.shard.admitted import admit, shard_with
from tests.unit.ps_server.tables import Kept, group, table_spec

ADAM = group(lr=0.1)


def spec_of(numel=5000, optimizer="Adam", number=0, **hyper):
    return table_spec(optimizer, group(lr=0.1, **hyper), shapes=((numel,),), number=number)


def beside(spec, plan, num_workers):
    """Beside slices: partitions, parameters with their names, the hyper-parameters that workers send."""
    hyper = spec.optimizer.hyperparameters
    names = sum(len(parameter.name) for parameter in spec.parameters)
    sets = 1 + KEPT_HYPERPARAMETERS * (num_workers + 1)
    parameters = PARAMETER_BYTES * len(spec.parameters) + names
    return CELL_BYTES * plan.count_of_shard(0) + parameters + sets * set_bytes(hyper)


def need_of(spec, staged=2, num_workers=2):
    """With Adam, on the only shard; gradients of two workers wait for their step under bsp."""
    plan = Plan(spec, 1)
    return plan.slice_bytes(0) * (1 + 2 + staged) + beside(spec, plan, num_workers)


class Connection:
    """A `Retirable` that nobody retires."""

    def retire(self):
        raise AssertionError


def test_a_worker_has_one_live_connection():
    """The one before is handed out to be retired, unless it is gone; workers do not share."""
    shard = shard_with()
    first, second, third, other = (Connection() for _ in range(4))
    assert shard.replace_session("j", 0, 1, first) is None
    assert shard.replace_session("j", 1, 1, other) is None
    assert shard.replace_session("j", 0, 1, second) is first
    shard.forget("j", 0, first, Kept())
    assert shard.replace_session("j", 0, 1, third) is second
    shard.forget("j", 0, third, Kept())
    assert shard.replace_session("j", 0, 1, first) is None


def test_a_connection_in_place_of_another_is_a_retry(caplog):
    """Of one incarnation: the first connection of the next one is not."""
    shard = shard_with()
    with caplog.at_level("INFO", logger="ps_server"):
        shard.replace_session("j", 0, 1, Connection())
        shard.replace_session("j", 1, 1, Connection())
        shard.replace_session("j", 0, 1, Connection())
        admit(shard, 0, 2)
        shard.replace_session("j", 0, 2, Connection())
    (job,) = shard.jobs()
    assert job.events == {"retry": 1}
    assert caplog.messages == ["job j: event=retry worker=0 incarnation=1"]


class Retired(Connection):
    """One that somebody retires."""

    def __init__(self):
        self.retired = False

    def retire(self):
        self.retired = True


def test_connections_of_a_reader_that_goes_are_retired():
    """The coordinator says that it has, whether it has closed them or not; those of others stay."""
    shard, its, other = shard_with(), Retired(), Retired()
    for reader, connection in ((FIRST_READER, its), (FIRST_READER + 1, other)):
        admit(shard, reader, reader=True)
        shard.replace_session("j", reader, 1, connection)
    shard.members.remove(job="j", worker=FIRST_READER, incarnation=1)
    assert (its.retired, other.retired) == (True, False)
    with pytest.raises(StrangerRefused):
        shard.make_token("j", FIRST_READER, 1)


def test_connections_that_are_made_again_and_again_have_few_lines_and_are_counted(caplog):
    """Else one member fills the disk."""
    shard = shard_with()
    with caplog.at_level("INFO", logger="ps_server"):
        for _ in range(500):
            shard.replace_session("j", 0, 1, Connection())
        shard.replace_session("j", 1, 1, Connection())
        shard.replace_session("j", 1, 1, Connection())
    (job,) = shard.jobs()
    assert job.events == {"retry": 500}
    lines = ["job j: event=retry worker=0 incarnation=1"] * MAX_LINES
    assert caplog.messages == [*lines, "job j: event=retry worker=1 incarnation=1"]


def test_pushes_that_a_verdict_drops_are_an_event(caplog):
    shard = shard_with()
    shard.open_table("j", table_spec("SGD", ADAM, shapes=((16,),)))
    table, outlet = shard.table("j", 0), Kept()
    table.receive(wire.Frame(kind=Kind.LOAD, payload=bytes(4096)), outlet, member=True)
    shard.start_table("j", 0)
    push = wire.Frame(kind=Kind.PUSH, worker=1, incarnation=1, payload=bytes(4096))
    table.receive(push, outlet, member=True)
    with caplog.at_level("INFO", logger="ps_server"):
        for worker, limits in ((1, {0: 0}), (0, {0: 0})):  # the second one had pushed nothing
            shard.members.fence(job="j", worker=worker, incarnation=1)
            shard.members.evict(job="j", worker=worker, incarnation=1, limits=limits, membership_epoch=1)
    (job,) = shard.jobs()
    assert job.events == {"drop": 1}
    assert caplog.messages == ["job j: event=drop worker=1 incarnation=1 pushes=1"]


def held(shard):
    return {job.name: job.memory_bytes for job in shard.jobs()}


# -- memory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize(("optimizer", "hyper", "slots"), [("SGD", {}, 0), ("Adam", {"amsgrad": True}, 3)])
def test_a_table_takes_weights_state_and_a_slice_per_worker(num_shards, optimizer, hyper, slots):
    """To the byte, of this shard's slice."""
    shard = shard_with(num_shards=num_shards, num_workers=4)
    spec = spec_of(optimizer=optimizer, **hyper)
    shard.open_table("j", spec)
    plan = Plan(spec, num_shards)
    assert held(shard) == {"j": plan.slice_bytes(0) * (1 + slots + 4) + beside(spec, plan, 4)}


def test_a_table_of_many_small_parameters_with_long_names_takes_more_than_its_weights():
    """As large as a message may be: else one job's token would fill the memory with such tables."""
    spec = table_spec("SGD", ADAM, shapes=((1,),) * 1000)
    spec = replace(spec, parameters=tuple(replace(it, name=it.name * 100) for it in spec.parameters))
    shard = shard_with(1000 * PARAMETER_BYTES)
    with pytest.raises(MemoryLimitExceeded) as refused:
        shard.open_table("j", spec)
    assert refused.value.facts["needed"] == 3 * Plan(spec, 1).slice_bytes(0) + beside(spec, Plan(spec, 1), 2)


@pytest.mark.parametrize("consistency", ["asp", "ssp:3"])
def test_where_pushes_are_applied_as_they_come_no_slice_per_worker_is_counted(consistency):
    """None is kept: with 64 workers a table takes what it takes with one, and a refusal says so."""
    need = need_of(spec_of(), staged=0, num_workers=64)
    shard = shard_with(need, num_workers=64, consistency=consistency)
    shard.open_table("j", spec_of())
    assert held(shard) == {"j": need}
    with pytest.raises(MemoryLimitExceeded, match=r"\(weights and optimizer state\)"):
        shard.open_table("j", spec_of(number=1))


def test_a_table_that_fits_exactly_is_taken_and_one_byte_less_refuses_it():
    """The refusal names what is needed and what the job holds; nothing is allocated."""
    spec = spec_of()
    need = need_of(spec)
    shard_with(need).open_table("j", spec)
    shard = shard_with(need - 1)
    with pytest.raises(MemoryLimitExceeded) as refused:
        shard.open_table("j", spec)
    assert refused.value.facts == {"needed": need, "held": 0, "limit": need - 1}
    assert str(need) in refused.value.message
    assert held(shard) == {"j": 0}
    with pytest.raises(JobUnknown):
        shard.table("j", 0)


def test_jobs_and_tables_share_the_limit_and_a_dropped_job_frees_its_part(caplog):
    """The holders are named in the log; who is refused hears nothing of other jobs, not even what is free."""
    need = need_of(spec_of())
    shard = shard_with(2 * need + 100, jobs=("a", "b", "c"))
    shard.open_table("a", spec_of())
    shard.open_table("b", spec_of())
    for job, holds in (("c", 0), ("a", need)):
        caplog.clear()
        with pytest.raises(MemoryLimitExceeded, match=f"the job holds {holds},") as refused:
            shard.open_table(job, spec_of(number=1))
        assert refused.value.facts == {"needed": need, "held": holds, "limit": 2 * need + 100}
        assert f"(jobs hold: a {need}, b {need})" in caplog.text
        assert "b " + str(need) not in refused.value.message
    shard.drop("b")
    shard.open_table("c", spec_of())
    assert held(shard) == {"a": need, "c": need}
    shard.drop("b")


def test_a_plan_of_terabytes_is_refused_without_being_built():
    """By numbers alone, in no time."""
    shard = shard_with(1 << 30)
    with pytest.raises(MemoryLimitExceeded):
        shard.open_table("j", spec_of(numel=10**13))


def test_a_table_of_more_partitions_than_a_shard_opens_in_seconds_is_refused():
    """With the way out; its plan takes no time, however many there are."""
    numel = 1024 * (MAX_PARTITIONS + 1)
    small = BucketOptions(partition_bytes=4096)
    spec = table_spec("SGD", group(lr=0.1), shapes=((numel,),), buckets=small)
    shard = shard_with()
    with pytest.raises(ConfigurationRefused, match="larger partition_bytes"):
        shard.open_table("j", spec)
    assert held(shard) == {"j": 0}


def test_what_the_system_does_not_give_is_given_back(monkeypatch):
    """Without a limit: an error by name, and the job holds what it held."""
    shard = shard_with()

    def exhausted(**_):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("ps_server.shard.shard.ShardTable", exhausted)
    with pytest.raises(MemoryLimitExceeded, match="Cannot allocate memory"):
        shard.open_table("j", spec_of())
    assert held(shard) == {"j": 0}


def test_what_torch_does_not_give_is_given_back(monkeypatch):
    """Its allocator says it by a RuntimeError; another one is a bug, and holds nothing either."""
    shard = shard_with()

    def exhausted(**_):
        torch.empty(1 << 60)

    monkeypatch.setattr("ps_server.shard.shard.ShardTable", exhausted)
    with pytest.raises(MemoryLimitExceeded, match="does not give"):
        shard.open_table("j", spec_of())
    assert held(shard) == {"j": 0}

    def bug(**_):
        raise RuntimeError("sizes do not match")

    monkeypatch.setattr("ps_server.shard.shard.ShardTable", bug)
    with pytest.raises(RuntimeError, match="sizes do not match"):
        shard.open_table("j", spec_of())
    assert held(shard) == {"j": 0}


def test_an_optimizer_that_shards_cannot_run_takes_no_memory():
    """It is refused before."""
    shard = shard_with()
    with pytest.raises(OptimizerUnsupported):
        shard.open_table("j", spec_of(optimizer="LBFGS"))
    assert held(shard) == {"j": 0}


def test_a_table_of_a_job_that_is_not_here_is_refused():
    """Nobody has joined it on this shard."""
    with pytest.raises(JobUnknown, match="does not know job 'k'"):
        shard_with().open_table("k", spec_of())


# -- tokens --------------------------------------------------------------------------------------------


def test_a_token_is_good_once():
    """For its job, worker and incarnation."""
    shard = shard_with()
    token = shard.make_token("j", 0, 1)
    assert len(token) == TOKEN_BYTES
    shard.use_token("j", 0, 1, token)
    with pytest.raises(StrangerRefused, match="used up"):
        shard.use_token("j", 0, 1, token)


def test_unused_tokens_are_bounded():
    """The oldest are void; a worker that asks for ever fills no memory."""
    shard = shard_with()
    tokens = [shard.make_token("j", 0, 1) for _ in range(10 * MAX_TOKENS)]
    assert len(set(tokens)) == len(tokens)
    (job,) = shard.jobs()
    assert sum(map(len, job.tokens.by_rank.values())) == MAX_TOKENS
    with pytest.raises(StrangerRefused):
        shard.use_token("j", 0, 1, tokens[-MAX_TOKENS - 1])
    for token in tokens[-MAX_TOKENS:]:
        shard.use_token("j", 0, 1, token)


@pytest.mark.parametrize(
    ("job", "worker", "incarnation", "error"),
    [
        ("k", 0, 1, JobUnknown),
        ("j", 2, 1, StrangerRefused),
        ("j", 0, 0, StrangerRefused),
        ("j", 0, 2, StrangerRefused),
    ],
)
def test_only_who_has_joined_gets_a_token(job, worker, incarnation, error):
    """Or may use one."""
    shard = shard_with()
    with pytest.raises(error):
        shard.make_token(job, worker, incarnation)
    with pytest.raises(StrangerRefused):
        shard.use_token(job, worker, incarnation, shard.make_token("j", 0, 1))


def test_who_has_no_token_hears_the_same_of_every_job_and_worker():
    """Whether the job is here, and who is in it, is nobody's business who was given no token for it."""
    shard = shard_with()
    own = shard.make_token("j", 0, 1)
    said = set()
    for job, worker, incarnation in (("k", 0, 1), ("j", 1, 1), ("j", 2, 1), ("j", 0, 2)):
        for token in (own, bytes(TOKEN_BYTES), b"", own[:-1], own + b"x"):
            with pytest.raises(StrangerRefused) as refused:
                shard.use_token(job, worker, incarnation, token)
            assert refused.value.facts == {}
            said.add(refused.value.message.replace(f"worker {worker} of job {job}", ""))
    assert said == {": this token was not given to it"}


def test_who_was_given_a_token_hears_why_it_opens_nothing_any_more():
    """Its job went, or it was evicted, between two calls: it is told so, as by any other call."""
    shard = shard_with()
    token = shard.make_token("j", 0, 1)
    shard.drop("j")
    with pytest.raises(JobUnknown):
        shard.use_token("j", 0, 1, token)


def test_a_new_incarnation_voids_the_tokens_of_the_old():
    """Those of other workers stay good."""
    shard = shard_with()
    old, other = shard.make_token("j", 0, 1), shard.make_token("j", 1, 1)
    admit(shard, 0, 2)
    with pytest.raises(StrangerRefused):
        shard.use_token("j", 0, 1, old)
    shard.use_token("j", 1, 1, other)
    assert [key for job in shard.jobs() for key in job.tokens.by_rank if key[0] == 0] == []


# -- members -------------------------------------------------------------------------------------------


def test_who_is_a_member():
    """By its live incarnation, from admission to removal; a reader never is."""
    shard = shard_with(num_workers=3)
    admit(shard, 2, 2, num_workers=3, reader=False)
    assert [shard.is_member("j", 2, incarnation) for incarnation in (1, 2, 3)] == [False, True, False]
    assert shard.members.remove(job="j", worker=2, incarnation=1) == {}
    assert shard.is_member("j", 2, 2)
    shard.members.remove(job="j", worker=2, incarnation=2)
    assert not shard.is_member("j", 2, 2)
    admit(shard, 2, 3, num_workers=3, reader=True)
    assert not shard.is_member("j", 2, 3)
    assert not shard.is_member("k", 0, 1)
    shard.make_token("j", 2, 3)


def test_members_enter_tables_made_before_and_after_them_at_their_clocks():
    """And a removal tells the newest clock by table, of whoever reached it."""
    shard = shard_with(num_workers=1)
    shard.open_table("j", spec_of())
    admit(shard, 0, 2, clocks={0: 7, 1: 4}, num_workers=1)
    shard.open_table("j", spec_of(number=1))
    shard.open_table("j", spec_of(number=2))
    clocks = [
        {clock for cell in shard.table("j", n).cells() for clock in cell.machine.clocks} for n in range(3)
    ]
    assert clocks == [{(0, 7)}, {(0, 4)}, {(0, 0)}]
    assert shard.members.remove(job="j", worker=0, incarnation=2) == {0: 7, 1: 4, 2: 0}
    assert shard.members.remove(job="k", worker=0, incarnation=1) == {}  # it was let in elsewhere only


def test_a_forgotten_connection_of_a_dropped_job_is_no_matter():
    """Nor one of a job that has no table."""
    shard = shard_with()
    outlet = Kept()
    shard.forget("j", 0, Connection(), outlet)
    shard.forget("k", 0, Connection(), outlet)
    shard.open_table("j", spec_of(numel=10))
    shard.table("j", 0).receive(wire.Frame(kind=Kind.LOAD, payload=bytes(4096)), outlet, member=True)
    shard.start_table("j", 0)
    pull = wire.Frame(kind=Kind.PULL, incarnation=1, meta=struct.pack("<I", 0))
    shard.table("j", 0).receive(pull, outlet, member=True)
    assert [frame.kind for frame in outlet.take()] == [Kind.ACK, Kind.PULLED]
    shard.forget("j", 0, Connection(), outlet)


def test_refused_frames_are_counted():
    """Over all connections."""
    shard = shard_with()
    for _ in range(3):
        shard.count_refused()
    assert shard.refused_frames == 3
