"""Cut points of snapshots: the first steps of a running job that its workers can still capture. Pure.

Each worker answers with q[w], the first step whose beginning it has not passed, and begins none from there on
until the shards know the cut. So nothing beyond the cut can come to a shard before it knows: c[w] >= q[w].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ps_server.agreement.gate import Gate


def clocks_of_cut(aggregates: bool, held: Mapping[int, int]) -> dict[int, int]:
    """c[w] from the clocks that were held, worker -> the largest over all partitions.

    In BSP one step closes for all, so all are cut at the same one: the largest that anybody has begun. Those
    behind can reach it, since whoever began it had pulled the version that they wait for.
    """
    if aggregates:
        return dict.fromkeys(held, max(held.values(), default=0))
    return dict(held)


def clocks_of_snapshot(gate: Gate, asked: Mapping[int, int]) -> dict[int, int]:
    """c[w], the first step of each worker that is not in the snapshot, of one table.

    In BSP all are cut at one step. With a bound of staleness nobody is cut so far behind that others cannot
    reach their own cut while it waits at its: every step below c is one that the gate lets be taken.

    Args:
        gate: of the job.
        asked: worker -> q.
    """
    newest = max(asked.values(), default=0)
    if gate.aggregates:
        return dict.fromkeys(asked, newest)
    if gate.staleness is None:
        return dict(asked)
    return {worker: max(step, newest - 1 - gate.staleness) for worker, step in asked.items()}


def first_steps(
    gate: Gate, steps: Mapping[int, int], captured: Iterable[int], finished: Mapping[int, int]
) -> dict[int, int]:
    """Where workers go on from a cut, of one table: those who captured their state, and who has finished.

    All that one has pushed who finished before its step of the cut is in the snapshot: it has none to take
    again.

    Args:
        gate: of the job.
        steps: worker -> its first step that is not in the snapshot.
        captured: workers who have reached it.
        finished: worker -> steps that it has taken.
    """
    newest = max(steps.values(), default=0)
    over = {worker: newest if gate.aggregates else taken for worker, taken in finished.items()}
    return over | {worker: steps[worker] for worker in captured}


def workers_beyond(begun: Mapping[int, int], limits: Mapping[int, int]) -> list[int]:
    """Workers that have pushed beyond a cut; who is not in it, since it has left or came later, counts, too.

    Args:
        begun: worker -> the step after its last push, also of those who left when their step was open.
        limits: of the cut.
    """
    newest = max(limits.values(), default=0)
    return [worker for worker, clock in begun.items() if clock > limits.get(worker, newest)]
