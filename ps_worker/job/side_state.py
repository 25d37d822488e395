"""State of a worker beside its tables: buffers, what a script has registered, generators, as tensors by name.

It must not know who asks for it, nor how it travels. Used by the thread that trains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from ps_worker.data.position import Positions
from ps_worker.membership.noting import SMALL_BYTES
from ps_worker.model import model_table
from ps_worker.model.extras import ModelExtras
from ps_worker.model.random_state import RandomState
from ps_worker.model.registered import PREFIX, Registered

RANDOM, SAMPLES = "@random", "@worker"  # what no other process takes: generators without a name, samples


class SideState:
    """The state of one worker that lies beside its tables, and its forms for those who take it.

    Attributes:
        registered: what goes along with the state outside tables.
        own: what only this worker goes on with, from a snapshot.
        random: generators without a name.
    """

    def __init__(self, say: Callable[[str], None], *, with_buffers: bool = True) -> None:
        """Has nothing but the generators.

        Args:
            say: tells the person at the terminal what cannot be kept.
            with_buffers: what it packs for who goes on here has them; else rank 0 of the group packs them.
        """
        self._with_buffers = with_buffers
        self.registered = Registered(say)
        self.own = Registered(say)
        self.random = RandomState()
        self.own.add(RANDOM, self.random)
        self._extras: dict[int, ModelExtras] = {}

    def __bool__(self) -> bool:
        """Whether there is anything that others take."""
        return bool(self._extras) or bool(self.registered)

    def add(self, table: int, extras: ModelExtras) -> None:
        """These go along with a table and are not in it."""
        self._extras[table] = extras

    def of_tables(self) -> dict[str, torch.Tensor]:
        """The tensors that go along with tables, as they are now, not copies."""
        return {
            f"{number}/{name}": tensor
            for number, extras in self._extras.items()
            for name, tensor in extras.tensors().items()
        }

    # -- on its way out --------------------------------------------------------------------------------

    def pack_start(self, table: int) -> bytes:
        """Packs what goes along with one table, for who starts the same."""
        extras = self._extras.get(table)
        return model_table.pack({} if extras is None else extras.tensors())

    def pack_final(self) -> bytes:
        """As the job keeps it when it has ended."""
        return model_table.pack(self.of_tables())

    def pack_live(self) -> bytes:
        """As a reader gets it."""
        return model_table.pack(self.of_tables() | self.registered.tensors())

    def pack_position(self, at: Positions) -> bytes:
        """As one who joins gets it, which goes on at this position."""
        return model_table.pack(self.of_tables() | self.registered.tensors() | at.pack())

    def pack_note(self, at: Positions) -> bytes:
        """As whoever goes on when this worker is gone gets it; large buffers are as at the start there."""
        outside = self._buffers()
        if sum(tensor.nbytes for tensor in outside.values()) > SMALL_BYTES:
            outside = {}
        return self._pack_whole(outside, at)

    def pack_cut(self, at: Positions) -> bytes:
        """As a snapshot has it."""
        return self._pack_whole(self._buffers(), at)

    def _buffers(self) -> dict[str, torch.Tensor]:
        return self.of_tables() if self._with_buffers else {}

    def _pack_whole(self, outside: Mapping[str, torch.Tensor], at: Positions) -> bytes:
        return model_table.pack({**outside, **self.registered.tensors(), **self.own.tensors(), **at.pack()})

    # -- on its way in ---------------------------------------------------------------------------------

    def load(
        self,
        state: Mapping[str, torch.Tensor],
        *,
        own: bool,
        kept: Callable[[int], Mapping[str, torch.Tensor]] | None = None,
    ) -> None:
        """Sets all of it, in place, as another worker has it.

        Args:
            state: what was packed.
            own: this worker had it.
            kept: gives what the job keeps with a table, of which there is nothing in `state`; None: that
                stays as it is.
        """
        for number, extras in self._extras.items():
            if found := of_table(state, number):
                extras.load(found)
            elif kept is not None:
                extras.load(kept(number))
        self.registered.load(state, own=own)
        if own:
            self.own.load(state, own=True)

    def load_final(self, kept: Callable[[int], Mapping[str, torch.Tensor]]) -> None:
        """The job has ended: what goes along with tables is as it was then."""
        for number, extras in self._extras.items():
            if extras:
                extras.load(kept(number))


def is_owners(name: str) -> bool:
    """Whether a tensor of this name is of what no other process takes."""
    return name.removeprefix(PREFIX).partition("/")[0] in (RANDOM, SAMPLES)


def has_own(state: Mapping[str, torch.Tensor]) -> bool:
    """Whether the process that has packed it is to go on with it as its own."""
    return f"{PREFIX}{RANDOM}" in state


def of_table(state: Mapping[str, torch.Tensor], number: int) -> dict[str, torch.Tensor]:
    """The part of it that goes along with this table."""
    prefix = f"{number}/"
    return {name.removeprefix(prefix): it for name, it in state.items() if name.startswith(prefix)}
