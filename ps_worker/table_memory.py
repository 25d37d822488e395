"""The flat memory of a table on a worker: gradients and weights. Shards on the same host may map both."""

from __future__ import annotations

from ps_wire.plan import Plan
from ps_wire.shared_memory import Layout
from ps_worker.flat import FlatBuckets
from ps_worker.memory import SharedMemory


class TableMemory:
    """See the module's docstring.

    Attributes:
        gradients: where hooks copy to; forked children see zeros there.
        weights: what parameters on the CPU are views of.
        descriptors: of both, for shards on this host; empty where they cannot map it.
    """

    def __init__(self, plan: Plan, *, shared: bool) -> None:
        """Allocates zeros.

        Args:
            plan: of the table.
            shared: whether shards may map it.

        Raises:
            OSError: the system has no descriptor left.
        """
        gradients = weights = None
        self.descriptors: tuple[int, ...] = ()
        if shared:
            nbytes = Layout(plan).nbytes
            gradients, weights = SharedMemory(nbytes, wiped=True), SharedMemory(nbytes)
            self.descriptors = gradients.descriptor, weights.descriptor
        self.gradients = FlatBuckets(plan, shared=gradients, private=True)
        self.weights = FlatBuckets(plan, shared=weights)
