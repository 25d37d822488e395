"""Faults of what those who wait hear of refused workers, and of data that differs between workers."""

from .mutant import Mutant

LEAVE = "tests/component/members/test_leave.py"
REFUSED = f"{LEAVE}::test_a_refused_worker_is_told_to_those_who_wait_for_it_and_not_for_ever"
MODEL = f"{LEAVE}::test_a_worker_that_is_refused_for_its_model_is_told_to_those_who_wait_for_it"
FACTS = "tests/component/data/test_data_facts.py"
SAID = f"{FACTS}::test_data_that_is_no_whole_numbers_and_differs_is_said_to_the_workers_and_not_refused"
ROWS = f"{FACTS}::test_sums_are_of_rows_over_the_whole_length_and_few"
AGREED = (
    "tests/unit/ps_server/coordinator/epochs/test_agreed.py"
    "::test_sums_that_differ_are_said_once_a_loader_and_numbers_that_were_computed_elsewhere_are_alike"
)
DECIDED = (
    "tests/component/training/test_clip.py"
    "::test_who_finishes_behind_its_last_push_reads_that_step_though_it_is_decided_late"
)
STOPS = "tests/component/members/test_stop_job.py::test_who_comes_back_when_the_job_has_ended_may_stop_it"
STREAMS = "ps_server/coordinator/member_streams.py"
TAKEN = "tests/component/snapshots/test_snapshots.py"

MUTANTS = (
    Mutant(
        name="resume3: nobody hears that a worker of another release was refused",
        file=STREAMS,
        text="""        except (ConfigurationRefused, UsageError) as error:
            self._say_refused(join, error)
            raise
""",
        fault="""        except (ConfigurationRefused, UsageError):
            raise
""",
        tests=(REFUSED,),
    ),
    Mutant(
        name="resume3: nobody hears that a worker was refused for its model",
        file=STREAMS,
        text="            runner.do(runner.job.refuse_member(member, error))\n",
        fault="",
        tests=(MODEL,),
    ),
    Mutant(
        name="resume3: numbers of data that differ are not said",
        file="ps_server/coordinator/service.py",
        text="            runner.do(runner.job.tell_here(differs))\n        if request.begins",
        fault="            pass\n        if request.begins",
        tests=(SAID,),
    ),
    Mutant(
        name="resume3: a worker does not say the numbers of its data",
        file="ps_worker/data/script_data.py",
        text="            sums=sums_of(dataset),\n",
        fault="            sums=(),\n",
        tests=(SAID,),
    ),
    Mutant(
        name="resume3: numbers that were computed elsewhere are others",
        file="ps_server/coordinator/epochs/agreed.py",
        text="rel_tol=TOLERANCE",
        fault="rel_tol=0.0",
        tests=(AGREED,),
    ),
    Mutant(
        name="resume3: that numbers differ is said at each batch",
        file="ps_server/coordinator/epochs/agreed.py",
        text="        self._warned.add(loader)\n",
        fault="",
        tests=(AGREED,),
    ),
    Mutant(
        name="resume3: only the first rows of data are compared",
        file="ps_worker/data/data_facts.py",
        text="(len(tensor) - 1) * row // (SUM_ROWS - 1)",
        fault="row",
        tests=(ROWS,),
    ),
    Mutant(
        name="resume3: what a stream that fails ends is not waited for where its incarnation is given up",
        file="ps_worker/membership/membership.py",
        text="""        with self._handing:
            if self._promise is not None:
                self._promise.end()
            if self._rounds is not None:
                self._rounds.let_go()
""",
        fault="""        promise, rounds = self._promise, self._rounds
        if promise is not None:
            promise.end()
        if rounds is not None:
            rounds.let_go()
""",
        tests=("tests/unit/ps_worker/membership/test_membership.py",),
    ),
    Mutant(
        name="resume3: a stream brings replies before its membership knows it",
        file="ps_worker/membership/member_stream.py",
        text="""        self.threads: list[threading.Thread] = []

    def start(self) -> None:
        \"""Joins, and tells of replies from now on.\"""
""",
        fault="""        self.threads: list[threading.Thread] = []
        self._begin()

    def start(self) -> None: ...

    def _begin(self) -> None:
""",
        tests=("tests/unit/ps_worker/membership/test_membership.py",),
    ),
    Mutant(
        name="resume3: a failure right behind the word that a worker has joined is handed on to nobody",
        file="ps_worker/membership/membership.py",
        text='self.joined = self._replies.get("joined", self.joined)',
        fault="pass",
        tests=("tests/unit/ps_worker/membership/test_membership.py",),
    ),
    Mutant(
        name="resume3: what ends an incarnation before its tables begin anew is forgotten",
        file="ps_worker/job/rejoiner.py",
        text="if (failure := self._presence.failure) is not None:",
        fault="if (failure := None) is not None:",
        tests=("tests/unit/ps_worker/job/test_rejoiner.py",),
    ),
    Mutant(
        name="resume3: who left beyond a cut has used samples in the snapshot that no step of it has",
        file="ps_server/coordinator/snapshots/attempt.py",
        text="if self._shares is None and self._may_be_beyond(member):",
        fault="if False:",
        tests=(f"{TAKEN}::test_no_sample_is_used_in_a_snapshot_by_a_step_that_it_does_not_have",),
    ),
    Mutant(
        name="resume3: who finishes does not wait for the decision about its last step",
        file="ps_worker/job/job_link.py",
        text="                    exchange.wait_decided()\n",
        fault="",
        tests=(DECIDED,),
    ),
    Mutant(
        name="resume3: a successor lets the first process of a shard in, though its holder is about to come",
        file="ps_server/coordinator/fleet/fleet.py",
        text="        self._awaited = {shard: asyncio.Event() for shard in self.registry.known}\n",
        fault="",
        tests=("tests/unit/ps_server/coordinator/fleet/test_fleet.py",),
    ),
    Mutant(
        name="resume3: a successor waits again and again for a holder that is gone",
        file="ps_server/coordinator/fleet/fleet.py",
        text="        self._awaited.pop(shard, None)\n        return awaited.is_set()\n",
        fault="        return True\n",
        tests=("tests/unit/ps_server/coordinator/fleet/test_fleet.py",),
    ),
    Mutant(
        name="resume3: who comes back when its job has ended may not stop it",
        file="ps_worker/steps.py",
        text="        if not self.link.ended and (closed",
        fault="        if (closed",
        tests=(STOPS,),
    ),
    Mutant(
        name="resume3: the interpreter looks through all of torch when a command ends",
        file="ps_wire/process/program.py",
        text="    gc.freeze()",
        fault="    gc.enable()",
        tests=("tests/unit/ps_wire/process/test_program.py",),
    ),
    Mutant(
        name="resume3: what a script has not flushed is lost",
        file="ps_worker/cli.py",
        text="        open_files.write_out()\n",
        fault="",
        tests=("tests/unit/ps_worker/test_run_module.py",),
    ),
)
