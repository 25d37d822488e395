"""The pure laws of docs/consistency.md, on real machines in seeded random interleavings of honest workers."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ps_server.agreement.gate import gate_of
from ps_server.shard.partition.machine import Apply, Contribution, Pull, StepMachine
from ps_wire.spec.consistency import ASP, BSP, SSP
from tests.search.simulator import At, Job, Link, World, check_books, check_gaps, run

SEEDS = st.integers(0, 2**32 - 1)
SSPS = st.builds(SSP, st.integers(0, 3))
MODELS = st.just(BSP()) | SSPS | st.just(ASP())


@st.composite
def jobs(draw, models=MODELS, max_faults=0, late=False):
    """Jobs of 2 to 4 workers with unequal batches, over 1 to 3 partitions; `late`: BSP drops some pushes."""
    consistency = draw(models)
    batches = tuple(draw(st.lists(st.integers(0, 9), min_size=2, max_size=4)))
    update = st.tuples(st.integers(0, len(batches) - 1), st.integers(0, 8))
    late = late and consistency == BSP()
    return Job(
        consistency=consistency,
        batches=batches,
        num_partitions=draw(st.integers(1, 3)),
        abstains=draw(st.frozensets(update, max_size=4)),
        drops=draw(st.frozensets(update, max_size=4)) if late else frozenset(),
        withheld=draw(st.frozensets(update, max_size=4)),
        coordinated=late,
        faults=draw(st.integers(0, max_faults)),
    )


def mean_in_order(apply: Apply, num_workers: int) -> bytes:
    """The bytes of a float32 mean, summed in the order of the contributions."""
    total = np.zeros(8, np.float32)
    for worker, step in (item.payload for item in apply.contributions):
        total += np.random.default_rng([worker, step]).standard_normal(8, np.float32)
    return (total / np.float32(len(apply.contributions))).tobytes()


@given(jobs(st.just(BSP()), max_faults=10), SEEDS, SEEDS)
def test_law_3_bsp_does_not_depend_on_arrival_order(job, seed, other_seed):
    """Whatever order pushes arrive in, BSP averages the same contributions in rank order: same bytes."""
    runs = [run(World.start(job), number) for number in (seed, other_seed)]
    means = [
        {(number, apply.step): mean_in_order(apply, len(job.batches)) for number, apply in world.applies}
        for world in runs
    ]
    assert means[0] == means[1]
    for number, apply in runs[0].applies:
        expected = sorted(update for update in job.updates if update[1] == apply.step)
        assert [item.payload for item in apply.contributions] == expected
        assert 0 <= number < job.num_partitions
    assert runs[0].weights == runs[1].weights


@given(jobs(max_faults=6), SEEDS)
def test_law_4_a_reader_misses_no_update_that_is_due(job, seed):
    """A reader at clock c sees every update with timestamp <= c-s-1, and in BSP no other."""
    staleness = job.gate.staleness
    for read in run(World.start(job), seed).reads:
        assert read.seen <= job.updates
        if staleness is None:
            continue
        due = {update for update in job.updates if update[1] <= read.clock - staleness - 1}
        assert due <= read.seen
        if job.gate.aggregates:
            assert (read.version, read.seen) == (read.clock, due)


@given(jobs(max_faults=6), SEEDS)
def test_law_5_the_clock_gap_is_bounded(job, seed):
    """At every transition the gap is at most s while computing, and at most s + 1 when committed."""
    world = run(World.start(job), seed, after=check_gaps)
    if (staleness := job.gate.staleness) is not None:
        for partition in world.partitions:
            assert all(ledger.max_gap <= staleness + 1 for ledger in partition.ledgers.values())


def advance(world, workers, until):
    """Lets only these workers go on."""
    while not until():
        world.step(next(event for event in world.events() if event[1] in workers))


@given(st.integers(0, 3), st.integers(2, 4))
def test_law_5_the_bounds_are_reached(staleness, num_workers):
    """A fast worker computes s steps ahead, and waits when s + 1 are committed."""
    world = World.start(Job(consistency=SSP(staleness), batches=(9,) * num_workers))
    advance(world, [0], lambda: world.links[0, 0] == Link(at=At.WAITING, step=staleness + 1))
    assert [read.clock for read in world.reads] == list(range(staleness + 1))
    assert world.partitions[0].ledgers[0].max_gap == staleness + 1


@given(jobs(SSPS, max_faults=6), SEEDS)
def test_law_6_ssp_bounds_the_version_staleness(job, seed):
    """In SSP tau <= (2s+1)(N-1), and the histogram holds exactly the tau of each applied push."""
    world = run(World.start(job), seed)
    taus = [Counter() for _ in world.partitions]
    for number, apply in world.applies:
        (contribution,) = apply.contributions
        taus[number][apply.version - 1 - contribution.version] += 1
    assert taus == [partition.tau for partition in world.partitions]
    bound = (2 * job.gate.staleness + 1) * (len(job.batches) - 1)
    assert all(0 <= tau <= bound for histogram in taus for tau in histogram)


@given(st.integers(0, 3), st.integers(2, 4))
def test_law_6_the_bound_is_reached(staleness, num_workers):
    """One worker reads at clock s, the others go as far as they can: its push has tau (2s+1)(N-1)."""
    world = World.start(Job(consistency=SSP(staleness), batches=(9,) * num_workers))
    others = range(1, num_workers)
    slow = Link(at=At.PUSHING, step=staleness, version=staleness)
    advance(world, [0], lambda: world.links[0, 0] == slow)
    advance(world, others, lambda: all(world.links[worker, 0].at is At.WAITING for worker in others))
    world.step(("push", 0, 0))
    assert max(world.partitions[0].tau) == (2 * staleness + 1) * (num_workers - 1)


@given(jobs(st.just(ASP()), max_faults=6), SEEDS)
def test_law_7_without_a_bound_nobody_waits(job, seed):
    """With s = inf every pull is answered at once: the time blocked at the gate is exactly 0."""

    def nobody_waits(world):
        for partition in world.partitions:
            assert partition.waiting == ()
            assert all(ledger.gate_wait_s == 0 for ledger in partition.ledgers.values())

    assert run(World.start(job), seed, after=nobody_waits).done


def test_law_7_no_lead_is_too_long():
    """With s = inf a worker ends 1000 steps before another has begun, and never waits."""
    world = World.start(Job(consistency=ASP(), batches=(1000, 1)))
    advance(world, [0], lambda: world.links[0, 0].at is At.GONE)
    assert world.links[1, 0] == Link(at=At.PULLING, step=0)
    assert world.partitions[0].ledgers[0].gate_wait_s == 0


@given(jobs(max_faults=6, late=True), SEEDS)
def test_law_8_a_worker_reads_its_own_writes(job, seed):
    """What a worker pushed before it pulls is in the answer, and the versions it gets never go back."""
    newest = Counter()
    for read in run(World.start(job), seed).reads:
        own = {(read.worker, step) for step in range(read.clock)}
        assert own & job.updates <= read.seen
        assert read.version >= newest[read.worker, read.partition]
        newest[read.worker, read.partition] = read.version


@given(st.integers(1, 4), st.integers(1, 2), st.lists(st.integers(0, 7), max_size=60))
def test_law_10_asp_conserves_version_staleness(num_workers, num_partitions, schedule):
    """If push and pull are one request, tau applied + tau in flight = (N-1) * T, whatever the speeds."""
    partitions = [StepMachine(gate_of(ASP())) for _ in range(num_partitions)]
    version_read = {}
    for number, partition in enumerate(partitions):
        for worker in range(num_workers):
            partition.join(worker, 1, 0, 0.0)
            version_read[worker, number] = 0
    for turn in schedule:
        worker, number = turn % num_workers, turn // 4 % num_partitions
        partition = partitions[number]
        clock = dict(partition.clocks)[worker]
        version = version_read[worker, number]
        partition.push(
            Contribution(worker=worker, incarnation=1, step=clock, version=version, payload="g"), 0.0
        )
        (answer,) = partition.pull(Pull(worker=worker, incarnation=1, clock=clock + 1))
        version_read[worker, number] = answer.version
        applied = sum(tau * count for tau, count in partition.tau.items())
        in_flight = sum(partition.version - version_read[other, number] for other in range(num_workers))
        assert applied + in_flight == (num_workers - 1) * partition.version
    assert sum(partition.version for partition in partitions) == len(schedule)


@given(jobs(max_faults=6, late=True), SEEDS)
def test_law_12_every_push_is_accounted_for(job, seed):
    """At every transition applied + dropped + abstained + staged = received; at the end none is staged."""
    world = run(World.start(job), seed, after=check_books)
    for partition in world.partitions:
        books = partition.ledgers.values()
        pushed = {(worker, step) for worker, steps in enumerate(job.batches) for step in range(steps)}
        abstained = len(pushed & (job.abstains | job.withheld) - job.drops)
        assert sum(ledger.received for ledger in books) == len(pushed)
        assert sum(ledger.dropped for ledger in books) == len(pushed & job.drops)
        assert sum(ledger.abstained for ledger in books) == abstained
        assert sum(ledger.applied for ledger in books) == len(job.updates)


@given(jobs(max_faults=40), SEEDS)
def test_law_13_retries_are_exactly_once(job, seed):
    """Lost acks, broken connections, duplicates and reordered frames: each update is applied exactly once."""
    world = run(World.start(job), seed)
    for number, weights in enumerate(world.weights):
        assert len(weights) == len(job.updates)
        assert set(weights) == job.updates
        for worker, ledger in world.partitions[number].ledgers.items():
            assert ledger.received == job.batches[worker] == world.received[worker, number]
            assert ledger.duplicates == world.copies[worker, number]


@given(jobs(), SEEDS)
def test_law_18_a_run_with_unequal_batches_ends(job, seed):
    """Workers with unequal numbers of batches leave one after the other, and all come to the end."""
    world = run(World.start(job), seed)
    assert world.done
    for partition, weights in zip(world.partitions, world.weights, strict=True):
        assert set(weights) == job.updates
        assert partition.version == (max(job.batches) if job.gate.aggregates else len(job.updates))
        assert partition.clocks == ()
