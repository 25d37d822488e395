"""What a shard does with 16-bit payloads: pushes are widened, replies rounded once; the rest is refused."""

from __future__ import annotations

import pytest
import torch

from ps_server.agreement.gate import gate_of
from ps_server.shard.table.table import ShardTable
from ps_server.shard.transport.shared_regions import SharedRegions
from ps_wire.errors import PayloadMismatch
from ps_wire.frames import frame as wire
from ps_wire.frames.buffer import bytes_of
from ps_wire.frames.carrier import Message
from ps_wire.frames.frame import Kind
from ps_wire.frames.meta import listed
from ps_wire.sockets.shared_memory import AVAILABLE, Layout
from ps_wire.spec.codec import BF16, FP16
from ps_wire.spec.consistency import BSP
from ps_wire.spec.plan import Plan
from ps_worker.memory.os_memory import SharedMemory
from tests.unit.ps_server.tables import group, table_spec

START = 1 / 3
NUMEL = 1024  # of the partition, with padding


class Kept(list[wire.Frame]):
    """An `Outlet` that keeps frames with payloads where they lie."""

    def send(self, message: Message) -> None:
        self.append(message.frame)


class Table:
    """A started table on one shard with members 0 and 1 and one partition."""

    def __init__(self, dtype: str = "float32") -> None:
        spec = table_spec("SGD", group(lr=1.0), shapes=((NUMEL,),), dtype=dtype)
        self.table = ShardTable(job="j", spec=spec, plan=Plan(spec, 1), shard=0, gate=gate_of(BSP()))
        self.outlets = [Kept(), Kept()]
        for worker in range(2):
            self.table.join(worker, 1, 0)
        self.start = torch.full((NUMEL,), START, dtype=getattr(torch, dtype))
        self.send(Kind.LOAD, payload=self.start.numpy().tobytes())
        self.table.start()

    def send(self, kind: Kind, worker: int = 0, *, member: bool = True, **fields: object) -> None:
        frame = wire.Frame(kind=kind, worker=worker, incarnation=1, **fields)  # type: ignore[arg-type]
        self.table.receive(frame, self.outlets[worker], member=member)

    def push(self, step: int, value: float) -> None:
        """Both workers push this value at this step, in bf16."""
        payload = bytes_of(torch.full((NUMEL,), value, dtype=torch.bfloat16))
        for worker in range(2):
            self.send(Kind.PUSH, worker, step=step, payload=payload, codec=BF16)

    def pull(self, worker: int, step: int, codec: int, **fields: object) -> wire.Frame:
        self.send(Kind.PULL, worker, step=step, codec=codec, meta=listed([0]), **fields)
        return self.outlets[worker][-1]

    @property
    def weights(self) -> torch.Tensor:
        return self.table.cells()[0].values.now


def test_the_mean_is_over_widened_gradients():
    """The sum of these two is no bf16, and one of them alone changes no bf16 weight."""
    it = Table()
    ones = torch.ones(NUMEL, dtype=torch.bfloat16)
    for worker, values in enumerate((ones, ones * 2**-9)):
        it.send(Kind.PUSH, worker, payload=bytes_of(values), codec=BF16)
    mean = (torch.ones(NUMEL) + torch.full((NUMEL,), 2**-9)) / 2
    assert torch.equal(it.weights, it.start - mean)
    cell = it.table.cells()[0]
    assert cell.meters.bytes_in == it.start.nbytes + 2 * ones.nbytes


@pytest.mark.parametrize(("codec", "dtype"), [(BF16, torch.bfloat16), (FP16, torch.float16)])
def test_weights_are_rounded_once_for_all_who_ask(codec: int, dtype: torch.dtype):
    """One payload per version and codec; the next version leaves it as it is, for it may still be sent."""
    it = Table()
    first = it.pull(0, 0, codec)
    assert (first.codec, bytes(first.payload)) == (codec, bytes(bytes_of(it.start.to(dtype))))
    assert it.pull(1, 0, codec).payload is first.payload
    before = bytes(first.payload)
    it.push(0, 1.0)
    second = it.pull(1, 1, codec)
    assert bytes(second.payload) == bytes(bytes_of((it.start - 1).to(dtype)))
    assert bytes(first.payload) == before
    assert torch.equal(it.weights, it.start - 1)


def test_each_gets_the_codec_it_asked_for():
    """Also where both wait for the same step."""
    it = Table()
    for worker, codec in enumerate((0, BF16)):
        it.send(Kind.PUSH, worker, payload=bytes_of(torch.ones(NUMEL, dtype=torch.float16)), codec=FP16)
        it.send(Kind.PULL, worker, step=1, codec=codec, meta=listed([0]))
    exact, rounded = [frame for outlet in it.outlets for frame in outlet if frame.kind is Kind.PULLED]
    assert (exact.codec, len(exact.payload)) == (0, 4 * NUMEL)
    assert (rounded.codec, len(rounded.payload)) == (BF16, 2 * NUMEL)


@pytest.mark.parametrize("fields", [{"flags": wire.READ}, {"member": False}])
def test_what_is_read_past_the_gate_is_not_rounded(fields: dict[str, object]):
    it = Table()
    reply = it.pull(0, 0, BF16, **fields)
    assert (reply.codec, bytes(reply.payload)) == (0, it.start.numpy().tobytes())


@pytest.mark.skipif(not AVAILABLE, reason="memfd_create is Linux's")
def test_rounded_weights_travel_to_who_shares_memory():
    """It is made for numbers of the table's dtype, and keeps what was there."""
    it = Table()
    memory = [SharedMemory(Layout(it.table.plan).nbytes) for _ in ("gradients", "weights")]
    regions = SharedRegions(it.outlets[0])
    descriptors = tuple(each.descriptor for each in memory)
    regions.receive(wire.Frame(kind=Kind.SHARE, descriptors=descriptors), it.table)
    pull = wire.Frame(kind=Kind.PULL, incarnation=1, codec=BF16, meta=listed([0]))
    it.table.receive(pull, regions, member=True)
    reply = it.outlets[0][-1]
    assert (reply.codec, reply.flags & wire.SHARED) == (BF16, 0)
    assert bytes(reply.payload) == bytes(bytes_of(it.start.to(torch.bfloat16)))
    assert not any(memory[1])


def test_float64_is_never_rounded():
    it = Table("float64")
    reply = it.pull(0, 0, BF16)
    assert (reply.codec, bytes(reply.payload)) == (0, it.start.numpy().tobytes())
    with pytest.raises(PayloadMismatch, match=r"of float64 \(codec 0\), got \d+ bytes with codec 1"):
        it.push(0, 1.0)


@pytest.mark.parametrize(
    ("kind", "fields", "match"),
    [
        (
            Kind.PUSH,
            {"codec": 3, "payload": bytes(2 * NUMEL)},
            r"4096 bytes of float32 \(codec 0\), .* codec 3",
        ),
        (
            Kind.PUSH,
            {"codec": FP16, "payload": bytes(4)},
            r"takes 2048 bytes of float16 \(codec 2\), got 4 b",
        ),
        (Kind.PULL, {"codec": 3, "meta": listed([0])}, "cannot be sent with codec 3"),
    ],
)
def test_an_unknown_codec_or_another_length_is_refused_by_name(
    kind: Kind, fields: dict[str, object], match: str
):
    it = Table()
    with pytest.raises(PayloadMismatch, match=match):
        it.send(kind, **fields)
    assert it.table.ledger(0).received == 0


def test_first_weights_are_loaded_as_they_are():
    it = Table()
    it.table.started = False
    with pytest.raises(PayloadMismatch, match=r"float32 \(codec 0\), got 2048 bytes with codec 1"):
        it.send(Kind.LOAD, payload=bytes(2 * NUMEL), codec=BF16)
