"""A pipeline: the stages of a model on the ranks of one worker, and a step through all of them.

A rank keeps the parameters of its own stages; the others are on the meta device. What runs when is torch's
schedule; what a rank waits for is bounded by its group. Between two steps nothing is under way. It must not
know servers, tables or optimizers. Used by the script's thread.
"""

from __future__ import annotations

import socket
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise, zip_longest
from typing import Any

import torch
from torch import nn

from ps_wire.errors import GroupBroken, PipelineError
from ps_wire.process import trace
from ps_wire.text import one_line
from ps_worker.group.group import Group
from ps_worker.group.stage_traffic import StageTable
from ps_worker.pipeline import own_parameters, timetable
from ps_worker.pipeline.blocks import Blocks
from ps_worker.pipeline.halves import can_be_halved
from ps_worker.pipeline.schedules import Schedule, ranks_of, schedule_of
from ps_worker.pipeline.stage_module import CHECKPOINTS, Autocast, StageModule, shapes_of

LossFn = Callable[[Any, Any], torch.Tensor]
BESIDE_TAG = 1  # of what is sent beside the schedule, whose own is 0
HOLDERS = 2  # ranks that may hold one parameter
NO_EXAMPLE = "the example is a batch of the model's inputs: a tensor, or several in a tuple"


class Pipeline:
    """Made by `Worker.pipeline`. Each rank of the worker has one, and makes the same calls of it.

    Attributes:
        model: the whole; parameters of other stages are on the meta device.
        modules: the stages that this rank runs, in order.
        stages: the numbers of these.
        num_stages: of the whole pipeline.
        cuts: the first block of each stage, by name.
        microbatches: of a step.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Blocks,
        group: Group,
        *,
        cuts: Sequence[int],
        asked_stages: int,
        asked_cuts: Sequence[str] | None,
        schedule: str,
        microbatches: int,
        example: torch.Tensor | Sequence[torch.Tensor],
        checkpoint: str = "never",
        seed: str = "",
    ) -> None:
        """Keeps what belongs to this rank's stages of the model, and lets the rest go. All ranks call it.

        Args:
            model: the same on all ranks, or on the meta device.
            blocks: of it.
            group: of the ranks.
            cuts: the index of each stage's first block, as rank 0 has them.
            asked_stages: how many this rank wants.
            asked_cuts: names of blocks at which this rank wants them; None: as rank 0.
            schedule: a row of `SCHEDULES`.
            microbatches: that each batch is cut into.
            example: the model's inputs of one batch, on the device on which this rank's stages run.
            checkpoint: of `CHECKPOINTS`: whose activations are computed again in backward.
            seed: of first values, where the model has none: the same on all ranks of the job.

        Raises:
            PipelineError: the ranks differ, or what is asked for does not fit; on all ranks.
        """
        self.model = model
        self.microbatches = microbatches
        self._group = group
        self._rank, ranks = group.ranks.rank, group.ranks.size
        self._loss_fn: LossFn | None = None
        inputs = _inputs_of(example)
        self._example = [_split(it, microbatches) for it in inputs]
        self._device = inputs[0].device
        self._autocast = Autocast.of_script(self._device.type)
        names = [blocks.names[cut] for cut in cuts]
        wanted = names if asked_cuts is None else [names[0], *asked_cuts]
        self._check_alike(blocks, asked_stages, wanted, schedule, inputs, checkpoint)
        found = _schedule_of(schedule, ranks, len(cuts), microbatches)
        if checkpoint not in CHECKPOINTS:
            raise PipelineError(f"checkpoint is one of {', '.join(CHECKPOINTS)}, got {checkpoint!r}")
        self.num_stages = len(cuts)
        self.cuts = tuple(names)
        self.stages = found.stages_of(self._rank, ranks, self.num_stages)
        self._rank_of = rank_of = ranks_of(found, ranks, self.num_stages)
        self._last = rank_of[-1]
        bounds = [*cuts, len(blocks.names)]
        spans = list(pairwise(bounds))
        held = [set(blocks.parameter_names(*span)) for span in spans]
        of_rank = [
            set().union(*(held[stage] for stage in range(self.num_stages) if rank_of[stage] == rank))
            for rank in range(ranks)
        ]
        self._holders = own_parameters.shared_by(iter(of_rank))
        self._check_holders()
        kept = {name for name, of in self._holders.items() if self._rank in of}
        self._check_values(kept)
        parts = [blocks.stage(*span) for span in spans]
        self._shapes, halved = self._trial(parts)
        shapes = self._shapes
        own_parameters.check_first_values(model)
        own_parameters.let_go(model, kept)
        own_parameters.materialize(model, kept, self._device, seed)
        own_parameters.move([parts[stage] for stage in self.stages], self._device)
        self._buffers = self._owned_buffers(parts, rank_of)
        self._sent: dict[int, torch.Tensor] = {}  # buffers, as rank 0 has them
        self._kinds = [_described(self._buffer(index)) for index in range(len(self._buffers))]
        # Where nothing is to be trained up to the end of a stage, torch's schedule brings no gradient back.
        self._untrained = [
            stage
            for stage in self.stages[: -1 if self._rank == self._last else None]
            if not any(it.requires_grad for it in (*shapes[stage + 1], *parts[stage].parameters()))
        ]
        assert group.stages is not None, "the group is no pipeline"
        self._wires = group.stages
        self._sending: list[torch.distributed.Work] = []  # beside what the schedule sends
        self.modules = tuple(
            StageModule(
                parts[stage],
                mode=checkpoint,
                microbatches=microbatches,
                autocast=self._autocast,
                gives=shapes[stage + 1] if stage < self.num_stages - 1 else None,
            )
            for stage in self.stages
        )
        from torch.distributed.pipelining import PipelineStage  # noqa: PLC0415 - imports the compiler

        made = [
            PipelineStage(
                module,
                stage,
                self.num_stages,
                self._device,
                input_args=shapes[stage],
                output_args=shapes[stage + 1],
                group=self._wires,
                dw_builder=None if halved[stage] else _nothing_later,
            )
            for module, stage in zip(self.modules, self.stages, strict=True)
        ]
        self._made = made
        self._schedule = found.make(
            made if found.several else made[0],
            n_microbatches=microbatches,
            loss_fn=self._loss,
            scale_grads=False,
        )

    def _trial(self, parts: Sequence[nn.Module]) -> tuple[list[tuple[torch.Tensor, ...]], list[bool]]:
        """Gives what passes from stage to stage, without values, and whose backward may be in halves."""
        halved: list[bool] = []

        def look(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
            stage = len(halved)  # of the first one torch takes none apart
            halved.append(not stage or can_be_halved(inputs, outputs, last=stage == len(parts) - 1))

        return shapes_of(parts, self._example, self._autocast, look), halved

    # -- a step ----------------------------------------------------------------------------------------

    @trace.traced("pipeline step")
    def step(self, *batch: torch.Tensor, loss_fn: LossFn) -> torch.Tensor:
        """Forward and backward of one batch through all stages: gradients are there as after `backward()`.

        All ranks call it with the same batch: the first stage takes the inputs from it, the last the target.
        Gradients are the mean over micro-batches, and add up over several calls, as always in torch. No
        weight changes meanwhile.

        Args:
            batch: the model's inputs, and at last the target.
            loss_fn: of the model's output and the target of a micro-batch: a mean over its samples.

        Returns:
            The mean loss over micro-batches, on every rank, without a graph.

        Raises:
            PipelineError: the batch is not as the example was; the pipeline has ended.
            GroupBroken: another stage has gone, or does something else.
        """
        with self._together():
            inputs, target = self._checked(batch)
            self._check_untrained()
            self._group.channel.stand("pipe.step()")
            return self._step(inputs, target, loss_fn)

    @trace.traced("pipeline evaluation")
    @torch.no_grad()
    def evaluate(self, *batch: torch.Tensor, loss_fn: LossFn) -> torch.Tensor:
        """Forward of one batch through all stages, without backward. See `step` for arguments and errors.

        Whether modules train or evaluate is theirs, as always in torch: see `torch.nn.Module.eval`.

        Args:
            batch: as in `step`, of the example's shape.
            loss_fn: any figure of the model's output and the target of a micro-batch, such as the share of
                right answers: a mean over its samples.

        Returns:
            Its mean over micro-batches, on every rank.
        """
        with self._together():
            inputs, target = self._checked(batch)
            self._group.channel.stand("pipe.evaluate()")
            return self._share(self._forward(inputs, target, loss_fn))

    @contextmanager
    def _together(self) -> Iterator[None]:
        """An error of this stage ends the pipeline: the other stages wait for this one."""
        try:
            yield
        except GroupBroken:
            raise
        except BaseException as error:
            self._group.broken(f"stage {self._rank}: {type(error).__name__}: {one_line(str(error))}")
            raise

    def _step(self, inputs: Sequence[torch.Tensor], target: Any, loss_fn: LossFn) -> torch.Tensor:
        every = [it for module in self.modules for it in module.parameters()]
        parameters = [it for it in dict.fromkeys(every) if it.requires_grad]
        before = [None if it.grad is None or _is_zero(it.grad) else it.grad for it in parameters]
        for parameter, old in zip(parameters, before, strict=True):
            if old is not None:  # zeros are added to where they are
                parameter.grad = None
        losses = self._run(inputs, target, loss_fn)
        with torch.no_grad():
            for parameter, old in zip(parameters, before, strict=True):
                if parameter.grad is not None:
                    parameter.grad.div_(self.microbatches)
                if old is not None:
                    parameter.grad = old if parameter.grad is None else old.add_(parameter.grad)
        return self._share(losses)

    def _run(self, inputs: Sequence[torch.Tensor], target: Any, loss_fn: LossFn) -> list[float]:
        """One run of the schedule; gives the losses of micro-batches on the last stage, none elsewhere."""
        for module in self.modules:
            module.begin()
        losses: list[torch.Tensor] = []
        self._loss_fn = loss_fn
        last = {"target": target, "losses": losses} if self._rank == self._last else {}
        try:
            with self._autocast.backward():  # forwards have theirs
                self._schedule.step(*(inputs if 0 in self.stages else ()), return_outputs=False, **last)
        finally:
            self._loss_fn = None
            for stage in self._made:
                stage.clear_runtime_states()
        return [float(it.detach()) for it in losses]

    def _forward(self, inputs: Sequence[torch.Tensor], target: Any, loss_fn: LossFn) -> list[float]:
        """All micro-batches forward, stage by stage: not every schedule of torch's can leave out backward."""
        losses: list[float] = []
        targets = target.chunk(self.microbatches)
        held: list[Any] = list(zip(*(it.chunk(self.microbatches) for it in inputs), strict=True))
        for stage, module in zip(self.stages, self.modules, strict=True):
            source = self._rank_of[stage - 1] if stage else self._rank
            for number in range(self.microbatches):
                if source != self._rank:
                    held[number] = [torch.empty_like(it, device=self._device) for it in self._shapes[stage]]
                    for it in held[number]:
                        self._receive(it, source)
                made = module(*held[number])
                if stage == self.num_stages - 1:
                    losses.append(_figure(loss_fn(made, targets[number])))
                    continue
                held[number] = made if isinstance(made, (tuple, list)) else (made,)
                if self._rank_of[stage + 1] != self._rank:
                    for it in held[number]:
                        self._send(it, self._rank_of[stage + 1])
        return losses

    def _loss(self, output: Any, target: Any) -> torch.Tensor:
        assert self._loss_fn is not None
        with self._autocast.forward():
            return _one_number(self._loss_fn(output, target))

    def _share(self, losses: Sequence[float]) -> torch.Tensor:
        """All ranks get the loss, and rank 0 the buffers of others that have changed; no sender waits."""
        for sent in self._sending:
            sent.wait()  # of the step before, which all have had
        self._sending.clear()
        found = torch.tensor(losses or [0.0] * self.microbatches, dtype=torch.float64, device="cpu")
        if self._rank == self._last:
            for rank in range(self._group.ranks.size):
                if rank != self._rank:
                    self._send(found, rank)
        else:
            self._receive(found, self._last)
        if self._rank == 0:
            for rank in range(1, self._group.ranks.size):
                self._take_buffers(rank)
        else:
            self._give_buffers()
        return found.mean().float()

    def _send(self, tensor: torch.Tensor, rank: int) -> None:
        self._sending.append(self._wires.send([tensor], rank, BESIDE_TAG))

    def _receive(self, tensor: torch.Tensor, rank: int) -> None:
        self._wires.recv([tensor], rank, BESIDE_TAG).wait()

    # -- what there is ---------------------------------------------------------------------------------

    def stages_of(self, names: Sequence[str]) -> tuple[int, ...]:
        """By parameter, the rank whose bucket it is in.

        Raises:
            PipelineError: the model had no such parameter when it was cut.
        """
        for name in names:
            if name not in self._holders:
                raise PipelineError(
                    f"the model has a parameter {name!r} since worker.pipeline(), which no stage has: "
                    "register it before",
                    parameter=name,
                )
        return tuple(self._holders[name][0] for name in names)

    def table_of(self, parameters: Mapping[str, nn.Parameter]) -> StageTable:
        """A table of these parameters, as this rank holds it."""
        return StageTable(holders=[self._holders[name] for name in parameters])

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers of this rank's stages, by their names in the whole model, or several."""
        mine = {id(self.model.get_parameter(it)) for it, of in self._holders.items() if self._rank in of}
        mine |= {id(self.model.get_buffer(name)) for rank, name in self._buffers if rank == self._rank}
        whole = self.model.state_dict(keep_vars=True)
        return {name: it.detach() for name, it in whole.items() if id(it) in mine}

    # -- buffers ---------------------------------------------------------------------------------------

    def _owned_buffers(self, parts: Sequence[nn.Module], rank_of: Sequence[int]) -> list[tuple[int, str]]:
        """The buffers of the model, each with the rank whose stage has it; rank 0's where none has."""
        owner = {id(it): rank_of[stage] for stage, part in enumerate(parts) for it in part.buffers()}
        return [(owner.get(id(it), 0), name) for name, it in self.model.named_buffers()]

    def _buffer(self, index: int) -> torch.Tensor:
        return self.model.get_buffer(self._buffers[index][1])

    def _of_rank(self, rank: int) -> list[int]:
        return [index for index, (owner, _) in enumerate(self._buffers) if owner == rank]

    def _give_buffers(self) -> None:
        """To rank 0, which keeps all of them with the job: those that are not as it has them."""
        mine = self._of_rank(self._rank)
        changed = torch.tensor([self._has_changed(index) for index in mine], dtype=torch.uint8, device="cpu")
        if mine:
            self._send(changed, 0)
        for index, there in zip(mine, changed.tolist(), strict=True):
            if there:
                self._check_kind(index)
                self._send(_flat(self._sent[index]), 0)

    def _has_changed(self, index: int) -> bool:
        """Values are compared: the statistics of a BatchNorm change, and the tensor's version does not."""
        buffer, seen = self._buffer(index).detach(), self._sent.get(index)
        alike = seen is not None and (seen.dtype, seen.device) == (buffer.dtype, buffer.device)
        if seen is not None and alike and torch.equal(seen, buffer):
            return False
        self._sent[index] = buffer.clone()
        return True

    @torch.no_grad()
    def _take_buffers(self, rank: int) -> None:
        theirs = self._of_rank(rank)
        changed = torch.zeros(len(theirs), dtype=torch.uint8, device="cpu")
        if theirs:
            self._receive(changed, rank)
        for index, there in zip(theirs, changed.tolist(), strict=True):
            if there:
                buffer = self._buffer(index)
                received = torch.empty_like(_flat(buffer))
                self._receive(received, rank)
                buffer.copy_(received.view(buffer.shape))

    # -- checks ----------------------------------------------------------------------------------------

    def _check_alike(
        self,
        blocks: Blocks,
        stages: int,
        cuts: Sequence[str],
        schedule: str,
        inputs: Sequence[torch.Tensor],
        checkpoint: str,
    ) -> None:
        """Refuses, on all ranks, what one of them has otherwise than rank 0."""
        lists: dict[str, Sequence[str]] = {
            "the parameters of the model": [
                f"{name} {_described(it)}" for name, it in self.model.named_parameters(remove_duplicate=False)
            ],
            "the buffers of the model": [
                f"{name} {_described(it)}" for name, it in self.model.named_buffers()
            ],
            "the blocks of the model": blocks.names,
        }
        facts = {
            **{what: f"{len(lines)} with checksum {_checksum(lines)}" for what, lines in lists.items()},
            "the number of stages": stages,
            "cuts": ", ".join(cuts),
            "schedule": schedule,
            "microbatches": self.microbatches,
            "example": ", ".join(map(_described, inputs)),
            "checkpoint": checkpoint,
            "autocast": self._autocast,
        }
        said = self._group.channel.share(
            "worker.pipeline()", {"host": socket.gethostname(), "facts": list(map(str, facts.values()))}
        )
        hosts, had = ([one.fields[key] for one in said] for key in ("host", "facts"))
        for rank, theirs in enumerate(had):
            for index, what in enumerate(facts):
                if theirs[index] == had[0][index]:
                    continue
                pair = had[0][index], theirs[index]
                if what in lists:  # all ranks find the same one, and tell all of it
                    told = self._group.channel.share(f"worker.pipeline(): {what}", {"lines": lists[what]})
                    pair = _first_difference(told[0].fields["lines"], told[rank].fields["lines"])
                raise PipelineError(
                    f"stages differ in {what}: stage 0 on {hosts[0]} has {one_line(pair[0])}, stage "
                    f"{rank} on {hosts[rank]} has {one_line(pair[1])}",
                    what=what,
                    rank=rank,
                )

    def _check_holders(self) -> None:
        for name, _ in self.model.named_parameters():
            ranks = self._holders.setdefault(name, [0])  # of one that no stage uses
            if len(ranks) > HOLDERS:
                raise PipelineError(
                    f"parameter {name!r} is used on the ranks {', '.join(map(str, ranks))}: weights may be "
                    "tied over two; cut the model elsewhere, or untie them",
                    parameter=name,
                )

    def _check_values(self, kept: Collection[str]) -> None:
        """Refuses, on all ranks, a model of which one keeps what another pipeline has let go there."""
        bare = [name for name, it in self.model.named_parameters() if it.is_meta]
        gone = next((name for name in bare if name in kept), "")
        said = self._group.channel.share(
            "worker.pipeline(): parameters without values", {"bare": _checksum(bare), "gone": gone}
        )
        if all(one.fields["bare"] == said[0].fields["bare"] for one in said):
            return  # nobody has values of them: they get their first ones
        for rank, one in enumerate(said):
            if one.fields["gone"]:
                raise PipelineError(
                    f"parameter {one_line(one.fields['gone'])} of stage {rank} is on the meta device there, "
                    "and other stages have other parameters' values: a pipeline before this one has let it "
                    "go; make a new model, or cut this one as it was",
                    rank=rank,
                )

    def _check_kind(self, index: int) -> None:
        """Refuses a buffer that rank 0 has no room for."""
        now = _described(self._buffer(index))
        if now != self._kinds[index]:
            raise PipelineError(
                f"buffer {self._buffers[index][1]!r} was {self._kinds[index]} when the pipeline was made, "
                f"and is {now} now: a buffer of a stage keeps its shape and dtype"
            )

    def _check_untrained(self) -> None:
        """Refuses to train what no gradient comes back to."""
        for stage in self._untrained:
            module = self.modules[self.stages.index(stage)].inner
            for name, parameter in module.named_parameters():
                if parameter.requires_grad:
                    raise PipelineError(
                        f"parameter {name!r} is to be trained, and when the pipeline was made nothing was up "
                        f"to the end of its stage {stage}, so no gradient comes back there: freeze it behind "
                        "worker.pipeline(), not before",
                        parameter=name,
                    )

    def _checked(self, batch: Sequence[torch.Tensor]) -> tuple[Sequence[torch.Tensor], torch.Tensor]:
        """The inputs and the target of a batch."""
        self._autocast.check(Autocast.of_script(self._device.type))
        if len(batch) != len(self._example) + 1:
            raise PipelineError(
                f"pipeline.step() takes {len(self._example)} inputs and a target, got {len(batch)} tensors"
            )
        for one in batch:
            if not isinstance(one, torch.Tensor):
                raise PipelineError(
                    "pipeline.step() takes inputs and a target that are tensors, as each is cut into "
                    f"micro-batches, got a {type(one).__name__}"
                )
        *inputs, target = batch
        for given, parts in zip(inputs, self._example, strict=True):
            shape = [parts.shape[0] * self.microbatches, *parts.shape[1:]]
            if list(given.shape) != shape or given.dtype is not parts.dtype:
                made = f"{str(parts.dtype).removeprefix('torch.')}{shape}"
                raise PipelineError(
                    f"the pipeline was made with an example {made}, and the batch is {_described(given)}: "
                    "all batches have one shape; a loader that ends with a smaller one takes drop_last=True"
                )
        if target.shape[:1] != inputs[0].shape[:1]:
            raise PipelineError(
                f"a batch of {len(inputs[0])} has a target of shape {list(target.shape)}: it is cut into "
                "micro-batches as the inputs are"
            )
        return inputs, target


def _nothing_later() -> Callable[..., None]:
    """Where torch would do the first half of a backward, it was whole."""
    return lambda: None


def _schedule_of(name: str, ranks: int, stages: int, microbatches: int) -> Schedule:
    """The schedule of that name, if torch takes so many stages and micro-batches in it."""
    found = schedule_of(name, ranks=ranks, stages=stages, microbatches=microbatches)
    timetable.order_of(found, name, ranks=ranks, stages=stages, microbatches=microbatches)
    return found


def _inputs_of(example: torch.Tensor | Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    inputs = (example,) if isinstance(example, torch.Tensor) else tuple(example)
    if not inputs:
        raise PipelineError(NO_EXAMPLE)
    return inputs


def _split(example: torch.Tensor, microbatches: int) -> torch.Tensor:
    """The first micro-batch of an example, without values."""
    if not isinstance(example, torch.Tensor) or not example.dim():
        raise PipelineError(NO_EXAMPLE)
    if microbatches < 1:
        raise PipelineError(f"microbatches must be >= 1, got {microbatches}")
    size, rest = divmod(len(example), microbatches)
    if rest or not size:
        raise PipelineError(
            f"microbatches is {microbatches}, which does not divide a batch of {len(example)}: take a batch "
            f"size that is a multiple of {microbatches}"
        )
    return torch.empty_like(example[:size], device="meta")


def _is_zero(gradient: torch.Tensor) -> bool:
    """Whether there is nothing in it; of an accelerator's it is not asked, for it would have to catch up."""
    return gradient.is_cpu and not gradient.any()


def _figure(found: Any) -> float:
    """A loss, or a share of right answers, which a script may have made a number of."""
    return float(_one_number(found) if isinstance(found, torch.Tensor) else found)


def _one_number(loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        gave = _described(loss) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise PipelineError(f"loss_fn gives one number, a tensor: the mean of a micro-batch. It gave {gave}")
    return loss.clone() if loss._is_view() else loss  # schedules may detach it in place


def _flat(buffer: torch.Tensor) -> torch.Tensor:
    """A buffer as it travels."""
    return buffer.detach().reshape(-1).contiguous().cpu()


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _first_difference(ours: Sequence[str], theirs: Sequence[str]) -> tuple[str, str]:
    """Of two lists that are not alike, the first elements that differ."""
    return next(pair for pair in zip_longest(ours, theirs, fillvalue="no more") if pair[0] != pair[1])


def _checksum(lines: Sequence[str]) -> int:
    return zlib.crc32("\n".join(lines).encode())
