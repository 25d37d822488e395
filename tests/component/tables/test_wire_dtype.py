"""16-bit numbers on the way: what a worker sends and gets, beside others, and what it is told."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import ps_worker as ps
from ps_wire.errors import FrameMalformed, NonFiniteGradient
from ps_wire.frames import frame as wire
from ps_wire.spec.codec import BF16
from ps_wire.spec.plan import Plan
from ps_wire.spec.table import BucketOptions, Hyperparameters, OptimizerSpec, ParameterSpec, TableSpec
from ps_wire.spec.wire_dtype import WireDtype
from ps_worker import settings
from ps_worker.cli import app
from ps_worker.exchange.exchange import Exchange
from ps_worker.steps import Steps
from tests.component.models import Mlp, loss_of
from tests.component.reference import assert_same, batch, seeded
from tests.component.rounding import optimizer_of, reference, rounded, served, train
from tests.component.sent import Sent
from tests.component.service import Cluster, fresh_name, run_workers
from tests.until import LIMIT_S

HYPER = Hyperparameters(((("lr", 0.1),),))
SPEC = TableSpec(
    number=0,
    parameters=(
        ParameterSpec(name="a", shape=(40, 70)),
        ParameterSpec(name="b", shape=(5,), dtype="float64"),
    ),
    optimizer=OptimizerSpec(name="SGD", hyperparameters=HYPER),
    buckets=BucketOptions(bucket_bytes=0, first_bucket_bytes=0, partition_bytes=4096),
)


def pushed() -> tuple[Exchange, Sent]:
    """An exchange that rounds to bf16, with a push of ones and thirds under way."""
    plan = Plan(SPEC, 1)
    exchange = Exchange(table=0, plan=plan, worker=0, incarnation=1, start=HYPER, wire_dtype=WireDtype.BF16)
    connection = Sent()
    exchange.connect([connection])  # type: ignore[list-item]
    for view in exchange.gradients.views:
        view.fill_(1 / 3)
    present = [[True] * len(plan.pieces(partition)) for partition in exchange.partitions]
    exchange.push(exchange.partitions, step=0, weight=1.0, present=present)
    return exchange, connection


def test_a_worker_alone_rounds_as_one_of_many_does(monkeypatch: Any):
    monkeypatch.delenv("PS_SERVERS", raising=False)
    with ps.connect(wire_dtype="bf16") as worker:
        assert_same(train(worker, "bf16"), reference(["bf16"]))


@pytest.mark.parametrize("wire_dtypes", [("fp32", "bf16"), ("fp16", "fp32", "bf16")])
def test_workers_of_one_job_may_round_differently(cluster: Cluster, wire_dtypes: tuple[str, ...]):
    """The one with fp32 maps the servers' weights meanwhile."""
    expected = reference(wire_dtypes)
    for model in served(cluster, wire_dtypes):
        assert_same(model, expected)


@pytest.mark.parametrize("consistency", ["ssp:1", "asp"])
def test_without_a_mean_it_is_the_same(cluster: Cluster, consistency: str):
    def body(worker: ps.Worker) -> None:
        master = torch.zeros(3000)
        table = worker.table({"w": master}, optimizer=ps.SGD(lr=1.0))
        for step in range(3):
            gradient = batch(0, step, 3000)
            table.push({"w": gradient})
            master = master - rounded(gradient, "fp16")
            assert torch.equal(table.pull().result(LIMIT_S).values["w"], rounded(master, "fp16"))

    run_workers(cluster, body, consistency=consistency, wire_dtype="fp16")


def test_float64_travels_as_it_is(cluster: Cluster):
    def body(worker: ps.Worker) -> None:
        third = torch.full((500,), 1 / 3, dtype=torch.float64)
        start = {"exact": torch.zeros(500, dtype=torch.float64), "rounded": torch.zeros(500)}
        table = worker.table(start, optimizer=ps.SGD(lr=1.0))
        table.push({"exact": third, "rounded": third.float()})
        values = table.pull().result(LIMIT_S).values
        assert torch.equal(values["exact"], -third)
        assert torch.equal(values["rounded"], -rounded(third.float(), "bf16"))

    run_workers(cluster, body, wire_dtype="bf16")


def test_a_push_that_is_sent_again_has_the_same_bytes():
    """Also if the gradient it was rounded from is not what it was any more."""
    exchange, connection = pushed()
    first = [(frame.partition, frame.codec, bytes(frame.payload)) for frame in connection.frames]
    for view in exchange.gradients.views[:1]:
        view.zero_()
    again = [frame for frame in exchange.replay(0) if frame.kind is wire.Kind.PUSH]
    assert [(frame.partition, frame.codec, bytes(frame.payload)) for frame in again] == first
    codecs = {
        exchange.plan.buckets[exchange.partitions[index].bucket].dtype: codec for index, codec, _ in first
    }
    assert codecs == {"float32": BF16, "float64": 0}


def test_bytes_are_counted_as_they_travel():
    """Of a push, and of the weights that come back."""
    exchange, connection = pushed()
    assert exchange.bytes_pushed == sum(len(frame.payload) for frame in connection.frames)
    exchange.pull(step=1)
    for sent in [frame for frame in connection.frames if frame.kind is wire.Kind.PUSH]:
        place = {"table": 0, "partition": sent.partition, "step": 1, "version": 1}
        exchange.receive(wire.Frame(kind=wire.Kind.PULLED, codec=sent.codec, payload=sent.payload, **place))
    exchange.wait_pulled()
    assert exchange.in_flight.bytes_pulled == exchange.bytes_pushed
    assert torch.equal(exchange.weights.views[0], rounded(exchange.gradients.views[0], "bf16"))


def test_what_is_read_past_the_gate_is_asked_for_as_it_is():
    exchange, connection = pushed()
    exchange.pull(step=1)
    exchange.pull(step=1, read=True)
    exchange.pull(step=1, cut=True)
    assert [frame.codec for frame in connection.frames if frame.kind is wire.Kind.PULL] == [BF16, 0, 0]


@pytest.mark.parametrize("codec", [0, 2, 9])
def test_weights_that_are_not_as_many_as_their_codec_says_end_the_exchange(codec: int):
    exchange, _ = pushed()
    exchange.pull(step=1)
    numel = exchange.partitions[0].numel
    payload = bytes((4 if codec == BF16 else 3) * numel)
    exchange.receive(wire.Frame(kind=wire.Kind.PULLED, table=0, step=1, codec=codec, payload=payload))
    with pytest.raises(FrameMalformed, match=rf"with {3 * numel} bytes of codec {codec}"):
        exchange.wait_pulled()


@pytest.mark.parametrize(("wire_dtype", "named"), [("fp16", True), ("bf16", False)])
def test_a_gradient_beyond_fp16_is_refused_with_the_remedy(one_shard: Cluster, wire_dtype: str, named: bool):
    """bf16 carries it; where that travels, what is infinite was so before."""

    def body(worker: ps.Worker) -> None:
        table = worker.table({"w": torch.zeros(3)}, optimizer=ps.SGD(lr=1.0))
        table.push({"w": torch.full((3,), 65536.0)}).result(LIMIT_S)
        if not named:
            assert torch.equal(table.pull().result(LIMIT_S).values["w"], torch.full((3,), -65536.0))
            table.push({"w": torch.full((3,), float("inf"))}).result(LIMIT_S)
        with pytest.raises(NonFiniteGradient, match="parameter 'w' of worker 0") as failed:
            worker.finish()
        assert (
            "as fp16, where what is beyond 65504 is infinite: --wire-dtype bf16" in str(failed.value)
        ) == named

    run_workers(one_shard, body, wire_dtype=wire_dtype)


def test_auto_passes_over_shared_memory_and_says_so(cluster: Cluster, monkeypatch: Any):
    said: list[str] = []
    monkeypatch.setattr(Steps, "say", lambda self, text: said.append(text))

    def body(worker: ps.Worker) -> None:
        worker.table({"w": torch.zeros(300)}, optimizer=ps.SGD(lr=1.0)).pull().result(LIMIT_S)

    run_workers(cluster, body, wire_dtype="bf16")
    (line,) = [line for line in said if line.startswith("data")]
    assert line.startswith("data goes over uds (shm: a 16-bit wire dtype sends numbers of its own")


def test_a_reader_gets_the_weights_of_the_servers(cluster: Cluster, monkeypatch: Any):
    """Those that the worker itself gets at the end, whatever the environment says."""
    monkeypatch.setenv("PS_WIRE_DTYPE", "bf16")
    job = fresh_name()

    def body(worker: ps.Worker) -> None:
        model, seen = seeded(Mlp), seeded(Mlp)
        optimizer = worker.wrap(optimizer_of(model), model)
        loss_of(model, 0, 0).backward()
        optimizer.step()
        with ps.connect(role="reader", servers=cluster.servers, job=job) as reader:
            reader.read(seen)
        assert not torch.equal(seen.first.weight, model.first.weight)
        worker.finish()
        assert_same(seen, model)

    run_workers(cluster, body, job=job)


# -- settings ------------------------------------------------------------------------------------------


def test_it_is_a_setting_and_an_environment_variable():
    servers = {"PS_SERVERS": "h:1"}
    assert settings.read(servers).wire_dtype is WireDtype.FP32
    assert settings.read(servers | {"PS_WIRE_DTYPE": " bf16 "}).wire_dtype is WireDtype.BF16
    assert settings.read(servers | {"PS_WIRE_DTYPE": "bf16"}, wire_dtype="fp16").wire_dtype is WireDtype.FP16


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"wire_dtype": "fp8"}, r"unknown wire_dtype 'fp8'; valid are: fp32, bf16, fp16 \(PS_WIRE_DTYPE\)"),
        (
            {"wire_dtype": "bf16", "carrier": "shm"},
            r"PS_WIRE_DTYPE\) is bf16, .* use carrier uds, or wire_dty",
        ),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(given: dict[str, str], match: str):
    with pytest.raises(ps.UsageError, match=match):
        settings.read({"PS_SERVERS": "h:1"}, **given)


def test_ps_worker_hands_it_to_the_script(tmp_path: Path, monkeypatch: Any):
    script = tmp_path / "shows.py"
    script.write_text("import os\nprint(os.environ['PS_WIRE_DTYPE'])\n")
    monkeypatch.setattr("os.environ", {})
    monkeypatch.setattr("sys.argv", [*sys.argv])
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr("ps_worker.process.stopping.install", lambda *_: None)  # signals are the tests' own
    words = ["--servers", "none", "--wire-dtype", "bf16", str(script)]
    assert CliRunner().invoke(app, words).stdout.split() == ["bf16"]
