"""What a script does between its job's going back and its own, in the rest of a body or behind its loops.

Nothing of that counts, and nothing of it keeps the script from going back.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import ps_worker as ps
from ps_server.coordinator import live_extras
from tests.component.service import Cluster, fresh_name, together
from tests.component.undone import BATCH, STEPS, Bodies, Undone
from tests.until import LIMIT_S

EPOCHS = 4
ALL = EPOCHS * STEPS


@pytest.fixture
def num_durable() -> int:
    return 1


@pytest.fixture
def undone(durable: Cluster, tmp_path: Path) -> Undone:
    return Undone(durable, tmp_path, fresh_name())


def test_a_loader_that_is_iterated_before_the_script_goes_back_hands_out_nothing_of_what_is_undone(undone):
    """It hears of it in a call at the head of a body: the loader's state is inside an epoch before."""
    bodies = Bodies(undone)
    with undone.connect() as worker:
        loader, trained = undone.wrap(worker), []
        for epoch in worker.epochs(EPOCHS):
            bodies.append(epoch)
            if bodies == [0, 1, 2]:
                undone.go_back()
            worker.barrier()
            trained.append(bodies.train(loader))
        worker.finish()
        assert bodies == [0, 1, 2, 1, 2, 3]
        assert trained[2] == 0
        assert worker.step == ALL


def test_a_second_loader_that_it_trains_on_takes_no_step_there(undone):
    """The job goes back in the iteration over the first one."""
    bodies = Bodies(undone)
    with undone.connect() as worker:
        loaders = undone.wrap(worker), undone.loader(worker)
        for epoch in worker.epochs(EPOCHS):
            bodies.append(epoch)
            bodies.train(loaders[0], back_at=4)
            for (x,) in loaders[1]:
                undone.step(x)
        worker.finish()
        assert bodies == [0, 1, 2, 1, 2, 3]
        assert worker.step == 2 * ALL


def test_what_it_steps_on_there_with_a_batch_in_hand_does_not_count(undone):
    """Also where gradients leave with backward: several steps with each batch, and one behind the last."""
    bodies = Bodies(undone)
    with undone.connect() as worker:
        loader = undone.wrap(worker)
        for epoch in worker.epochs(EPOCHS):
            bodies.append(epoch)
            for number, (x,) in enumerate(loader):
                if bodies == [0, 1] and number == 2:
                    undone.take()
                if bodies == [0, 1, 2] and number == 3:
                    undone.go_back()
                    undone.step(x)
                    undone.step(x)
                undone.step(x)
            if bodies == [0, 1, 2]:
                undone.step(x)
        worker.finish()
        assert bodies == [0, 1, 2, 1, 2, 3]
        assert worker.step == ALL


def test_steps_behind_a_call_in_which_it_heard_of_it_do_not_count(undone):
    """Neither a push into a table, which belongs to no batch that was there before."""
    bodies = Bodies(undone)
    with undone.connect() as worker:
        loader = undone.wrap(worker)
        table = worker.table({"count": torch.zeros(1)}, optimizer=ps.SGD(lr=1.0))

        def step(x: torch.Tensor) -> None:
            undone.step(x)
            table.push({"count": -torch.ones(1)})

        for epoch in worker.epochs(EPOCHS):
            bodies.append(epoch)
            for number, (x,) in enumerate(loader):
                if bodies == [0, 1] and number == 2:
                    undone.take()
                step(x)
            if bodies == [0, 1, 2]:
                undone.go_back()
                worker.barrier()
                step(torch.zeros(BATCH, 6))
                step(torch.zeros(BATCH, 6))
        worker.finish()
        assert bodies == [0, 1, 2, 1, 2, 3]
        assert (worker.step, table.step) == (ALL, ALL)
        assert table.pull().result(LIMIT_S).values["count"].item() == ALL


def test_a_pass_that_never_ends_over_a_loader_that_gives_nothing_is_told(undone):
    """Batches of two loaders: the shorter one is begun again and again."""
    bodies, heard = Bodies(undone), []

    def forever(loader):
        while True:
            yield from loader

    with undone.connect() as worker:
        loader = undone.wrap(worker)
        while True:
            batches = forever(loader)
            try:
                for epoch in worker.epochs(EPOCHS):
                    bodies.append(epoch)
                    bodies.train((next(batches) for _ in range(STEPS)), back_at=4)
                worker.finish()
                break
            except ps.RolledBack as error:
                heard.append(error.message)
        assert len(heard) == 1
        assert "goes on elsewhere" in heard[0]
        assert bodies[-1] == EPOCHS - 1


@pytest.mark.parametrize("told", [False, True], ids=["", "who has a callback"])
def test_one_whose_batches_are_its_own_there_does_not_step_for_ever(undone, told):
    """It has a loader of ours, to validate on, and steps until the job has so many steps.

    Who was told by its callback sees to the rest by itself.
    """
    bodies, heard = Bodies(undone), []
    settings = {"on_rollback": heard.append} if told else {}
    with undone.connect(**settings) as worker:
        loader, x, done = undone.wrap(worker), torch.zeros(BATCH, 6), False
        while True:
            try:
                for epoch in worker.epochs(EPOCHS):
                    bodies.append(epoch)
                    while worker.step < (epoch + 1) * STEPS:
                        if bodies == [0, 1] and worker.step == STEPS + 2:
                            undone.take()
                        if bodies == [0, 1, 2] and worker.step == 2 * STEPS + 2 and not done:
                            done = True
                            undone.go_back()
                        undone.step(x)
                    assert sum(1 for _ in loader) == STEPS
                worker.finish()
                break
            except ps.RolledBack as error:
                heard.append(error.message)
        assert len(heard) == 1
        assert told or "goes on elsewhere" in heard[0]
        assert bodies == [0, 1, 2, 1, 2, 3]
        assert worker.step == ALL


def test_a_gradient_that_is_left_over_there_is_in_no_step_that_counts(undone):
    """A backward without a step, behind the last one that is dropped; the script zeroes behind its steps."""
    bodies = Bodies(undone)
    with undone.connect() as worker:
        loader = undone.wrap(worker)
        for epoch in worker.epochs(EPOCHS):
            bodies.append(epoch)
            bodies.train(loader, back_at=4)
            if bodies == [0, 1, 2]:
                (1e6 * undone.model(torch.ones(BATCH, 6))).square().mean().backward()
        worker.finish()
        assert bodies == [0, 1, 2, 1, 2, 3]
        assert max(it.abs().max().item() for it in undone.model.parameters()) < 10.0


def test_a_script_that_trains_behind_its_loops_goes_on_there(undone):
    """The snapshot is of there, too."""
    with undone.connect() as worker:
        loader, done = undone.wrap(worker), False
        for _ in worker.epochs(2):
            for (x,) in loader:
                undone.step(x)
        for number, (x,) in enumerate(loader):
            if number == 1:
                undone.take()
            if number == 4 and not done:
                done = True
                undone.go_back()
            undone.step(x)
        worker.finish()
        assert worker.step == 3 * STEPS


@pytest.mark.parametrize("heard", ["in its iteration", "before it"])
def test_a_later_loader_of_the_body_does_not_pass_for_that_in_which_the_snapshot_was(undone, heard):
    """Both are trained on, one after the other, in the epoch of the snapshot."""
    bodies, done = Bodies(undone), False
    with undone.connect() as worker:
        loaders = undone.wrap(worker), undone.loader(worker)
        for epoch in worker.epochs(EPOCHS):
            bodies.append(epoch)
            bodies.train(loaders[0])
            if bodies == [0, 1] and heard == "before it":
                undone.go_back()
                worker.barrier()
            for number, (x,) in enumerate(loaders[1]):
                if bodies == [0, 1] and number == 2 and not done:
                    done = True
                    undone.go_back()
                undone.step(x)
        worker.finish()
        assert bodies == [0, 1, 1, 2, 3]
        assert worker.step == 2 * ALL


def test_pushes_into_a_table_do_not_count_there(undone):
    bodies = Bodies(undone)
    with undone.connect() as worker:
        loader = undone.wrap(worker)
        table = worker.table({"count": torch.zeros(1)}, optimizer=ps.SGD(lr=1.0))
        for epoch in worker.epochs(EPOCHS):
            bodies.append(epoch)
            for number, (x,) in enumerate(loader):
                if bodies == [0, 1] and number == 2:
                    undone.take()
                if bodies == [0, 1, 2] and number == 3:
                    undone.go_back()
                undone.step(x)
                table.push({"count": -torch.ones(1)})
            if bodies == [0, 1, 2]:
                table.push({"count": -torch.ones(1)})
        worker.finish()
        assert bodies == [0, 1, 2, 1, 2, 3]
        assert table.pull().result(LIMIT_S).values["count"].item() == table.step == ALL


@pytest.mark.parametrize("heard", ["in its validation", "in a call before"])
def test_a_validation_behind_the_epoch_that_is_gone_back_into_does_not_pass_for_that(undone, heard):
    """The loader to validate on hands out, as always; the loop goes to the rest of that epoch.

    Also one that is left by `break`, so that batches of it are in no step.
    """
    bodies, trained = Bodies(undone), []
    with undone.connect() as worker:
        loader, held_out = undone.wrap(worker), undone.loader(worker)
        for epoch in worker.epochs(EPOCHS):
            bodies.append(epoch)
            trained.append(bodies.train(loader))
            if bodies == [0, 1]:
                undone.go_back()
                if heard == "in a call before":
                    worker.barrier()
            assert sum(1 for _ in zip(range(3), held_out)) == 3  # noqa: B905 - the loader has more
        worker.finish()
        assert bodies == [0, 1, 1, 2, 3]
        assert 0 < trained[2] < STEPS
        assert worker.step == ALL


def test_a_validation_that_hears_of_it_itself_is_whole(undone):
    """Of an epoch that is undone; a metric over no batch is an error in many scripts."""
    bodies, passes = Bodies(undone), []
    with undone.connect() as worker:
        loader, held_out = undone.wrap(worker), undone.loader(worker)
        for epoch in worker.epochs(EPOCHS):
            bodies.append(epoch)
            bodies.train(loader)
            if bodies == [0, 1, 2]:
                undone.go_back()
            passes.append(sum(1 for _ in held_out))
        worker.finish()
        assert bodies == [0, 1, 2, 1, 2, 3]
        assert passes == [STEPS] * 6
        assert worker.step == ALL


def test_a_loader_that_was_left_by_break_is_at_its_next_epoch_when_its_job_goes_back(undone):
    """Some batches to validate on; else its state would be inside an epoch that the loop is beyond."""
    bodies = Bodies(undone)
    with undone.connect() as worker:
        loader, held_out = undone.wrap(worker), undone.loader(worker)
        for epoch in worker.epochs(EPOCHS):
            bodies.append(epoch)
            bodies.train(loader, back_at=4)
            for number, _ in enumerate(held_out):
                if number == 2:
                    break
        worker.finish()
        assert bodies == [0, 1, 2, 1, 2, 3]
        assert worker.step == ALL


@pytest.mark.parametrize("where", ["a pass behind the loops", "a break in the rest of a body"])
def test_a_script_that_is_behind_its_loops_is_not_let_finish_and_runs_them_again(undone, where):
    """The job would end at the snapshot, without a word."""
    bodies, heard, passed = Bodies(undone), [], []
    with undone.connect() as worker:
        loader, held_out = undone.wrap(worker), undone.loader(worker)
        while True:
            try:
                for epoch in worker.epochs(EPOCHS):
                    bodies.append(epoch)
                    bodies.train(loader, back_at=4 if where.startswith("a break") else None)
                    if bodies == [0, 1, 2] and where.startswith("a break"):
                        break
                if not heard and where.startswith("a pass"):
                    undone.go_back()
                    passed.append(sum(1 for _ in held_out))
                worker.finish()
                break
            except ps.RolledBack as error:
                heard.append(error.step)
        assert len(heard) == 1
        assert passed == []
        assert bodies[-3:] == [1, 2, 3]
        assert worker.step == ALL


def test_a_call_of_all_there_is_none_of_the_jobs(durable, tmp_path, monkeypatch):
    """One worker validates and then reduces there; the other one, a new process, is in the job already."""
    monkeypatch.setattr(live_extras, "JOINER_LIMIT_S", 0.0)  # the other takes no step: its note serves
    undone = Undone(durable, tmp_path, fresh_name())
    taken, gone, back, entered = (threading.Event() for _ in range(4))

    def process(rank: int, *, again: bool = False) -> list[tuple[int, float]]:
        mine = Undone(durable, tmp_path, undone.job)
        sums, left = [], again
        with mine.connect(num_workers=2, worker=rank) as worker:
            loader, held_out = mine.wrap(worker), mine.loader(worker)
            for epoch in worker.epochs(EPOCHS):
                if again:
                    entered.set()
                for number, (x,) in enumerate(loader):
                    if (rank, epoch, number) == (0, 1, 1):
                        undone.take()
                    if (epoch, number, left) == (2, 1, False):
                        left = True
                        if rank == 1:
                            assert taken.wait(LIMIT_S)
                            worker.leave("it is gone")
                            gone.set()
                            assert back.wait(LIMIT_S)
                            return []
                        undone.wait_taken()
                        taken.set()
                        assert gone.wait(LIMIT_S)
                        undone.go_back()
                        back.set()
                    mine.step(x)
                if (rank, epoch, len(sums)) == (0, 2, 2):
                    assert entered.wait(LIMIT_S)  # else this one may have passed an epoch before
                assert sum(1 for _ in held_out) == STEPS // 2
                sums.append((epoch, worker.all_reduce(float(epoch), "max")))
            worker.finish()
        return sums

    first, second = together([lambda: process(0), lambda: process(1) or process(1, again=True)], LIMIT_S)
    assert first == [(epoch, float(epoch)) for epoch in (0, 1, 2, 1, 2, 3)]
    assert second == [(epoch, float(epoch)) for epoch in (1, 2, 3)]


def test_a_validation_there_takes_no_share_of_the_epoch_that_the_script_comes_to(
    durable, tmp_path, monkeypatch
):
    """The other worker, a new process, has validated in that epoch by then."""
    monkeypatch.setattr(live_extras, "JOINER_LIMIT_S", 0.0)  # the other takes no step: its note serves
    undone = Undone(durable, tmp_path, fresh_name())
    fixed, taken, gone, back, ahead = (threading.Event() for _ in range(5))

    def process(rank: int, *, again: bool = False) -> list[tuple[int, int]]:
        mine = Undone(durable, tmp_path, undone.job)
        passes, left = [], again
        with mine.connect(num_workers=2, worker=rank, consistency="asp") as worker:
            loader, held_out = mine.wrap(worker), mine.loader(worker)
            for epoch in worker.epochs(EPOCHS):
                for number, (x,) in enumerate(loader):
                    if (rank, epoch, number) == (0, 1, 1):
                        undone.take()
                        fixed.set()
                    if (rank, epoch, number, left) == (1, 1, 1, False):
                        assert fixed.wait(LIMIT_S)
                    if (rank, epoch, number, left) == (1, 1, 2, False):
                        assert taken.wait(LIMIT_S)
                        worker.leave("it is gone")
                        gone.set()
                        assert back.wait(LIMIT_S)
                        return []
                    if (rank, epoch, number, left) == (0, 2, 1, False):
                        left = True
                        undone.wait_taken()
                        taken.set()
                        assert gone.wait(LIMIT_S)
                        undone.go_back()
                        back.set()
                    mine.step(x)
                if (rank, epoch, len(passes)) == (0, 2, 2):
                    assert ahead.wait(LIMIT_S)
                passes.append((epoch, sum(1 for _ in held_out)))
                if again:
                    ahead.set()
            worker.finish()
        return passes

    first, _ = together([lambda: process(0), lambda: process(1) or process(1, again=True)], LIMIT_S)
    assert [epoch for epoch, _ in first] == [0, 1, 2, 1, 2, 3]
    assert first[3] == (1, STEPS // 2)


@pytest.mark.parametrize("comes_again", [False, True], ids=["at the start", "in a process that comes again"])
def test_a_snapshot_that_is_taken_before_the_loop_is_gone_back_to_in_it(undone, comes_again):
    """A script validates first: a batch of that begins no step of an epoch that the script is not in."""
    bodies, done = [], False
    if comes_again:
        with undone.connect() as worker:
            loader = undone.wrap(worker)
            undone.loader(worker)
            for epoch in worker.epochs(EPOCHS):
                for number, (x,) in enumerate(loader):
                    if (epoch, number) == (1, 3):
                        worker.leave("it is gone")
                        break
                    undone.step(x)
                if epoch == 1:
                    break
    with undone.connect() as worker:
        loader, held_out = undone.wrap(worker), undone.loader(worker)
        undone.take()
        assert sum(1 for _ in held_out) == STEPS
        for epoch in worker.epochs(EPOCHS):
            bodies.append(epoch)
            for number, (x,) in enumerate(loader):
                if (epoch, number, done) == (2, 3, False):
                    done = True
                    undone.go_back()
                undone.step(x)
        worker.finish()
        assert bodies == ([1, 2, 1, 2, 3] if comes_again else [0, 1, 2, 0, 1, 2, 3])
        assert worker.step == ALL


def test_a_state_of_the_optimizer_that_is_loaded_there_is_not_the_jobs(undone):
    bodies, found = Bodies(undone), []
    with undone.connect() as worker:
        loader = undone.wrap(worker)
        for epoch in worker.epochs(EPOCHS):
            bodies.append(epoch)
            bodies.train(loader, back_at=4)
            if bodies == [0, 1, 2]:
                state = undone.optimizer.state_dict()
                for entry in state["state"].values():
                    entry["momentum_buffer"].fill_(77.0)
                undone.optimizer.load_state_dict(state)
                found = [it["momentum_buffer"] for it in undone.optimizer.state_dict()["state"].values()]
        worker.finish()
    assert bodies == [0, 1, 2, 1, 2, 3]
    assert found
    assert max(tensor.max().item() for tensor in found) < 77.0


def test_a_parameter_that_is_added_there_makes_no_table_of_the_job(undone):
    """A process cannot take it back: it ends, and the one that is started again goes back."""
    bodies, more = Bodies(undone), torch.nn.Linear(2, 2)
    undone.model.add_module("more", more)
    undone.model.forward = lambda x: torch.nn.functional.linear(x, undone.model.weight, undone.model.bias)
    with undone.connect() as worker:
        undone.optimizer = worker.wrap(
            torch.optim.SGD([undone.model.weight, undone.model.bias], lr=0.1), undone.model
        )
        loader = undone.loader(worker)
        for epoch in worker.epochs(3):
            bodies.append(epoch)
            bodies.train(loader, back_at=4)
            if bodies == [0, 1, 2]:
                with pytest.raises(ps.RolledBack, match="table 1 is made before the script has gone there"):
                    undone.optimizer.add_param_group({"params": list(more.parameters())})
        worker.finish()
        assert bodies == [0, 1, 2, 1, 2]
        assert worker.step == 3 * STEPS


def test_what_it_changes_there_is_in_no_note_that_another_process_goes_on_from(undone):
    """It comes back within a call that tells it nothing, at the end of a body; then it is killed."""
    bodies, ends = Bodies(undone), []

    with suppress(InterruptedError), undone.connect() as worker:
        loader, count = undone.wrap(worker), torch.zeros(1)
        worker.register_state("count", count)
        for epoch in worker.epochs(EPOCHS):
            bodies.append(epoch)
            for number, (x,) in enumerate(loader):
                if bodies == [0, 1] and number == 2:
                    undone.take()
                if bodies == [0, 1, 2, 1]:
                    raise InterruptedError
                undone.step(x)
            if epoch == 2:
                undone.go_back()
                worker.stop_job("enough")
            count += 1
    with undone.connect() as worker:
        loader, count = undone.wrap(worker), torch.zeros(1)
        worker.register_state("count", count)
        for epoch in worker.epochs(EPOCHS):
            bodies.train(loader)
            count += 1
            ends.append((epoch, worker.step, count.item()))
        worker.finish()
    assert ends == [(epoch, (epoch + 1) * STEPS, epoch + 1.0) for epoch in (1, 2, 3)]


def test_in_a_loop_of_its_own_a_decision_to_stop_is_undone_until_its_loader_goes_on(undone):
    heard, trained = [], []
    bodies = Bodies(undone)
    with undone.connect(on_rollback=heard.append) as worker:
        loader = undone.wrap(worker)
        for number in range(5):
            bodies.append(number)
            trained.append(bodies.train(loader, back_at=4))
            if number == 2:
                worker.stop_job("enough")
        worker.finish()
    assert len(heard) == 1
    assert trained[3] > 0
    assert trained[4] == STEPS
