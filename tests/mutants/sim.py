"""Faults of the simulator, and of the stragglers that it shares with workers."""

from .mutant import Mutant

STRAGGLERS = "ps_wire/spec/stragglers.py"
OF_STRAGGLERS = ("tests/unit/ps_wire/spec/test_stragglers.py",)
ENGINE = "ps_lab/simulate/engine.py"
SERVERS = "ps_lab/simulate/servers.py"
OF_THE_ENGINE = ("tests/unit/ps_lab/simulate/test_engine.py",)
LEARNING = "ps_lab/simulate/learning.py"
OF_LEARNING = ("tests/unit/ps_lab/simulate/test_learning.py",)
FIT = "ps_lab/simulate/fit.py"
VALIDATION = "ps_lab/compare/validation.py"
OF_FITS = ("tests/unit/ps_lab/simulate/test_fit.py",)
CLOSED_FORMS = "ps_lab/simulate/closed_forms.py"
OF_CLOSED_FORMS = "tests/unit/ps_lab/simulate/test_closed_forms.py"

MUTANTS = (
    Mutant(
        name="sim: what a worker exchanges is made longer by a straggler",
        file="ps_lab/simulate/engine.py",
        text="            worker.measured_s = self._now_s - begun_s\n",
        fault="            worker.measured_s = self._now_s - begun_s + self._costs.exchange_s\n",
        tests=(
            (
                "tests/unit/ps_lab/simulate/test_shared_cores.py"
                "::test_a_straggler_is_slower_in_its_compute_and_not_in_the_exchange"
            ),
        ),
    ),
    Mutant(
        name="sim: all of a worker's processor time is compute",
        file=FIT,
        text="computed_s = used_s if step.compute_cpu_s is None else step.compute_cpu_s",
        fault="computed_s = used_s",
        tests=(
            (
                "tests/unit/ps_lab/simulate/test_shared_cores.py"
                "::test_what_a_worker_computes_and_what_it_exchanges_are_told_apart"
            ),
        ),
    ),
    Mutant(
        name="record: the processor time of compute goes on after the call",
        file="ps_worker/recording/recorder.py",
        text="sent.used_s, sent.called_used_s = self._used(), self._called_used_s",
        fault="sent.used_s = sent.called_used_s = self._used()",
        tests=("tests/unit/ps_worker/recording/test_recorder.py",),
    ),
    Mutant(
        name="validation: a run's first steps are in its throughput",
        file=VALIDATION,
        text="    took_s = settled_s(one.recorded)\n",
        fault="    took_s = one.wall_s or 0.0\n",
        tests=(
            (
                "tests/unit/ps_lab/compare/test_validation.py"
                "::test_a_first_step_that_imports_and_compiles_is_in_no_throughput"
            ),
        ),
    ),
    Mutant(
        name="sim: the time of first steps is put down to the cores",
        file=VALIDATION,
        text="min(float(one.started_unix_s[1]) for one in settled)",
        fault="min(float(one.started_unix_s[0]) for one in settled)",
        tests=(
            (
                "tests/unit/ps_lab/simulate/test_shared_cores.py"
                "::test_a_first_step_that_imports_and_compiles_takes_no_cores_away"
            ),
        ),
    ),
    Mutant(
        name="stragglers: all workers draw the same steps",
        file=STRAGGLERS,
        text="    return _mix(_mix(_mix(seed) + stream) + worker)\n",
        fault="    return _mix(_mix(_mix(seed) + stream) + 0 * worker)\n",
        tests=OF_STRAGGLERS,
    ),
    Mutant(
        name="stragglers: two parts of a profile draw the same steps",
        file=STRAGGLERS,
        text="    return _mix(_mix(_mix(seed) + stream) + worker)\n",
        fault="    return _mix(_mix(_mix(seed) + 0 * stream) + worker)\n",
        tests=OF_STRAGGLERS,
    ),
    Mutant(
        name="stragglers: an exponential step takes its share alone",
        file=STRAGGLERS,
        text="factor=1.0 - self.mean * math.log1p(",
        fault="factor=-self.mean * math.log1p(",
        tests=OF_STRAGGLERS,
    ),
    Mutant(
        name="stragglers: a burst begins as often as steps are slow",
        file=STRAGGLERS,
        text="begins = ends * self.probability / (1.0 - self.probability)",
        fault="begins = ends * self.probability",
        tests=OF_STRAGGLERS,
    ),
    Mutant(
        name="stragglers: a part is about all workers",
        file=STRAGGLERS,
        text="            if not part.workers or worker in part.workers\n",
        fault="",
        tests=OF_STRAGGLERS,
    ),
    Mutant(
        name="stragglers: a number that is none passes",
        file=STRAGGLERS,
        text="    if not least <= value <= most:\n",
        fault="    if value < least or value > most:\n",
        tests=OF_STRAGGLERS,
    ),
    Mutant(
        name="simulate: a shard takes pushes all at once",
        file=ENGINE,
        text="        shard.free_s = max(shard.free_s, self._now_s) + self._served_s(self._take_s)\n",
        fault="        shard.free_s = self._now_s + self._served_s(self._take_s)\n",
        tests=OF_THE_ENGINE,
    ),
    Mutant(
        name="simulate: a shard's link carries all pushes at once",
        file=ENGINE,
        text="            shard.in_free_s = max(shard.in_free_s, begun_s) + self._server_s\n",
        fault="            shard.in_free_s = begun_s + self._server_s\n",
        tests=OF_THE_ENGINE,
    ),
    Mutant(
        name="simulate: a worker that was started again dies at the same step again",
        file=ENGINE,
        text="        if worker.newest == 1:  # one",
        fault="        if worker.newest < 99:  # one",
        tests=OF_THE_ENGINE,
    ),
    Mutant(
        name="simulate: nobody is evicted",
        file=ENGINE,
        text="        self._at(self._now_s + min(self._costs.lease_s, back_s), self._evict, worker, incarnation)\n",
        fault="",
        tests=OF_THE_ENGINE,
    ),
    Mutant(
        name="simulate: a pull is answered with the version before its push",
        file=ENGINE,
        text="        worker.versions[partition] = version\n        if self._learner",
        fault="        worker.versions[partition] = max(0, version - 1)\n        if self._learner",
        tests=(f"{OF_CLOSED_FORMS}::test_law_10_asp_conserves_version_staleness",),
    ),
    Mutant(
        name="simulate: steps that end after the time are counted",
        file=ENGINE,
        text="        if now_s <= self._limit_s:\n",
        fault="        if now_s <= math.inf:\n",
        tests=OF_THE_ENGINE,
    ),
    Mutant(
        name="simulate: a late worker is looked at with the next push only",
        file=SERVERS,
        text="        self._stand(partition, look=late)\n",
        fault="        self._stand(partition)\n",
        tests=(*OF_THE_ENGINE, OF_CLOSED_FORMS),
    ),
    Mutant(
        name="simulate: who was evicted is waited for by the chooser",
        file=SERVERS,
        text="        self._live -= 1\n        return self._on_all(lambda machine: machine.evict(",
        fault="        return self._on_all(lambda machine: machine.evict(",
        tests=OF_THE_ENGINE,
    ),
    Mutant(
        name="simulate: the step of bsp is the mean one",
        file=CLOSED_FORMS,
        text="            factor = ordered_factor(profile.parts[0], num_workers, num_workers)\n",
        fault="            factor = mean_factor(profile.parts[0])\n",
        tests=(f"{OF_CLOSED_FORMS}::test_a_step_of_bsp_takes_as_long_as_its_slowest_worker",),
    ),
    Mutant(
        name="simulate: gradients are of the newest weights",
        file=ENGINE,
        text="self._learner.gradient(worker.index, worker.clock, worker.weights)",
        fault="self._learner.gradient(worker.index, worker.clock, [self._learner.weights(0, 1 << 40)])",
        tests=OF_LEARNING,
    ),
    Mutant(
        name="simulate: weights of a version that is asked for are not kept",
        file=LEARNING,
        text="        self._kept[partition] = {it: kept[it] for it in keep if it in kept} | {",
        fault="        self._kept[partition] = {it: kept[it] for it in kept} | {",
        tests=(f"{OF_LEARNING[0]}::test_a_late_worker_gets_the_weights_of_its_version",),
    ),
    Mutant(
        name="simulate: a gradient on purpose is one step less late",
        file=LEARNING,
        text="        if len(late) > self._delay:\n",
        fault="        if len(late) >= self._delay:\n",
        tests=OF_LEARNING,
    ),
    Mutant(
        name="simulate: the mean of one step is a sum",
        file=LEARNING,
        text="            mean /= len(gradients)\n",
        fault="",
        tests=OF_LEARNING,
    ),
    Mutant(
        name="simulate: workers have the same batches",
        file=LEARNING,
        text="        begin = (round_ * self._num_workers + worker) * self._batch_size\n",
        fault="        begin = round_ * self._num_workers * self._batch_size\n",
        tests=OF_LEARNING,
    ),
    Mutant(
        name="simulate: the whole overhead of a step is one way",
        file=FIT,
        text="        latency_s=base_s / 2,\n",
        fault="        latency_s=base_s,\n",
        tests=OF_FITS,
    ),
    Mutant(
        name="simulate: the distance of two stalenesses does not know how far",
        file=VALIDATION,
        text="        area += abs(gap) * (following - tau)\n",
        fault="        area += abs(gap)\n",
        tests=OF_FITS,
    ),
    Mutant(
        name="simulate: any staleness passes as valid",
        file=VALIDATION,
        text="        return abs(self.ratio - 1.0) <= MAX_RATIO and self.wasserstein <= most\n",
        fault="        return self.wasserstein <= most\n",
        tests=OF_FITS,
    ),
)
