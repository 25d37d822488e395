"""Faults that were found by messages which are nearly right, against a server that is then stopped."""

from .mutant import Mutant

MUTANTS = (
    Mutant(
        name="lanes: what comes after the end is kept, and nobody does it",
        file="ps_server/lanes.py",
        text="            if self._closed:\n",
        fault="            if False:\n",
        tests=(
            "tests/unit/ps_server/test_lanes.py::test_once_closed_what_comes_is_refused_again_and_again",
            "tests/integration/test_serving.py::test_a_server_ends_beside_readers_that_wait_for_a_worker",
        ),
    ),
    Mutant(
        name="log: callers that hang up before their answer write a traceback each",
        file="ps_server/log.py",
        text="    handler.addFilter(concerns_us)\n",
        fault="",
        tests=(
            "tests/unit/ps_server/test_log.py::test_what_grpc_and_asyncio_complain_of_is_written_in_the_same_way",
        ),
    ),
)
