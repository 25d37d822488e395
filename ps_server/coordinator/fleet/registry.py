"""The registry of shards above 0: the live process of each is the last one that was let in. Pure.

A process that starts draws a boot, which stands for what it holds: whoever comes with the same boot is a
process that follows again, or one that took up what its predecessor handed off. What it holds counts if it is
of the generation that the shard is of; else it is of a time before this coordinator, and lost. Who comes with
another boot holds nothing, and the one before it, if it lives, is fenced. A job that goes back changes
neither: who missed the order for it gets the same order again, so it is of no concern to other jobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ps_server.coordinator.fleet.generations import Generations
from ps_wire.errors import Fenced
from ps_wire.v1 import coordinator_pb2 as pb


@dataclass(slots=True)
class ShardRegistry:
    """The live process and the generation of each shard above 0. Not thread-safe.

    Attributes:
        generations: where new ones come from.
        known: shard -> boot and generation of its live process.
    """

    generations: Generations
    known: dict[int, tuple[bytes, int]] = field(default_factory=dict)

    def register(self, message: pb.Register) -> tuple[int, bool]:
        """A process comes as a shard.

        Returns:
            Its generation; what it holds is void if that is not the one that it had. And whether this
            shard's part of the jobs is lost: another process has held it, or it is void, for it has not heard
            yet which generation this coordinator has given it.

        Raises:
            Fenced: a newer process has this shard; or shards have followed a newer coordinator than this.
        """
        if self.generations.lasting and message.coordinator > self.generations.own:
            raise Fenced(
                f"shard {message.shard} has followed a coordinator of generation {message.coordinator}; this "
                f"one is of {self.generations.own}: another shard 0 was started after it, or its --state-dir "
                "was lost. If this is the only shard 0: give it its --state-dir again (a volume that "
                "outlives the process), or start all shards anew, with state directories that are empty",
                coordinator=message.coordinator,
            )
        boot, generation = self.known.get(message.shard, (message.boot, 0))
        lost = self.loses(message)
        if boot != message.boot and 0 < message.generation < generation:
            raise Fenced(
                f"another process was started as shard {message.shard} (generation {generation}, this one "
                f"has {message.generation}): this one stops, and what it holds is void",
                shard=message.shard,
                generation=generation,
            )
        if boot != message.boot or generation == 0:
            self.known[message.shard] = message.boot, self.generations.next()
        return self.known[message.shard][1], lost

    def loses(self, message: pb.Register) -> bool:
        """Whether this process, as its shard, does not hold what the shard is known to hold."""
        boot, generation = self.known.get(message.shard, (message.boot, 0))
        void = generation > 0 and message.generation not in (0, generation)
        return boot != message.boot or void

    def dump(self) -> list[list[Any]]:
        """Who the shards are, for JSON."""
        return [[shard, boot.hex(), generation] for shard, (boot, generation) in self.known.items()]

    def load(self, facts: Iterable[Any]) -> None:
        """Goes on with what was dumped."""
        self.known = {shard: (bytes.fromhex(boot), generation) for shard, boot, generation in facts}
