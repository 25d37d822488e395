"""Faults of metrics: what is counted, who is answered, what a scrape costs."""

from .mutant import Mutant

ENDPOINT = "tests/unit/ps_wire/metrics/test_endpoint.py"
HISTOGRAM = "tests/unit/ps_wire/metrics/test_histogram.py"
TOTALS = "tests/unit/ps_server/shard/partition/test_totals.py"
TRAFFIC = "tests/unit/ps_server/shard/test_traffic.py"
TOP = "tests/unit/ps_lab/top"
SERVER = "tests/component/connections/test_server_metrics.py"

SERVED = "tests/component/connections/test_server_metrics.py"

MUTANTS = (
    Mutant(
        name="metrics: jobs that have ended hide those that train",
        file="ps_server/process/server_metrics.py",
        text="key=lambda job: (not job.members, job.name)",
        fault="key=lambda job: job.name",
        tests=(f"{SERVED}::test_jobs_that_train_have_series_before_those_that_have_ended",),
    ),
    Mutant(
        name="metrics: a scrape needs no token",
        file="ps_wire/metrics/endpoint.py",
        text="        if self._check is not None:\n",
        fault="        if False:\n",
        tests=(f"{ENDPOINT}::test_with_a_token_a_scrape_must_carry_the_service_s",),
    ),
    Mutant(
        name="metrics: the token of a job opens those of all jobs",
        file="ps_wire/metrics/endpoint.py",
        text='.check_service("read metrics")',
        fault="",
        tests=(f"{ENDPOINT}::test_with_a_token_a_scrape_must_carry_the_service_s",),
    ),
    Mutant(
        name="metrics: they are in the clear where there are certificates",
        file="ps_wire/metrics/endpoint.py",
        text="        if self._tls is not None:\n",
        fault="        if False:\n",
        tests=(f"{ENDPOINT}::test_with_certificates_a_scrape_shows_one",),
    ),
    Mutant(
        name="metrics: a request may be as long as it likes",
        file="ps_wire/metrics/endpoint.py",
        text="        if left_s <= 0 or len(data) > MAX_REQUEST_BYTES:\n",
        fault="        if left_s <= 0:\n",
        tests=(f"{ENDPOINT}::test_a_request_without_an_end_is_cut_off",),
    ),
    Mutant(
        name="metrics: a port that is taken is a traceback",
        file="ps_wire/metrics/endpoint.py",
        text="            raise Unavailable(\n",
        fault="            raise OSError(\n",
        tests=(f"{ENDPOINT}::test_a_port_that_is_taken_is_named",),
    ),
    Mutant(
        name="metrics: a child of a fork keeps the port",
        file="ps_wire/metrics/endpoint.py",
        text="        _listeners.add(self._listener)\n",
        fault="",
        tests=(f"{ENDPOINT}::test_a_forked_child_does_not_keep_the_port",),
    ),
    Mutant(
        name="metrics: a value on a bound counts above it",
        file="ps_wire/metrics/histogram.py",
        text="self.counts[bisect_left(self.bounds, value)] += times",
        fault="self.counts[__import__('bisect').bisect_right(self.bounds, value)] += times",
        tests=(f"{HISTOGRAM}::test_a_value_is_counted_where_the_bound_is_the_first_not_below_it",),
    ),
    Mutant(
        name="metrics: the gap of a worker is that of its last partition",
        file="ps_server/shard/partition/totals.py",
        text="            if part.max_gap > whole.max_gap:",
        fault="            if True:",
        tests=(f"{TOTALS}::test_counts_are_sums_and_gaps_and_waits_the_largest",),
    ),
    Mutant(
        name="metrics: the oldest version is that of no partition",
        file="ps_server/shard/partition/totals.py",
        text="min(self.oldest, version) if self.partitions else version",
        fault="min(self.oldest, version)",
        tests=(f"{TOTALS}::test_versions_are_the_oldest_and_the_newest",),
    ),
    Mutant(
        name="metrics: bytes of a connection go with it",
        file="ps_server/shard/traffic.py",
        text="                gone.received_bytes += flow.received_bytes\n",
        fault="",
        tests=(f"{TRAFFIC}::test_bytes_of_a_connection_stay_when_it_goes",),
    ),
    Mutant(
        name="metrics: weights that go to several workers are counted once",
        file="ps_server/shard/partition/meters.py",
        text="        self.pulls += 1\n        self.bytes_out += nbytes\n",
        fault="        self.pulls += 1\n        self.bytes_out += 0 if waited_s else nbytes\n",
        tests=(f"{SERVER}::test_weights_are_counted_for_each_worker_that_got_them",),
    ),
    Mutant(
        name="metrics: gaps are not counted",
        file="ps_server/shard/partition/cell.py",
        text="                        self.meters.gaps.count(outcome.gap)\n",
        fault="                        pass\n",
        tests=(f"{SERVER}::test_gaps_taus_and_waits_have_one_entry_per_push_and_pull",),
    ),
    Mutant(
        name="metrics: workers have series without a bound",
        file="ps_server/process/server_metrics.py",
        text="        places = itertools.islice(itertools.count(), MOST_WORKERS)\n",
        fault="        places = itertools.count()\n",
        tests=(f"{SERVER}::test_only_so_many_workers_have_series_of_their_own",),
    ),
    Mutant(
        name="top: it asks as often as it can",
        file="ps_lab/top/live.py",
        text="    return min(max(PAUSES_PER_LOOK * look_s, LEAST_PAUSE_S), MOST_PAUSE_S)\n",
        fault="    return LEAST_PAUSE_S\n",
        tests=(f"{TOP}/test_live.py::test_the_pause_is_a_hundred_looks_long_within_bounds",),
    ),
    Mutant(
        name="top: servers that are away for a while end it",
        file="ps_lab/top/live.py",
        text="        except Unavailable as error:\n",
        fault="        except ZeroDivisionError as error:\n",
        tests=(f"{TOP}/test_live.py::test_servers_that_are_away_are_waited_for_and_the_last_figures_stay",),
    ),
    Mutant(
        name="rates: between two reports of a worker it does nothing",
        file="ps_lab/status/rates.py",
        text="        if last == first and last_s - first_s < WINDOW_S:\n            return None\n",
        fault="",
        tests=("tests/unit/ps_lab/status/test_rates.py",),
    ),
    Mutant(
        name="top: staleness is that since the job began",
        file="ps_lab/top/view.py",
        text="        new.subtract(self._taus.get(job.name, {}))\n",
        fault="",
        tests=(f"{TOP}/test_view.py::test_staleness_is_that_of_the_pushes_since_the_look_before",),
    ),
    Mutant(
        name="top: of many workers the fastest are shown",
        file="ps_lab/top/screen.py",
        text="sorted(lanes, key=lambda lane: lane.clock)[:MOST_LANES]",
        fault="sorted(lanes, key=lambda lane: -lane.clock)[:MOST_LANES]",
        tests=(f"{TOP}/test_screen.py::test_of_many_workers_those_furthest_behind_are_shown",),
    ),
    Mutant(
        name="top: a channel that failed is kept",
        file="ps_lab/status/observer.py",
        text="            self._close()  # the next look",
        fault="            pass  # the next look",
        tests=("tests/integration/test_top.py::test_a_look_that_failed_begins_with_new_channels",),
    ),
    Mutant(
        name="status: a shard in the wrong place is taken",
        file="ps_lab/status/observer.py",
        text="    if reply.shard != position:\n",
        fault="    if False:\n",
        tests=("tests/integration/test_top.py::test_servers_in_the_wrong_order_are_named",),
    ),
    Mutant(
        name="top: any page reads the views through a browser",
        file="ps_lab/top/web.py",
        text="        if not self._is_meant():\n",
        fault="        if False:\n",
        tests=(f"{TOP}/test_web.py::test_a_browser_that_was_led_here_by_another_name_gets_nothing",),
    ),
    Mutant(
        name="top: as many browsers follow as come",
        file="ps_lab/top/web.py",
        text="        if not self.places.acquire(blocking=False):\n",
        fault="        if self.places.acquire(blocking=False) and False:\n",
        tests=(f"{TOP}/test_web.py::test_one_browser_too_many_is_told_so_and_a_place_is_free_again",),
    ),
    Mutant(
        name="top: a loss that is no number stops the page",
        file="ps_lab/top/web.py",
        text="json_text(view.to_json())",
        fault='__import__("json").dumps(view.to_json())',
        tests=(f"{TOP}/test_web.py::test_a_loss_that_is_no_number_is_json",),
    ),
    Mutant(
        name="top: who follows is held for ever",
        file="ps_lab/top/web.py",
        text="            if self._over:\n                return None\n",
        fault="",
        tests=(f"{TOP}/test_web.py::test_who_follows_is_let_go_at_the_end",),
    ),
    Mutant(
        name="stop: who is no member stops any job of the service",
        file="ps_server/coordinator/service.py",
        text='        """The job that a person means."""\n        gatekeeper.check_job(job)\n',
        fault='        """The job that a person means."""\n',
        tests=(
            "tests/component/connections/test_access.py::test_the_token_of_a_job_does_not_stop_another_one",
        ),
    ),
    Mutant(
        name="stop: a job that has ended is stopped",
        file="ps_server/coordinator/service.py",
        text='        if runner.job.state is JobState.ENDED:\n            raise ConfigurationRefused(f"job {job} has ended',
        fault='        if False:\n            raise ConfigurationRefused(f"job {job} has ended',
        tests=(
            "tests/integration/test_dropped_jobs.py::test_a_job_that_is_stopped_by_a_person_ends_for_all_after_the_same_epoch",
        ),
    ),
)
