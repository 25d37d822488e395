"""A table between threads of the script and of its connections: answers are whole, and no step is lost."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, ItemsView, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import ps_worker as ps
from ps_wire.frames import frame as wire
from ps_wire.process import trace
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import BucketOptions, Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec
from ps_worker.exchange.exchange import Exchange
from ps_worker.table import Table
from tests.component.hosts import Host
from tests.component.sent import Sent
from tests.component.service import Cluster, fresh_name, run_workers
from tests.inside import link_of, tables_of
from tests.until import LIMIT_S, until

HYPER = Hyperparameters(((("lr", 1.0),),))
SPEC = TableSpec(
    number=0,
    parameters=(ParameterSpec(name="w", shape=(40, 70)),),
    optimizer=OptimizerSpec(name="SGD", hyperparameters=HYPER),
    buckets=BucketOptions(bucket_bytes=0, first_bucket_bytes=0, partition_bytes=4096),
)


class Played:
    """A table whose one shard is played by the test."""

    def __init__(self, kind: type[Exchange] = Exchange) -> None:
        self.exchange = kind(table=0, plan=Plan(SPEC, 1), worker=0, incarnation=1, start=HYPER)
        self.sent = Sent()
        self.exchange.connect([self.sent])  # type: ignore[list-item]
        self.table = Table(self.exchange, ("w",), 0, Host())

    def answer(self, *, step: int, value: float) -> None:
        """Every partition comes, as on a connection's thread, with this value everywhere."""
        for partition in self.exchange.partitions:
            payload = torch.full((partition.numel,), value).numpy().tobytes()
            self.exchange.receive(
                wire.Frame(
                    kind=wire.Kind.PULLED,
                    partition=partition.index,
                    step=step,
                    version=step,
                    meta=struct.pack("<IQ", 0, step),
                    payload=payload,
                )
            )

    def acknowledge(self, step: int) -> None:
        for partition in self.exchange.partitions:
            self.exchange.receive(wire.Frame(kind=wire.Kind.ACK, partition=partition.index, step=step))


class Out(dict[str, torch.Tensor]):
    """Where a pull copies to; the copy is held at its beginning until it may go on."""

    def __init__(self) -> None:
        super().__init__(w=torch.zeros(40, 70))
        self.copying, self.go_on = threading.Event(), threading.Event()
        self._script = threading.get_ident()

    def items(self) -> ItemsView[str, torch.Tensor]:
        if threading.get_ident() != self._script:
            self.copying.set()
            assert self.go_on.wait(LIMIT_S)
        return super().items()


def beside(body: Callable[[], Any]) -> Future[Any]:
    """Runs it on another thread."""
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(body())
        except BaseException as error:  # noqa: BLE001 - whoever asks gets it
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done


def asked_or_waits(it: Played) -> bool:
    """Whether a second pull has left, or a thread waits for what the exchange has under way."""
    waiting: Any = it.exchange.in_flight._changed
    return len(it.sent.of(wire.Kind.PULL)) == 2 or bool(waiting._waiters)


def test_a_pull_waits_until_what_was_answered_before_is_copied():
    """Flat memory is the earlier pull's until its copy is made: no later answer lands there before."""
    it, out = Played(), Out()
    first = it.table.pull(out=out)
    answering = beside(lambda: it.answer(step=0, value=1.0))
    assert out.copying.wait(LIMIT_S)
    second = beside(it.table.pull)
    until(lambda: asked_or_waits(it), "the second pull is there")
    it.answer(step=0, value=2.0)
    out.go_on.set()
    answering.result(LIMIT_S)
    assert first.result(LIMIT_S).values["w"].unique().tolist() == [1.0]
    pulled = second.result(LIMIT_S)
    it.answer(step=0, value=3.0)
    assert pulled.result(LIMIT_S).values["w"].unique().tolist() == [3.0]


def test_weights_that_are_read_at_the_end_wait_for_a_copy_too():
    """`finish` asks the exchange itself, whatever tables have under way."""
    it, out = Played(), Out()
    first = it.table.pull(out=out)
    answering = beside(lambda: it.answer(step=0, value=1.0))
    assert out.copying.wait(LIMIT_S)
    finishing = beside(lambda: it.exchange.pull(step=0, read=True))
    until(lambda: asked_or_waits(it), "finish is there")
    it.answer(step=0, value=2.0)
    out.go_on.set()
    answering.result(LIMIT_S)
    finishing.result(LIMIT_S)
    assert first.result(LIMIT_S).values["w"].unique().tolist() == [1.0]


def test_a_copy_that_cannot_be_made_is_the_error_of_who_asked():
    """The connection's thread goes on, and so does the table."""
    it, out = Played(), Out()
    pulled = it.table.pull(out=out)
    out["w"] = torch.zeros(3)
    out.go_on.set()
    beside(lambda: it.answer(step=0, value=1.0)).result(LIMIT_S)
    with pytest.raises(RuntimeError, match="size of tensor"):
        pulled.result(LIMIT_S)
    again = it.table.pull()
    it.answer(step=0, value=2.0)
    assert again.result(LIMIT_S).values["w"].unique().tolist() == [2.0]


def test_a_done_callback_finds_the_flat_memory_free():
    """What is done with an answer, on whichever thread, holds up nobody's next pull."""
    it = Played()
    done = threading.Event()
    go_on = threading.Event()
    first = it.table.pull()
    first.add_done_callback(lambda _: (done.set(), go_on.wait(LIMIT_S)))
    answering = beside(lambda: it.answer(step=0, value=1.0))
    assert done.wait(LIMIT_S)
    beside(it.table.pull).result(LIMIT_S / 2)
    assert len(it.sent.of(wire.Kind.PULL)) == 2
    go_on.set()
    answering.result(LIMIT_S)


class HeldClock(Exchange):
    """Holds whoever asks for a step's number on another thread than the one that made it."""

    def __init__(self, **given: Any) -> None:
        self.asking, self.go_on = threading.Event(), threading.Event()
        self._script = threading.get_ident()
        super().__init__(**given)
        in_flight: Any = self.in_flight
        self._step_of, in_flight.step_of = in_flight.step_of, self._held_step_of

    def _held_step_of(self, clock: int) -> int:
        step: int = self._step_of(clock)
        if threading.get_ident() != self._script and not self.in_flight._changed._is_owned():  # type: ignore[attr-defined]
            self.asking.set()
            assert self.go_on.wait(LIMIT_S)
        return step


def test_a_step_is_taken_by_the_script_alone():
    """An answer that comes while a step is counted takes none back: the next push is another step."""
    it = Played(HeldClock)
    exchange: Any = it.exchange
    pulled = it.table.pull()
    answering = beside(lambda: it.answer(step=0, value=1.0))
    until(lambda: exchange.asking.is_set() or pulled.done(), "the answer is there")
    it.table.push({"w": torch.ones(40, 70)})
    it.acknowledge(0)
    exchange.go_on.set()
    answering.result(LIMIT_S)
    pulled.result(LIMIT_S)
    assert it.table.step == 1
    it.table.push({"w": torch.ones(40, 70)})
    assert {frame.step for frame in it.sent.of(wire.Kind.PUSH)} == {0, 1}


class Overtaken(list[int]):
    """Shards of partitions; at the first look, an answer comes on another thread, if it may then."""

    def __init__(self, it: Played) -> None:
        super().__init__(partition.shard for partition in it.exchange.partitions)
        self._it: Played | None = it

    def __getitem__(self, index: Any) -> Any:
        it, self._it = self._it, None
        if it is not None:
            lock: Any = it.exchange.in_flight._changed
            answering = beside(lambda: it.answer(step=0, value=1.0))
            if not lock._is_owned():
                answering.result(LIMIT_S)
        return super().__getitem__(index)


def test_what_is_asked_for_does_not_change_while_the_question_is_written():
    """An answer to a part of it that has come again already, after a replay, waits."""
    it = Played()
    monitor: Any = it.exchange.in_flight
    monitor._shard_of = Overtaken(it)
    pulled = it.table.pull()
    assert pulled.result(LIMIT_S).values["w"].unique().tolist() == [1.0]
    assert len(it.sent.of(wire.Kind.PULL)) == 1


# -- which threads may call ------------------------------------------------------------------------------


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(ps.UsageError) as caught:
        call()
    return caught.value.message


def test_a_second_thread_inside_a_worker_is_refused_by_name():
    """Whoever is inside goes on as if nothing had been; then the other thread may call."""
    it, w = Played(), torch.ones(40, 70)
    it.table.pull()
    waiting = beside(it.table.pull)
    until(lambda: asked_or_waits(it), "a thread waits inside")
    for call in (it.table.pull, it.table.abstain, lambda: it.table.push({"w": w})):
        text = refused(call)
        assert "'MainThread' calls a worker while thread 'Thread-" in text
        assert "is inside" in text
    assert it.table.step == 0
    it.answer(step=0, value=1.0)
    pulled = waiting.result(LIMIT_S)
    it.answer(step=0, value=2.0)
    assert pulled.result(LIMIT_S).values["w"].unique().tolist() == [2.0]
    it.table.push({"w": w})
    assert it.table.step == 1


@pytest.mark.parametrize("carrier", ["auto", "tcp", "grpc"])
def test_a_callback_of_a_future_may_not_push_or_pull(cluster: Cluster, carrier: str):
    """It runs on the thread that receives what the call would wait for."""
    asked, called = threading.Event(), threading.Event()
    said: list[str] = []

    def body(worker: ps.Worker) -> None:
        table = worker.table({"w": torch.zeros(9)}, optimizer=ps.SGD(lr=1.0))
        if worker.rank:
            assert asked.wait(LIMIT_S)
        table.push({"w": torch.ones(9)})
        pulled = table.pull()
        if worker.rank == 0:
            pulled.add_done_callback(lambda _: (said.append(refused(table.pull)), called.set()))
            asked.set()
            assert called.wait(LIMIT_S)
        pulled.result(LIMIT_S)
        table.pull().result(LIMIT_S)
        worker.finish()

    run_workers(cluster, body, num_workers=2, carrier=carrier)
    (text,) = said
    assert "runs on the thread that receives answers" in text


def test_tables_of_one_worker_are_one(cluster: Cluster):
    """A thread inside one table keeps another out of all others, and of wrapped optimizers, by name."""
    waiting = threading.Barrier(2, timeout=LIMIT_S)

    def body(worker: ps.Worker) -> None:
        model = torch.nn.Linear(3, 2)
        optimizer = worker.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
        table = worker.table({"w": torch.zeros(9)}, optimizer=ps.SGD(lr=1.0))

        def closure() -> float:
            waiting.wait()
            waiting.wait()
            return 0.0

        stepping = beside(lambda: optimizer.step(closure))
        waiting.wait()
        for call in (table.pull, table.abstain, lambda: optimizer.step(lambda: 0.0)):
            assert "is inside a call of it" in refused(call)
        waiting.wait()
        stepping.result(LIMIT_S)
        table.pull().result(LIMIT_S)

    run_workers(cluster, body)


def test_threads_that_take_turns_share_a_worker(cluster: Cluster):
    """Two tables in two threads and a third that pulls both, under a lock of the script's: all counts."""
    steps = 25

    def body(worker: ps.Worker) -> None:
        turn = threading.Lock()
        tables = [worker.table({"w": torch.zeros(3000)}, optimizer=ps.SGD(lr=1.0)) for _ in range(2)]

        def push(table: ps.Table) -> None:
            for _ in range(steps):
                with turn:
                    pushed = table.push({"w": torch.full((3000,), -1.0)})
                pushed.result(LIMIT_S)

        def watch() -> None:
            for place in range(2 * steps):
                with turn:
                    pulled = tables[place % 2].pull()
                values = pulled.result(LIMIT_S).values["w"]
                assert len(values.unique()) == 1

        bodies = [lambda: push(tables[0]), lambda: push(tables[1]), watch]
        for done in [beside(body) for body in bodies]:
            done.result(LIMIT_S)
        for table in tables:
            assert table.step == steps
            assert table.pull().result(LIMIT_S).values["w"].unique().tolist() == [float(steps)]

    run_workers(cluster, body)


@pytest.mark.parametrize("carrier", ["shm", "uds", "tcp", "grpc"])
def test_pipelined_pulls_over_a_service_are_whole(cluster: Cluster, carrier: str):
    """Each answer is of one version: what it brought is what was pushed until then."""
    size, steps = 400_000, 40

    def body(worker: ps.Worker) -> None:
        table = worker.table({"w": torch.zeros(size)}, optimizer=ps.SGD(lr=1.0))
        pulls = []
        for _ in range(steps):
            table.push({"w": torch.full((size,), -1.0)})
            pulls.append(table.pull())
        pushed = [pull.result(LIMIT_S) for pull in pulls]
        assert [it.version for it in pushed] == list(range(1, steps + 1))
        assert [it.values["w"].unique().tolist() for it in pushed] == [[it + 1.0] for it in range(steps)]

    run_workers(cluster, body, carrier=carrier)


class Held:
    """A tracer that holds the thread which takes weights, once, when it is told to."""

    def __init__(self) -> None:
        self.armed, self.holding, self.go_on = threading.Event(), threading.Event(), threading.Event()

    @contextmanager
    def span(self, name: str, *about: Any, **_: Any) -> Iterator[None]:
        if name == "take an answer" and self.armed.is_set() and about[1].kind is wire.Kind.PULLED:
            self.armed.clear()
            self.holding.set()
            assert self.go_on.wait(LIMIT_S)
        yield


def test_an_answer_that_is_being_taken_when_a_worker_joins_again_is_waited_for(cluster: Cluster):
    """Else what an evicted incarnation had pulled could arrive as what the next one has asked for."""
    held, name = Held(), fresh_name()
    trace.install(held)

    def body(worker: ps.Worker) -> None:
        table = worker.table({"w": torch.zeros(30)}, optimizer=ps.SGD(lr=1.0))
        exchange: Any = table._exchange
        before = link_of(worker).incarnation
        held.armed.set()
        table.pull()
        assert held.holding.wait(LIMIT_S)
        cluster.evict(name, 0)
        until(lambda: exchange.in_flight.evicted, "it is evicted")
        joining = beside(link_of(worker).rejoiner.rejoin)
        with pytest.raises(TimeoutError):
            joining.result(1.0)
        assert exchange._incarnation == before
        held.go_on.set()
        joining.result(LIMIT_S)
        assert link_of(worker).incarnation > before
        assert table.pull().result(LIMIT_S).version == 0

    try:
        run_workers(cluster, body, job=name)
    finally:
        held.go_on.set()
        trace.install(None)


def test_hooks_of_several_devices_send_one_after_the_other(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    """Autograd has a thread for each device; here two threads complete two buckets at one time."""

    def body(worker: ps.Worker) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(30, 30), torch.nn.Linear(30, 30))
        sizes = ps.BucketOptions(bucket_bytes=4096, first_bucket_bytes=4096, partition_bytes=4096)
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer: Any = worker.wrap(plain, model, overlap=True, buckets=sizes)
        (gradients,) = tables_of(optimizer)
        first, second, *_ = gradients._buckets
        inside, go_on, overtaken = threading.Event(), threading.Event(), threading.Event()

        def copy_first() -> None:
            inside.set()
            assert go_on.wait(LIMIT_S)
            type(first).copy(first)

        def copy_second() -> None:
            overtaken.set()
            type(second).copy(second)

        monkeypatch.setattr(first, "copy", copy_first)
        monkeypatch.setattr(second, "copy", copy_second)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        threads = [beside(lambda: gradients._complete(first))]
        assert inside.wait(LIMIT_S)
        threads.append(beside(lambda: gradients._complete(second)))
        assert not overtaken.wait(0.5)
        go_on.set()
        for done in threads:
            done.result(LIMIT_S)
        monkeypatch.undo()
        optimizer.step()
        assert worker.stats().bytes_pushed == sum(it.nbytes for it in gradients.exchange.gradients.tensors)

    run_workers(cluster, body)
