"""A plan as a person reads it: a table of stages, the schedule tick by tick, sentences on the bubble."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from ps_lab.pipeline.planning import Plan, Rows


def stages(plan: Plan) -> Table:
    """A row for each stage."""
    table = Table(title=f"{len(plan.stages)} stages, {plan.microbatches} micro-batches")
    table.add_column("stage", justify="right")
    table.add_column("modules", overflow="fold")
    for name in ("parameters", "forward ms", "backward ms", "memory MB", "holds", "sends kB"):
        table.add_column(name, justify="right")
    for number, stage in enumerate(plan.stages):
        last = number + 1 == len(plan.stages)
        run = plan.times is not None
        table.add_row(
            str(number),
            ", ".join(stage.modules),
            f"{stage.parameters:,}",
            f"{stage.forward_s * 1e3:.2f}" if run else "-",
            f"{stage.backward_s * 1e3:.2f}" if run else "-",
            f"{stage.memory_bytes / 1e6:.2f}",
            str(stage.in_flight),
            f"{stage.sent_bytes / 1e3:.1f}" if run and not last else "-",
        )
    return table


def schedule(plan: Plan, width: int) -> Iterator[str]:
    """The timetable in lines of at most `width` characters: rows are ranks, columns ticks."""
    several = len(plan.stages) > len(plan.ticks)
    cells = _cells(plan.ticks, several=several)
    columns = max(len(row) for row in cells)
    size = max(len(cell) for row in cells for cell in row) + 1
    label = max(len(_label(rank, several=several)) for rank in range(len(cells)))
    fit = max(1, (width - label - 1) // size)
    for begin in range(0, columns, fit):
        if begin:
            yield ""
        ticks = [str(it) for it in range(begin, min(begin + fit, columns))]
        yield f"{'tick':<{label}} {''.join(f'{it:<{size}}' for it in ticks)}".rstrip()
        for rank, row in enumerate(cells):
            shown = [*row, *[""] * (columns - len(row))][begin : begin + fit]
            line = "".join(f"{cell or '.':<{size}}" for cell in shown)
            yield f"{_label(rank, several=several):<{label}} {line}".rstrip()


def bubble(plan: Plan) -> Iterator[str]:
    """Sentences on idle time."""
    by_formula = ""
    if plan.formula is not None:
        count = len(plan.ticks)
        per_rank = len(plan.stages) // count
        what = "(S-1)/(M+S-1)" if per_rank == 1 else f"(R-1)/({per_rank}M+R-1)"
        by_formula = f"; of stages that take equally long it is {what} = {plan.formula:.1%}"
    yield f"bubble of {plan.schedule}: {plan.idle_share:.1%} of the ticks{by_formula}"
    if plan.times is not None:
        step_s = max(row[-1].end for row in plan.times)
        alone_s = plan.microbatches * sum(it.forward_s + it.backward_s for it in plan.stages)
        idle = 1.0 - alone_s / (step_s * len(plan.times))
        yield (
            f"with these times: a step of {step_s * 1e3:.1f} ms, in which ranks are idle {idle:.1%}; one "
            f"process would take {alone_s * 1e3:.1f} ms; what is sent takes no time here"
        )


def _label(rank: int, *, several: bool) -> str:
    return f"{'rank' if several else 'stage'} {rank}"


def _cells(rows: Rows, *, several: bool) -> list[list[str]]:
    cells = []
    for row in rows:
        line = [""] * round(row[-1].end)
        for it in row:
            action = it.action
            name = f"{action.kind}{action.microbatch}"
            for tick in range(round(it.begin), round(it.end)):
                line[tick] = f"{action.stage}{name}" if several else name
        cells.append(line)
    return cells
