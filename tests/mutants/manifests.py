"""Snapshots that somebody brings: fields, sizes, counts; how often a job goes back; what a cut has."""

from .mutant import Mutant

SECURITY = "tests/security/test_manifests.py"
LIES = f"{SECURITY}::test_a_manifest_that_lies_is_refused_by_the_name_of_the_field"
SNAPSHOTS = "tests/component/snapshots/test_snapshots.py"
FACTS = f"{SECURITY}::test_facts_of_a_piece_that_lie_are_named"

MUTANTS = (
    Mutant(
        name="a whole number of a peer has no range",
        file="ps_wire/snapshot/json_fields.py",
        text="or isinstance(value, bool) or not least <= value <= most:",
        fault="or isinstance(value, bool):",
        tests=(LIES,),
    ),
    Mutant(
        name="a number of a peer may be NaN",
        file="ps_wire/snapshot/json_fields.py",
        text="if not fits or not least <= value <= most or not math.isfinite(value):",
        fault="if not fits or value < least or value > most:",
        tests=(LIES,),
    ),
    Mutant(
        name="keys of a peer's object have no range",
        file="ps_wire/snapshot/json_fields.py",
        text="if str(number) != key or number > most:",
        fault="if str(number) != key:",
        tests=(LIES,),
    ),
    Mutant(
        name="as many workers as a manifest likes",
        file="ps_wire/snapshot/json_fields.py",
        text="        if len(value) > count:\n",
        fault="        if False:\n",
        tests=(LIES,),
    ),
    Mutant(
        name="a manifest with fields that nobody knows",
        file="ps_wire/snapshot/json_fields.py",
        text="            if name not in required and name not in optional:\n",
        fault="            if False:\n",
        tests=(LIES,),
    ),
    Mutant(
        name="a manifest that names no file of some of its shards",
        file="ps_wire/snapshot/manifest.py",
        text="    if not shards <= records.keys():\n",
        fault="    if False:\n",
        tests=(LIES, f"{SECURITY}::test_a_manifest_without_a_shards_file_is_refused"),
    ),
    Mutant(
        name="texts that protobuf cannot encode",
        file="ps_wire/snapshot/manifest.py",
        text="json.dumps(given.value, ensure_ascii=False).encode()",
        fault="json.dumps(given.value)",
        tests=(f"{SECURITY}::test_thousands_of_mutated_manifests_are_refused_or_are_manifests",),
    ),
    Mutant(
        name="a header of any size is read",
        file="ps_wire/snapshot/tensors.py",
        text="            if header_bytes > MAX_HEADER_BYTES:\n",
        fault="            if False:\n",
        tests=(f"{SECURITY}::test_a_header_that_is_too_long_is_refused_before_it_is_read",),
    ),
    Mutant(
        name="a table is opened before all of it is found",
        file="ps_server/shard/state/snapshot_reader.py",
        text="                readers[spec.number].check(Plan(spec, self._num_shards), self._shard)\n",
        fault="                pass\n",
        tests=(f"{SECURITY}::test_a_table_takes_no_memory_before_all_of_it_is_found",),
    ),
    Mutant(
        name="counts of a ledger are not looked at",
        file="ps_server/shard/state/codec.py",
        text="type(value) is not int or not 0 <= value <= MAX_COUNT",
        fault="False",
        tests=(FACTS,),
    ),
    Mutant(
        name="as many files of a job at once as it likes",
        file="ps_server/shard/state/snapshots.py",
        text="            if self._arriving[job] >= MAX_ARRIVING:\n",
        fault="            if False:\n",
        tests=(f"{SECURITY}::test_what_a_job_may_have_brought_at_once_is_bounded",),
    ),
    Mutant(
        name="as many snapshots of a job as its token's holder likes",
        file="ps_wire/snapshot/store.py",
        text="        if len(names) >= MAX_SNAPSHOTS and name not in names:\n",
        fault="        if False:\n",
        tests=(
            "tests/unit/ps_wire/snapshot/test_store.py::test_a_job_has_no_more_snapshots_than_can_be_looked_at",
        ),
    ),
    Mutant(
        name="a job goes back as often as it is asked to",
        file="ps_server/coordinator/recovery.py",
        text="        if (wait_s := self._restores.wait_s(job, self._clock())) > 0:\n",
        fault="        if (wait_s := self._restores.wait_s(job, self._clock())) < 0:\n",
        tests=(f"{SECURITY}::test_a_job_goes_back_only_so_often",),
    ),
    Mutant(
        name="an allowance that never comes back",
        file="ps_server/coordinator/allowance.py",
        text="        while taken and taken[0] + self.window_s <= now_s:\n",
        fault="        while False:\n",
        tests=("tests/unit/ps_server/coordinator/test_allowance.py",),
    ),
    Mutant(
        name="a job goes back to a snapshot of one that trains otherwise",
        file="ps_server/coordinator/recovery.py",
        text="    if runner is None or runner.job.forgotten:\n",
        fault="    if True:\n",
        tests=(f"{SECURITY}::test_a_snapshot_of_a_job_that_trains_otherwise_is_refused",),
    ),
    Mutant(
        name="each of those who never came back is evicted by itself",
        file="ps_server/coordinator/jobs/runner.py",
        text="(unheard if member.unheard else silent).append(member)",
        fault="silent.append(member)",
        tests=(
            "tests/unit/ps_server/coordinator/test_rolled_back.py::test_thousands_who_never_come_back_go_together",
        ),
    ),
    Mutant(
        name="shares of all epochs are remembered",
        file="ps_server/coordinator/epochs/epoch_book.py",
        text="or places > MAX_PLACES):",
        fault="or places < 0):",
        tests=(
            "tests/unit/ps_server/coordinator/epochs/test_epoch_book.py::test_what_is_remembered_of_many_workers_is_bounded",
        ),
    ),
    Mutant(
        name="who leaves while a snapshot is written is not in it",
        file="ps_server/coordinator/snapshots/attempt.py",
        text="if member.state in IN_ORDER and member.worker in self._writes:",
        fault="if member.state is MemberState.FINISHING and member.worker in self._writes:",
        tests=(f"{SNAPSHOTS}::test_workers_that_leave_in_order_while_a_snapshot_is_written_are_in_it",),
    ),
)
