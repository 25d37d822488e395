"""Faults of signals, of what watches the tests, and of what the tests say of themselves."""

from tests.mutants.mutant import Mutant

HANDLE = "ps_lab/cluster/process_handle.py"
OF_HANDLES = ("tests/unit/ps_lab/cluster/test_process_handle.py",)
OF_THE_WATCHDOG = ("tests/unit/test_watchdog.py",)
OF_SOAKS = ("tests/unit/test_soak.py",)
OF_SERVICES = ("tests/component/test_service.py",)
OF_WHAT_IS_LEFT = ("tests/unit/test_left_behind.py",)
OF_ARCHITECTURE = ("tests/unit/docs/test_architecture.py",)
APART = "tests/integration/test_pipeline.py::test_stages_on_two_hosts_find_each_other_and_send_over_the_link"

MUTANTS = (
    Mutant(
        name="a benchmark imports what is not there",
        file="benchmarks/roundtrip.py",
        text="from ps_lab.outputs import check_file\n",
        fault="from ps_lab.outputs import check_writable\n",
        tests=("tests/unit/test_benchmarks.py",),
    ),
    Mutant(
        name="files of long tests come last in their slice",
        file="tests/longest_first.py",
        text="        result += [*first, *rest[:fill]]\n",
        fault="        result += [*rest[:fill], *first]\n",
        tests=("tests/unit/test_longest_first.py",),
    ),
    Mutant(
        name="a slice gets all files of long tests",
        file="tests/longest_first.py",
        text="        min(parts, key=lambda part: sum(LONG_S[it] for it in part)).add(file)\n",
        fault="        parts[0].add(file)\n",
        tests=("tests/unit/test_longest_first.py",),
    ),
    Mutant(
        name="a signal goes to a number",
        file=HANDLE,
        text="                signal.pidfd_send_signal(self._pidfd, number)\n",
        fault="                os.kill(self.pid, number)\n",
        tests=OF_HANDLES,
    ),
    Mutant(
        name="a group is met by its number, whoever has it",
        file=HANDLE,
        text="                    signal.pidfd_send_signal(self._pidfd, number, None, PROCESS_GROUP)\n",
        fault="                    os.killpg(self.pid, number)\n",
        tests=OF_HANDLES,
    ),
    Mutant(
        name="a handle that is closed signals",
        file=HANDLE,
        text="            if self._closed:\n                return\n            if self._pidfd is None:\n",
        fault="            if self._pidfd is None:\n",
        tests=OF_HANDLES,
    ),
    Mutant(
        name="no groups before Linux 6.9",
        file=HANDLE,
        text="if error.errno != errno.EINVAL:",
        fault="if error.errno == errno.EINVAL:",
        tests=OF_HANDLES,
    ),
    Mutant(
        name="a container without pidfds has no handles",
        file=HANDLE,
        text="        if error.errno in NO_PIDFD:\n            return None\n",
        fault="",
        tests=OF_HANDLES,
    ),
    Mutant(
        name="a close does not wait for a signal that is being sent",
        file=HANDLE,
        text="        with self._lock:\n            if not self._closed and self._pidfd is not None:\n",
        fault="        if True:\n            if not self._closed and self._pidfd is not None:\n",
        tests=OF_HANDLES,
    ),
    Mutant(
        name="a test that is stuck ends without its stacks",
        file="tests/watcher.py",
        text="        self._process.send(signal.SIGABRT)\n",
        fault="        self._process.send(signal.SIGKILL)\n",
        tests=OF_THE_WATCHDOG,
    ),
    Mutant(
        name="a process that cannot end has no stacks",
        file="tests/watchdog.py",
        text="        faulthandler.enable(file=self._stderr)  # again: pytest has just ended its own\n",
        fault="",
        tests=OF_THE_WATCHDOG,
    ),
    Mutant(
        name="nobody watches the process that hands out the tests",
        file="tests/watchdog.py",
        text='        return bool(self._plugins.hasplugin("dsession"))\n',
        fault="        return False\n",
        tests=OF_THE_WATCHDOG,
    ),
    Mutant(
        name="a lost test does not say how its process ended",
        file="tests/watchdog.py",
        text='        report.longrepr = f"{report.longrepr}\\n{how_it_ended(report.node)}"\n',
        fault="        pass\n",
        tests=OF_THE_WATCHDOG,
    ),
    Mutant(
        name="the limit that a test names is not its limit",
        file="tests/watchdog.py",
        text="        limit_s = self._limit_s if mark is None else float(mark.args[0])\n",
        fault="        limit_s = self._limit_s\n",
        tests=OF_THE_WATCHDOG,
    ),
    Mutant(
        name="a soak of which a run failed ends well",
        file="tests/soak.py",
        text='        well = well and run.end == "ok"\n',
        fault="        well = True\n",
        tests=OF_SOAKS,
    ),
    Mutant(
        name="a soak takes what a captured log says for tests",
        file="tests/soak.py",
        text="(?:FAILED|ERROR) (\\S.*?)",
        fault="(?:FAILED|ERROR) (.+?)",
        tests=OF_SOAKS,
    ),
    Mutant(
        name="a soak forgets the runs of before",
        file="tests/soak.py",
        text="    if not table.exists():\n",
        fault="    if True:\n",
        tests=OF_SOAKS,
    ),
    Mutant(
        name="a soak leaves its busy loops behind",
        file="tests/soak.py",
        text="            loop.kill()\n            loop.wait()\n",
        fault="            pass\n",
        tests=OF_SOAKS,
    ),
    Mutant(
        name="a run that hangs holds a soak up for ever",
        file="tests/soak.py",
        text="            ended = handle.wait(limit_s)\n",
        fault="            ended = handle.wait()\n",
        tests=OF_SOAKS,
    ),
    Mutant(
        name="reasons of skips are not counted",
        file="tests/skips.py",
        text="    for reason, count in counts.most_common():\n",
        fault="    for reason, count in Counter(counts.keys()).most_common():\n",
        tests=("tests/unit/test_skips.py",),
    ),
    Mutant(
        name="jobs of a test stay on the shards that all tests share",
        file="tests/component/service.py",
        text="        self._loop.start(self._drop(set(self.coordinator.runners) - before)).result(LIMIT_S)\n",
        fault="        before.clear()\n",
        tests=OF_SERVICES,
    ),
    Mutant(
        name="workers that outlive a test lose their job",
        file="tests/component/service.py",
        text="drop(job, force=False)",
        fault="drop(job, force=True)",
        tests=OF_SERVICES,
    ),
    Mutant(
        name="a test may leave a variable of ours behind",
        file="tests/left_behind.py",
        text="        for name in sorted(before.keys() | come)\n",
        fault="        for name in sorted(before)\n",
        tests=OF_WHAT_IS_LEFT,
    ),
    Mutant(
        name="what a test leaves behind is not looked at",
        file="tests/left_behind.py",
        text="    with unchanged():\n        yield\n",
        fault="    yield\n",
        tests=OF_WHAT_IS_LEFT,
    ),
    Mutant(
        name="a lock that stands in no table",
        file="ps_worker/membership/round_barrier.py",
        text="        self._changed = threading.Condition()\n",
        fault="        self._changed = threading.Condition()\n        self._other = threading.Lock()\n",
        tests=OF_ARCHITECTURE,
    ),
    Mutant(
        name="a thread that stands in no table",
        file="ps_worker/membership/noting.py",
        text='watched.thread("ps-note", puts',
        fault='watched.thread("ps-notes", puts',
        tests=OF_ARCHITECTURE,
    ),
    Mutant(
        name="a module in namespaces of its own is left in those of the tests",
        file="tests/faults/apart.py",
        text="    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS):\n",
        fault="    if False:\n",
        tests=(APART,),
    ),
    Mutant(
        name="make bench types an option that a script has under another name",
        file="benchmarks/pipeline.py",
        text='parser.add_argument("--stages"',
        fault='parser.add_argument("--num-stages"',
        tests=("tests/unit/test_benchmarks.py",),
    ),
    Mutant(
        name="make bench types an option that a command has under another name",
        file="ps_lab/bench/cli.py",
        text="    batch_size: Annotated[int, ",
        fault="    samples: Annotated[int, ",
        tests=("tests/unit/test_benchmarks.py",),
    ),
)
