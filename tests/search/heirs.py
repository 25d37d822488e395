"""Two processes of shard 0 at a time, in a search of all states of a small job.

The heir is started while the elder lives, and has the state directory. Until the elder finds that out,
workers are with it, and so is shard 1, until its stream breaks and it comes to the heir. Then all go back, on
the heir and on shard 1, while the elder and workers still speak.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.search.coordinators import CoordinatorNode
from tests.search.servers import ServerMoves
from tests.search.service import World
from tests.search.shards import Input, ShardNode, register_of


class Heir(NamedTuple):
    """The newer process."""

    coordinator: CoordinatorNode
    shard: ShardNode
    down: tuple[Input, ...] = ()  # orders on their way to its own shard
    followed: bool = False  # by shard 1


@dataclass(slots=True, kw_only=True)
class HeirMoves(ServerMoves):
    """See the module's docstring."""

    def _of_heir(self, world: World, move: Callable[..., World], *what: Any) -> World:
        """What a move makes of a state where the heir has the place of the elder."""
        heir, (elder, shard) = world.heir, world.shards
        assert heir is not None
        after = move(
            world._replace(
                coordinator=heir.coordinator,
                shards=(heir.shard, shard),
                down=(heir.down, world.down[1]),
                heir=None,
            ),
            *what,
        )
        return after._replace(
            coordinator=world.coordinator,
            shards=(elder, after.shards[1]),
            down=(world.down[0], after.down[1]),
            heir=heir._replace(coordinator=after.coordinator, shard=after.shards[0], down=after.down[0]),
        )

    def tell_of_shard(self, world: World, shard: int, given: Input) -> World:
        """A shard tells the coordinator that it follows."""
        if shard == 1 and world.heir is not None and world.heir.followed:
            return self._of_heir(world, self.tell, given)
        return self.tell(world, given)

    # -- what can happen -----------------------------------------------------------------------------

    def double(self, world: World) -> World:
        """The heir is started."""
        coordinator = self.coordinators.crashed(world.coordinator)
        shard = self.shards.fresh(0, world.boots + 1, coordinator.own_shard)
        return world._replace(heirs=world.heirs - 1, boots=world.boots + 1, heir=Heir(coordinator, shard))

    def follow_heir(self, world: World) -> World:
        """The stream of shard 1 breaks, and its next one is to the heir."""
        world = self.broken(world)
        assert world.heir is not None
        world = world._replace(heir=world.heir._replace(followed=True))
        return self._of_heir(world, self.tell, ("register", register_of(world.shards[1])))

    def heir_carries_out(self, world: World) -> World:
        """The heir's own shard, what it was ordered."""
        return self._of_heir(world, self.deliver, 0)

    def heir_recovers(self, world: World) -> World:
        """All follow it: it takes them back to the snapshot."""
        return self._of_heir(world, self.recover)

    def fenced(self, world: World) -> World:
        """The elder finds that it is one, and ends; workers come to the heir."""
        heir = world.heir
        assert heir is not None
        down = heir.down, world.down[1] if heir.followed else ()
        world = self.replace_coordinator(world, heir.coordinator)
        world = world._replace(shards=(heir.shard, world.shards[1]), down=down, heir=None)
        return self._again(self.undo(world), 0)  # whom the elder has told the end, that is void
