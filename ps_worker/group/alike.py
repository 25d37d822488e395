"""The settings that all ranks of a group have to have alike: each says its own before anything else is said.

Else a rank would cut its data, or wait for the others, in another way, and end as if one had gone. It must
not know what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ps_wire.errors import JobMismatch
from ps_wire.text import one_line
from ps_worker.group.channel import Channel


def check(channel: Channel, hosts: Sequence[str], given: Mapping[str, str]) -> None:
    """All ranks call it, and raise the same.

    Args:
        channel: to the other ranks.
        hosts: by rank, for people.
        given: option -> value.

    Raises:
        JobMismatch: two ranks have other values; the option, both ranks and both values are named.
    """
    said = [one.fields.get("given") for one in channel.share("its settings", {"given": dict(given)})]
    every = [one if isinstance(one, dict) else {} for one in said]
    for name in given:
        first = every[0].get(name)
        for rank, one in enumerate(every):
            if one.get(name) != first:
                raise JobMismatch(
                    f"rank 0 on {hosts[0]} has {name} {one_line(str(first))}, and rank {rank} on "
                    f"{hosts[rank]} {one_line(str(one.get(name)))}: all ranks of a group take the same",
                    expected=str(first),
                    got=str(one.get(name)),
                )
