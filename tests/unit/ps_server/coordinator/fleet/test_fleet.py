"""Decisions over the coordinator's streams: what gets lost with a stream is said again."""

from __future__ import annotations

import asyncio
import struct

import pytest
import torch

from ps_server.coordinator.fleet import fleet as orders
from ps_server.coordinator.fleet.fleet import Fleet
from ps_server.shard.orders import execute_order
from ps_server.shard.shard import Shard
from ps_wire.errors import Fenced, ServerNotReady
from ps_wire.frames import frame as wire
from ps_wire.frames.frame import PROTOCOL
from ps_wire.frames.messages import table_to_proto
from ps_wire.spec.plan import Plan
from ps_wire.v1 import coordinator_pb2 as pb
from ps_wire.v1 import spec_pb2
from tests.unit.ps_server.fleets import fleet_of
from tests.unit.ps_server.tables import Kept, draw, group, table_spec
from tests.until import LIMIT_S

SPEC = table_spec("SGD", group(lr=1.0), shapes=((9000,),), clip_grad_norm=1.0)
PLAN = Plan(SPEC, 2)


class Follower:
    """Shard 1 with a stream that the test breaks: it reports again when it follows again."""

    def __init__(self, shards: Fleet) -> None:
        self.shard = Shard(index=1, num_shards=2, memory_limit_bytes=None)
        self.reports: list[object] = []
        self.shard.reports.connect(self.reports.append)
        self._shards = shards
        self.outbox: asyncio.Queue[pb.Order | None] | None = None
        self.late: pb.OrderDone | None = None  # an answer that is held back

    async def follow(self, boot: bytes = b"b") -> None:
        register = pb.Register(protocol=PROTOCOL, shard=1, num_shards=2, address="b:1", boot=boot)
        self.outbox, _ = self._shards.register(register)
        assert (await self.outbox.get()).WhichOneof("kind") == "granted"

    def lose_stream(self) -> None:
        self._shards.unregister(1, self.outbox)

    def report(self) -> None:
        for norm in self.reports:
            self._shards.reported(1, norm)
        self.reports.clear()

    async def carry_out(self, *, hold: bool = False) -> str:
        """The next order; answered unless it is a decision, or the answer is to be held back."""
        async with asyncio.timeout(LIMIT_S):
            order = await self.outbox.get()
        done = await asyncio.to_thread(execute_order, self.shard, order)
        kind = str(order.WhichOneof("kind"))
        if hold:
            self.late = done
        elif kind != "decide":
            self._shards.answered(1, done)
        return kind

    def answer(self) -> None:
        self._shards.answered(1, self.late)


class Service:
    """Two shards with one worker that has a clipped table."""

    async def start(self) -> None:
        self.own = Shard(index=0, num_shards=2, memory_limit_bytes=None)
        self.shards = fleet_of(self.own, asyncio.get_running_loop())
        self.follower = Follower(self.shards)
        self.outlet = Kept()
        await self.follower.follow()
        job = spec_pb2.Job(name="j", consistency="bsp", num_workers=1)
        for order in (
            pb.Order(admit=pb.AdmitMember(job=job, worker=0, incarnation=1)),
            pb.Order(open_table=pb.OpenTable(job="j", table=table_to_proto(SPEC))),
            pb.Order(start_table=pb.StartTable(job="j", table=0)),
        ):
            await asyncio.gather(self.shards.order(order), self.follower.carry_out())
        for shard in (self.own, self.follower.shard):
            for cell in shard.table("j", 0).cells():
                cell.loaded = True

    def push(self, step: int) -> None:
        values = torch.zeros(PLAN.buckets[0].numel)
        values[:9000] = draw(SPEC, step)[0]
        for index in range(PLAN.num_partitions):
            part = PLAN.partition(index)
            payload = values[part.offset : part.offset + part.numel].numpy().tobytes()
            self.send(part.shard, wire.Kind.PUSH, step=step, partition=index, payload=payload)

    def send(self, shard: int, kind: wire.Kind, **fields) -> None:
        table = (self.own, self.follower.shard)[shard].table("j", 0)
        table.receive(wire.Frame(kind=kind, incarnation=1, **fields), self.outlet, member=True)

    async def pulled(self, step: int) -> None:
        """Waits until every partition answers with the version after this step."""
        indices = range(PLAN.num_partitions)
        for index in indices:
            meta = struct.pack("<I", index)
            self.send(PLAN.partition(index).shard, wire.Kind.PULL, step=step + 1, meta=meta)
        seen: set[int] = set()
        async with asyncio.timeout(LIMIT_S):
            while seen != set(indices):
                await asyncio.sleep(0)
                seen |= {f.partition for f in self.outlet.take() if f.kind is wire.Kind.PULLED}

    @property
    def versions(self) -> list[set[int]]:
        tables = [shard.table("j", 0) for shard in (self.own, self.follower.shard)]
        return [{cell.machine.version for cell in table.cells()} for table in tables]


def run(test) -> None:
    async def whole() -> None:
        service = Service()
        await service.start()
        await test(service)

    asyncio.run(whole())


def test_a_clipped_step_closes_on_all_shards():
    """The last report brings a decision to each; nobody answers it, and the next step follows."""

    async def steps(service: Service) -> None:
        for step in range(3):
            service.push(step)
            service.follower.report()
            assert await service.follower.carry_out() == "decide"
            await service.pulled(step)
        assert service.versions == [{3}, {3}]

    run(steps)


def test_a_report_that_was_lost_with_the_stream_is_made_again():
    """The shard says what is undecided when it follows again."""

    async def steps(service: Service) -> None:
        service.push(0)
        service.follower.reports.clear()
        service.follower.lose_stream()
        await service.follower.follow()
        service.follower.reports += service.follower.shard.pending()
        service.follower.report()
        assert await service.follower.carry_out() == "decide"
        await service.pulled(0)

    run(steps)


def test_a_decision_that_was_lost_with_the_stream_is_told_again():
    """Also one that was made while the shard did not follow; the other shard has closed by then."""

    async def steps(service: Service) -> None:
        service.push(0)
        service.follower.report()
        service.follower.lose_stream()  # with the decision in its outbox, or before it was made
        await service.follower.follow()
        service.follower.reports += service.follower.shard.pending()
        service.follower.report()
        assert await service.follower.carry_out() == "decide"
        await service.pulled(0)
        assert service.versions == [{1}, {1}]

    run(steps)


def test_a_decision_waits_for_no_order_that_is_under_way():
    """An order that a shard has not answered holds no step up."""

    async def steps(service: Service) -> None:
        other = asyncio.create_task(service.shards.order(pb.Order(drop_job=pb.DropJob(job="other"))))
        assert await service.follower.carry_out(hold=True) == "drop_job"
        service.push(0)
        service.follower.report()
        assert await service.follower.carry_out() == "decide"
        await service.pulled(0)
        assert not other.done()
        service.follower.answer()
        await other

    run(steps)


def test_a_decision_for_a_table_that_was_made_again_is_not_taken():
    """The number of its opening differs; one for a job that is gone is no news."""

    async def steps(service: Service) -> None:
        service.push(0)
        (norm,) = service.follower.shard.pending()
        for job, opening in (("j", norm.opening + 1), ("k", norm.opening)):
            decide = pb.Decide(job=job, table=0, opening=opening, step=0, scale=1.0)
            assert not execute_order(service.follower.shard, pb.Order(decide=decide)).HasField("refused")
        assert service.versions[1] == {0}

    run(steps)


DROP = pb.Order(drop_job=pb.DropJob(job="other"))


def test_an_order_whose_answer_was_lost_with_the_stream_is_sent_again():
    """Under the same number, so that the shard can tell; then it is answered."""

    async def steps(service: Service) -> None:
        ordering = asyncio.create_task(service.shards.order(DROP))
        assert await service.follower.carry_out(hold=True) == "drop_job"
        number = service.follower.late.number
        service.follower.lose_stream()
        await service.follower.follow()
        assert await service.follower.carry_out(hold=True) == "drop_job"
        assert service.follower.late.number == number
        service.follower.answer()
        async with asyncio.timeout(LIMIT_S):
            await ordering

    run(steps)


def test_an_order_is_not_sent_to_a_process_that_holds_nothing_of_what_it_is_about():
    """The shard was started again: what it would answer is of an empty shard."""

    async def steps(service: Service) -> None:
        ordering = asyncio.create_task(service.shards.order(DROP))
        assert await service.follower.carry_out(hold=True) == "drop_job"
        service.follower.lose_stream()
        await service.follower.follow(boot=b"another")
        with pytest.raises(ServerNotReady, match="come back without what it held"):
            async with asyncio.timeout(LIMIT_S):
                await ordering

    run(steps)


def test_no_order_is_sent_while_a_shard_is_away():
    """Shard 0 carries out none that the others do not; one that may be missed by them it does."""

    async def steps(service: Service) -> None:
        service.follower.lose_stream()
        remove = pb.Order(remove=pb.RemoveMember(job="j", worker=0, incarnation=1))
        with pytest.raises(ServerNotReady, match="not registered"):
            await service.shards.order(remove)
        assert service.own.is_member("j", 0, 1)
        await service.shards.order(remove, absent_ok=True)
        assert not service.own.is_member("j", 0, 1)

    run(steps)


@pytest.mark.parametrize(("least", "clock"), [(True, 0), (False, 1)])
def test_of_what_shards_answer_the_largest_counts_or_the_smallest(least, clock):
    """A worker's clock differs where its push has come to one of them."""

    async def steps(service: Service) -> None:
        for index in [it.index for it in PLAN.partitions_of_shard(0)]:
            payload = bytes(4 * PLAN.partition(index).numel)
            service.send(0, wire.Kind.PUSH, step=0, partition=index, payload=payload)
        fence = pb.Order(fence=pb.RemoveMember(job="j", worker=0, incarnation=1))
        found, _ = await asyncio.gather(
            service.shards.order(fence, least=least), service.follower.carry_out()
        )
        assert found == {0: clock}

    run(steps)


def test_the_second_round_of_a_change_waits_for_a_shard_that_is_on_its_way_back():
    """Steps stand still since the first round: the job is not given up for a stream that broke in between."""

    async def steps(service: Service) -> None:
        service.follower.lose_stream()
        evict = pb.EvictMember(job="j", worker=0, incarnation=1, limits={0: 0})
        changing = asyncio.create_task(service.shards.order(pb.Order(evict=evict), limit_s=None))
        await asyncio.sleep(0)
        assert not changing.done()
        await service.follower.follow()
        assert await service.follower.carry_out(hold=True) == "evict"
        service.follower.answer()
        await changing

    run(steps)


def test_a_holder_that_is_alive_keeps_its_shard_and_one_that_is_silent_gives_way(monkeypatch):
    """Whoever comes with another boot is refused, or let in when the limit is over."""
    monkeypatch.setattr(orders, "PROVE_LIMIT_S", 0.05)

    async def steps(service: Service) -> None:
        comes = pb.Register(protocol=PROTOCOL, shard=1, num_shards=2, address="c:1", boot=b"c")
        await service.shards.check_held(comes)
        silent = await service.follower.outbox.get()
        assert silent.WhichOneof("kind") == "prove"
        monkeypatch.setattr(orders, "PROVE_LIMIT_S", LIMIT_S)
        asking = asyncio.create_task(service.shards.check_held(comes))
        order = await service.follower.outbox.get()
        service.shards.answered(1, pb.OrderDone(number=order.number))
        with pytest.raises(Fenced, match="is held by a process that is alive"):
            await asking

    run(steps)


def test_a_successor_waits_for_the_holder_that_the_coordinator_before_it_knew(monkeypatch):
    """A second process of the shard may be the first to come; where the holder is gone, it is let in."""

    async def steps() -> None:
        before = Service()
        await before.start()
        own = Shard(index=0, num_shards=2, memory_limit_bytes=None)
        successor = fleet_of(own, asyncio.get_running_loop())
        successor.load(before.shards.dump(), [])
        comes = pb.Register(protocol=PROTOCOL, shard=1, num_shards=2, address="c:1", boot=b"c")
        asking = asyncio.create_task(successor.check_held(comes))
        await asyncio.sleep(0)
        holder = Follower(successor)
        await holder.follow()
        async with asyncio.timeout(LIMIT_S):
            order = await holder.outbox.get()
        successor.answered(1, pb.OrderDone(number=order.number))
        with pytest.raises(Fenced, match="is held by a process that is alive"):
            await asking
        monkeypatch.setattr(orders, "RETURN_LIMIT_S", 0.05)
        another = fleet_of(own, asyncio.get_running_loop())
        another.load(before.shards.dump(), [])
        await another.check_held(comes)
        for fleet in (before.shards, successor, another):
            fleet.close()

    asyncio.run(steps())


@pytest.mark.parametrize(("stopped", "said"), [(True, 0), (False, 1)])
def test_a_shard_that_is_gone_is_said_to_be_unless_all_servers_stop(
    stopped: bool, said: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(orders, "LOST_AFTER_S", 0.0)

    async def lose() -> None:
        own = Shard(index=0, num_shards=2, memory_limit_bytes=None)
        shards = fleet_of(own, asyncio.get_running_loop())
        follower = Follower(shards)
        await follower.follow()
        follower.lose_stream()
        if stopped:
            shards.close()
        for _ in range(3):  # turns of the loop
            await asyncio.sleep(0)
        shards.close()

    asyncio.run(lose())
    assert sum("no longer follows" in record.getMessage() for record in caplog.records) == said
