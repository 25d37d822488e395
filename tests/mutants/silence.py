"""Faults of what a worker and a shard say to each other when one of them was silent for too long."""

from .mutant import Mutant

SHARD = "ps_server/shard/shard.py"
SESSION = "tests/unit/ps_server/shard/transport/test_session.py"
EVICTED = "tests/component/members/test_evicted.py"
CONNECTS_AGAIN = (
    f"{EVICTED}::test_who_is_evicted_while_it_connects_again_joins_again_though_the_shard_says_so_first"
)

FOR_NOW = "tests/component/connections/test_connection.py::test_a_hello_that_is_refused_for_now_is_said_again"
STOPPED = "tests/unit/ps_server/rpc/test_errors.py::test_a_stream_of_a_server_that_has_stopped_is_at_its_end"

MUTANTS = (
    Mutant(
        name="silence: who is fenced between its token and its connection gets one that no fence finds",
        file=SHARD,
        text="            entry.check_known(worker, incarnation)\n            before, again = entry.connect(",
        fault="            before, again = entry.connect(",
        tests=(
            f"{SESSION}::test_who_is_evicted_between_its_token_and_its_connection_gets_none_and_hears_why",
            CONNECTS_AGAIN,
        ),
    ),
    Mutant(
        name="silence: a worker that was refused is called silent in a warning of each shard",
        file="ps_server/shard/transport/session.py",
        text="isinstance(error, (JobUnknown, Evicted))",
        fault="isinstance(error, JobUnknown)",
        tests=(
            f"{SESSION}::test_who_is_evicted_between_its_token_and_its_connection_gets_none_and_hears_why",
        ),
    ),
    Mutant(
        name="who connects to a shard that does not know its job ends before the coordinator has said why",
        file="ps_worker/transport/connection.py",
        text="        waits = error.retryable or isinstance(error, JobUnknown)\n",
        fault="        waits = error.retryable\n",
        tests=(
            "tests/component/connections/test_connecting.py::test_a_shard_that_does_not_know_the_job_is_asked_again",
        ),
    ),
    Mutant(
        name="silence: a HELLO that is refused for now only ends its worker",
        file="ps_worker/transport/connection.py",
        text="                        raise _for_now(refusal(frame))\n                    yield frame\n",
        fault="                        pass\n                    yield frame\n",
        tests=(FOR_NOW,),
    ),
    Mutant(
        name="silence: a carrier over which a HELLO is refused for now is taken for one that reaches nobody",
        file="ps_worker/transport/carrier_choice.py",
        text="            if isinstance(error, (Evicted, ServerNotReady)):",
        fault="            if isinstance(error, Evicted):",
        tests=(FOR_NOW,),
    ),
    Mutant(
        name="silence: a call that a server cancels as it stops ends its worker",
        file="ps_wire/access/status.py",
        text="grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)",
        fault="grpc.StatusCode.DEADLINE_EXCEEDED)",
        tests=(
            "tests/unit/ps_wire/test_errors.py::test_a_server_that_is_gone_or_about_to_stop_cannot_be_reached",
        ),
    ),
    Mutant(
        name="silence: a stream that is read when the server has stopped is logged as a bug",
        file="ps_server/rpc/errors.py",
        text="        with suppress(grpc.aio.BaseError):",
        fault="        with suppress(grpc.aio.UsageError):",
        tests=(STOPPED,),
    ),
    Mutant(
        name="silence: who was called a stranger before it was evicted never joins again",
        file="ps_worker/exchange/exchanges.py",
        text="            self._failure = prevailing(self._failure, error)\n",
        fault="            self._failure = self._failure or error\n",
        tests=(f"{EVICTED}::test_who_is_evicted_after_a_shard_has_called_it_a_stranger_joins_again",),
    ),
    Mutant(
        name="silence: a worker that leaves says that its connections broke",
        file="ps_worker/transport/connection.py",
        text="        if self._quiet.is_set():\n            return\n",
        fault="",
        tests=(
            "tests/component/connections/test_connecting.py::test_of_a_worker_that_leaves_it_is_not_said_that_it_is_not_taken_any_more",
        ),
    ),
)
