"""Faults of what people type: jobs that are dropped, readers that wait, status, the script's own lines."""

from .mutant import Mutant

DROPPED = "tests/component/members/test_dropped_jobs.py"
WAITING = "tests/component/tables/test_waiting_readers.py"
SCRIPT = "tests/unit/ps_worker/process/test_script_errors.py"
REPORT = "tests/unit/ps_lab/status/test_report.py"
WATCH = "tests/unit/ps_lab/status/test_live.py"

MUTANTS = (
    Mutant(
        name="reader: a cut begins while the one before, that was broken off, is still held",
        file="ps_worker/readers/reader.py",
        text="        if self._cutting:",
        fault="        if False:",
        tests=(
            "tests/component/tables/test_reader.py::test_wherever_ctrl_c_lands_in_a_read_the_next_one_reads",
        ),
    ),
    Mutant(
        name="front: a job with live workers is dropped without a word",
        file="ps_server/coordinator/drops.py",
        text="        if live and not force:\n",
        fault="        if False:\n",
        tests=(f"{DROPPED}::test_a_job_with_live_workers_is_refused_and_goes_on",),
    ),
    Mutant(
        name="front: a job that goes by itself while it is dropped is a bug",
        file="ps_server/coordinator/drops.py",
        text="            self._runners.pop(job, None)  #",
        fault="            del self._runners[job]  #",
        tests=(f"{DROPPED}::test_a_job_that_goes_by_itself_while_it_is_dropped_is_gone",),
    ),
    Mutant(
        name="front: a job that is dropped leaves what it had on the shards",
        file="ps_server/coordinator/drops.py",
        text="        await self._order(pb.Order(drop_job=pb.DropJob(job=job)))\n",
        fault="",
        tests=(f"{DROPPED}::test_the_name_of_a_job_that_was_dropped_begins_anew",),
    ),
    Mutant(
        name="front: workers of a job that is dropped are told nothing",
        file="ps_server/coordinator/jobs/job.py",
        text="        told = self.tell_all(error)\n        for member",
        fault="        told: list[Action] = []\n        for member",
        tests=(f"{DROPPED}::test_workers_and_readers_of_a_job_that_is_dropped_by_force_hear_why",),
    ),
    Mutant(
        name="front: readers of a job that is dropped are told nothing",
        file="ps_server/coordinator/drops.py",
        text="        readers = self._readers.dismiss(job, error)\n",
        fault="        readers = 1\n",
        tests=(f"{DROPPED}::test_workers_and_readers_of_a_job_that_is_dropped_by_force_hear_why",),
    ),
    Mutant(
        name="front: a reader's last word is taken for a connection that broke",
        file="ps_worker/readers/reader.py",
        text='                if reply.number == 0 and reply.HasField("refused"):',
        fault="                if False:",
        tests=(f"{DROPPED}::test_workers_and_readers_of_a_job_that_is_dropped_by_force_hear_why",),
    ),
    Mutant(
        name="front: incarnations of the next job of a name are those of the one before",
        file="ps_server/coordinator/jobs/runners.py",
        text="            job.roster.end_incarnations(self._dropped.last_incarnation(name))\n",
        fault="",
        tests=(f"{DROPPED}::test_the_next_job_of_the_name_knows_nobody_of_the_one_before",),
    ),
    Mutant(
        name="front: who comes while a job is dropped joins the job that goes",
        file="ps_server/coordinator/drops.py",
        text="        if job in self._under_way:\n            raise",
        fault="        if False:\n            raise",
        tests=(f"{DROPPED}::test_who_comes_while_a_job_is_dropped_begins_the_next_one",),
    ),
    Mutant(
        name="front: a job goes back to what was dropped",
        file="ps_server/coordinator/snapshots/saved_jobs.py",
        text="self._store.newest_first(job, lasting=True)",
        fault="self._store.newest_first(job)",
        tests=(f"{DROPPED}::test_a_job_that_lost_a_shard_does_not_go_back_to_what_was_dropped",),
    ),
    Mutant(
        name="front: a dropped job sleeps when servers are started again",
        file="ps_server/coordinator/snapshots/saved_jobs.py",
        text="if job not in dropped or self._store.lasting(job)]",
        fault="]",
        tests=(f"{DROPPED}::test_the_snapshots_of_a_dropped_job_stay_and_it_does_not_go_on_from_them",),
    ),
    Mutant(
        name="front: a sleeping job that is dropped is woken by who comes",
        file="ps_server/coordinator/drops.py",
        text="        self._recovery.dismiss(job)\n",
        fault="",
        tests=(f"{DROPPED}::test_a_sleeping_job_is_dropped",),
    ),
    Mutant(
        name="front: who comes to an ended job otherwise is not told the way out",
        file="ps_server/coordinator/jobs/job.py",
        text="        if self.state is not JobState.ENDED:\n            return error\n",
        fault="        return error\n",
        tests=(f"{DROPPED}::test_who_comes_to_an_ended_job_otherwise_is_told_the_ways_out",),
    ),
    Mutant(
        name="front: a reader that waits is content with a job that has not started",
        file="ps_worker/readers/reader.py",
        text="                if wait_s:\n                    self._ask(",
        fault="                if False:\n                    self._ask(",
        tests=(f"{WAITING}::test_a_reader_waits_for_a_job_that_is_not_there_and_then_for_its_start",),
    ),
    Mutant(
        name="front: a reader does not wait",
        file="ps_worker/readers/reader.py",
        text="                if left_s <= 0:\n",
        fault="                if True:\n",
        tests=(f"{WAITING}::test_a_reader_waits_for_a_job_that_is_not_there_and_then_for_its_start",),
    ),
    Mutant(
        name="front: a cut does not say that the job has ended",
        file="ps_server/coordinator/readers.py",
        text="        cut.ended = runner.job.state is JobState.ENDED",
        fault="        cut.ended = False",
        tests=(f"{WAITING}::test_a_cut_says_that_the_job_has_ended",),
    ),
    Mutant(
        name="front: the line of the script is that of a library which it called",
        file="ps_worker/process/script_errors.py",
        text="if not _is_library(frame.filename)]",
        fault="]",
        tests=(f"{SCRIPT}::test_an_error_of_the_project_shows_the_line_of_the_script",),
    ),
    Mutant(
        name="front: an error of the script comes with frames of the launcher",
        file="ps_worker/process/script_errors.py",
        text="    while trace is not None and trace.tb_frame.f_code.co_filename in ours:\n",
        fault="    while False:\n",
        tests=(f"{SCRIPT}::test_an_error_of_the_script_comes_without_frames_of_the_launcher",),
    ),
    Mutant(
        name="front: a script's own hook for errors is passed over",
        file="ps_worker/process/script_errors.py",
        text="    sys.excepthook(",
        fault="    sys.__excepthook__(",
        tests=(f"{SCRIPT}::test_the_scripts_own_hook_shows_its_errors",),
    ),
    Mutant(
        name="front: figures of a status are broken on a narrow terminal",
        file="ps_lab/status/report.py",
        text="            whole = name in WHOLE\n",
        fault="            whole = False\n",
        tests=(f"{REPORT}::test_a_job_of_several_tables_is_readable_on_80_columns",),
    ),
    Mutant(
        name="front: columns of a status have room between them that 80 columns do not have",
        file="ps_lab/status/report.py",
        text="padding=0, pad_edge=False",
        fault="padding=(0, 2)",
        tests=(f"{REPORT}::test_status_is_readable_on_80_columns",),
    ),
    Mutant(
        name="front: a watch ends where servers do not answer once",
        file="ps_lab/status/live.py",
        text="            except Unavailable as error:\n",
        fault="            except ZeroDivisionError as error:\n",
        tests=(f"{WATCH}::test_servers_that_do_not_answer_for_a_while_are_waited_for",),
    ),
    Mutant(
        name="front: a watch draws into a pipe",
        file="ps_lab/status/live.py",
        text="    if not console.is_terminal:\n",
        fault="    if False:\n",
        tests=(f"{WATCH}::test_where_nothing_can_be_drawn_again_it_is_refused",),
    ),
)
