"""Faults of the pure core under a partition: when pulls are answered, and what becomes of each push."""

from .mutant import Mutant

GATE = "ps_server/agreement/gate.py"
PARTITION = "ps_server/shard/partition/machine.py"
CLOCKS = "ps_server/shard/partition/clock_counts.py"
OF_CLOCKS = ("tests/unit/ps_server/shard/partition/test_clock_counts.py",)
LAWS = "tests/unit/ps_server/shard/partition/test_laws.py"
ONE = "tests/unit/ps_server/shard/partition/test_machine.py"
EVICTION = "tests/unit/ps_server/shard/table/test_eviction.py"

MUTANTS = (
    Mutant(
        name="clocks: the smallest stays when the slowest goes on",
        file=CLOCKS,
        text="            self.smallest = after  # no clock lies between\n",
        fault="            pass\n",
        tests=OF_CLOCKS,
    ),
    Mutant(
        name="clocks: the smallest goes on when one of the slowest does",
        file=CLOCKS,
        text="        if self._pop(clock) and clock == self.smallest:\n            self.smallest = after",
        fault="        self._pop(clock)\n        if clock == self.smallest:\n            self.smallest = after",
        tests=OF_CLOCKS,
    ),
    Mutant(
        name="clocks: a member that comes again is counted twice",
        file=PARTITION,
        text="            self._forget(worker, before)\n",
        fault="            pass\n",
        tests=OF_CLOCKS,
    ),
    Mutant(
        name="clocks: a fenced member is counted at each fence",
        file=PARTITION,
        text="        self._num_fenced += not known.fenced\n",
        fault="        self._num_fenced += 1\n",
        tests=OF_CLOCKS,
    ),
    Mutant(
        name="gate: the gap may be one larger than the staleness",
        file=GATE,
        text="return slowest + self.staleness\n",
        fault="return slowest + self.staleness + 1\n",
        tests=("tests/unit/ps_server/agreement/test_gate.py",),
    ),
    Mutant(
        name="gate: a pull waits for the fastest member",
        file=CLOCKS,
        text="        if self.smallest is None or clock < self.smallest:\n            self.smallest = clock\n",
        fault="        if self.smallest is None or clock > self.smallest:\n            self.smallest = clock\n",
        tests=OF_CLOCKS,
    ),
    Mutant(
        name="gate: bsp answers with the version before",
        file=GATE,
        text="            return version\n",
        fault="            return version + 1\n",
        tests=("tests/faults/test_retries.py::test_law_13_resets_while_pushes_are_under_way",),
    ),
    Mutant(
        name="gate: the delay of asp is taken for the bound of ssp",
        file=GATE,
        text="return Gate(aggregates=consistency.aggregates, staleness=None, max_delay=max_delay)",
        fault="return Gate(aggregates=consistency.aggregates, staleness=max_delay)",
        tests=("tests/unit/ps_server/agreement/test_gate.py", ONE),
    ),
    Mutant(
        name="partition: a push that comes again is taken again",
        file=PARTITION,
        text="if contribution.step < member.clock:\n            ledger.duplicates += 1",
        fault="if contribution.step < member.clock - 1:\n            ledger.duplicates += 1",
        tests=(f"{LAWS}::test_law_13_retries_are_exactly_once",),
    ),
    Mutant(
        name="partition: a push that comes again is not acknowledged",
        file=PARTITION,
        text="            return [Ack(worker=contribution.worker, step=contribution.step)]\n",
        fault="            return []\n",
        tests=(f"{ONE}::test_r3_a_step_before_the_clock_is_acknowledged_again",),
    ),
    Mutant(
        name="partition: bsp takes a push of a step whose version is not there (R1)",
        file=PARTITION,
        text="if self.gate.aggregates and contribution.step > self.version:",
        fault="if self.gate.aggregates and contribution.step > self.version + 1:",
        tests=(f"{ONE}::test_bsp_takes_no_push_of_a_step_whose_version_is_not_there",),
    ),
    Mutant(
        name="partition: a push beyond the clock is taken",
        file=PARTITION,
        text="        if contribution.step > clock:\n",
        fault="        if contribution.step > clock + 1:\n",
        tests=(f"{ONE}::test_r3_a_step_beyond_the_clock_is_refused_with_the_clock",),
    ),
    Mutant(
        name="partition: what is staged comes in order of arrival",
        file=PARTITION,
        text="return tuple(self._staged[worker] for worker in sorted(self._staged))",
        fault="return tuple(self._staged[worker] for worker in self._staged)",
        tests=(f"{LAWS}::test_law_3_bsp_does_not_depend_on_arrival_order",),
    ),
    Mutant(
        name="partition: pushes are counted, not workers",
        file=PARTITION,
        text="return self._slowest > self.version and not self._num_fenced\n",
        fault="return len(self._staged) + 1 >= len(self._members)\n",
        tests=(f"{ONE}::test_bsp_applies_once_when_the_last_member_has_pushed", EVICTION),
    ),
    Mutant(
        name="partition: a step closes over a member that is being evicted",
        file=PARTITION,
        text="self._slowest > self.version and not self._num_fenced\n",
        fault="self._slowest > self.version\n",
        tests=(f"{EVICTION}::test_a_fenced_member_is_refused_and_no_step_closes_until_the_verdict",),
    ),
    Mutant(
        name="partition: a step that nobody has pushed closes when all have left",
        file=PARTITION,
        text="            return bool(self._staged)\n",
        fault="            return True\n",
        tests=(f"{ONE}::test_the_last_leave_closes_what_is_staged_and_no_more",),
    ),
    Mutant(
        name="partition: an evicted worker's push of an open step is applied",
        file=PARTITION,
        text="if staged is not None and staged.step >= limit:",
        fault="if staged is not None and staged.step > limit:",
        tests=(f"{EVICTION}::test_what_is_not_everywhere_is_dropped_and_counted",),
    ),
    Mutant(
        name="partition: a fenced worker may go on",
        file=PARTITION,
        text="if member.incarnation != incarnation or member.fenced:",
        fault="if member.incarnation != incarnation:",
        tests=(EVICTION,),
    ),
    Mutant(
        name="partition: a later incarnation's pushes are taken from the one before",
        file=PARTITION,
        text="if member.incarnation != incarnation or member.fenced:",
        fault="if member.incarnation < incarnation or member.fenced:",
        tests=(f"{ONE}::test_another_incarnation_is_refused",),
    ),
    Mutant(
        name="partition: what a worker asked for before it left is sent",
        file=PARTITION,
        text="        self._num_fenced -= member.fenced\n        self._waiting.discard(worker)\n",
        fault="        self._num_fenced -= member.fenced\n",
        tests=(f"{ONE}::test_what_a_worker_asked_for_before_it_left_is_not_sent",),
    ),
    Mutant(
        name="partition: a leave does not open the gate",
        file=PARTITION,
        text="        self._exit(worker)\n        return self._settle(now_s)",
        fault="        self._exit(worker)\n        return []",
        tests=(ONE,),
    ),
    Mutant(
        name="partition: an abstention is counted as applied",
        file=PARTITION,
        text="            elif contribution.abstains:\n                ledger.abstained += 1",
        fault="            elif contribution.abstains:\n                ledger.applied += 1",
        tests=(f"{LAWS}::test_law_12_every_push_is_accounted_for",),
    ),
    Mutant(
        name="partition: a step from which all abstain keeps its version",
        file=PARTITION,
        text="        self._staged.clear()\n        self.version += 1\n        actions: list[Action] = []",
        fault=(
            "        self._staged.clear()\n        self.version += bool(applied)\n"
            "        actions: list[Action] = []"
        ),
        tests=(f"{ONE}::test_bsp_closes_a_step_from_which_all_abstain",),
    ),
    Mutant(
        name="partition: asp acknowledges before it has applied",
        file=PARTITION,
        text="return [*applied, acknowledged, *self._settle(now_s)]",
        fault="return [acknowledged, *applied, *self._settle(now_s)]",
        tests=(f"{ONE}::test_ssp_applies_on_arrival_and_acknowledges_after_that",),
    ),
    Mutant(
        name="partition: a push as stale as the delay allows is dropped",
        file=PARTITION,
        text="self.version - contribution.version > limit\n",
        fault="self.version - contribution.version >= limit\n",
        tests=(f"{ONE}::test_asp_drops_what_is_staler_than_its_delay",),
    ),
    Mutant(
        name="partition: a dropped push of asp does not advance the version's staleness but the version",
        file=PARTITION,
        text="            ledger.dropped += 1\n            return []\n        ledger.applied += 1",
        fault="            ledger.dropped += 1\n            self.version += 1\n            return []\n"
        "        ledger.applied += 1",
        tests=(ONE,),
    ),
    Mutant(
        name="partition: staleness is recorded after the version has grown",
        file=PARTITION,
        text=(
            "        ledger.applied += 1\n        self._record_tau(contribution)\n        self.version += 1\n"
        ),
        fault=(
            "        ledger.applied += 1\n        self.version += 1\n        self._record_tau(contribution)\n"
        ),
        tests=(f"{ONE}::test_tau_is_the_updates_between_reading_and_applying",),
    ),
    Mutant(
        name="partition: the largest gap is that of the last push",
        file=PARTITION,
        text="ledger.max_gap = max(ledger.max_gap, gap)",
        fault="ledger.max_gap = gap",
        tests=(ONE,),
    ),
    Mutant(
        name="partition: the newest clock goes with its worker",
        file=PARTITION,
        text="        self.newest_clock = max(self.newest_clock, member.clock)\n        gap =",
        fault="        self.newest_clock = member.clock\n        gap =",
        tests=(ONE,),
    ),
    Mutant(
        name="partition: a newcomer enters bsp at a step that is about to close",
        file=PARTITION,
        text="return max(self.version + (min(clocks) > self.version), taken)",
        fault="return max(self.version, taken)",
        tests=(f"{EVICTION}::test_a_newcomer_enters_behind_a_step_that_waits_for_its_decision",),
    ),
    Mutant(
        name="partition: a newcomer enters a step that its earlier incarnation has staged",
        file=PARTITION,
        text="in self._staged else 0\n        return max(self.version + (min",
        fault="in () else 0\n        return max(self.version + (min",
        tests=(f"{EVICTION}::test_a_newcomer_is_never_named_a_step_that_its_earlier_incarnation_has_staged",),
    ),
    Mutant(
        name="partition: a newcomer enters ssp at the fastest worker's clock",
        file=PARTITION,
        text="        if not self.gate.aggregates:\n            return min(clocks)",
        fault="        if not self.gate.aggregates:\n            return max(clocks)",
        tests=(EVICTION,),
    ),
    Mutant(
        name="partition: a pull at a clock of long ago is answered",
        file=PARTITION,
        text="        return clock == member.clock\n",
        fault="        return clock <= member.clock\n",
        tests=(f"{ONE}::test_a_pull_at_another_clock_is_refused",),
    ),
    Mutant(
        name="partition: a push of a mixed step is not counted",
        file=PARTITION,
        text="elif known.clock > limit and not self.gate.backup:",
        fault="elif known.clock > limit + 1 and not self.gate.backup:",
        tests=(EVICTION,),
    ),
    Mutant(
        name="partition: a decision applies all that is staged",
        file=PARTITION,
        text="            if contribution.worker not in workers:\n",
        fault="            if contribution.worker not in self._staged:\n",
        tests=("tests/unit/ps_server/coordinator/fleet/test_decide.py",),
    ),
    Mutant(
        name="partition: a withheld push is dropped where it stands",
        file=PARTITION,
        text="self._staged[worker] = replace(self._staged[worker], payload=None)",
        fault="del self._staged[worker]",
        tests=(
            "tests/unit/ps_server/coordinator/fleet/test_decide.py",
            "tests/unit/ps_server/shard/partition/test_nonfinite.py",
        ),
    ),
)
