"""A timetable as a picture: a row for each rank, a box for each forward and backward, as SVG."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

from ps_lab.pipeline.planning import Plan

# Told apart by the colour-blind, too (Okabe and Ito), light enough for dark figures.
COLOURS = {"F": "#8ecae6", "B": "#f4b860", "I": "#f4b860", "W": "#7fc8a0"}
SAID = {"F": "forward", "B": "backward", "I": "backward to inputs", "W": "backward to weights"}
WIDTH, LEFT, TOP, ROW, BAR, RIGHT, BOTTOM = 960, 70, 54, 34, 28, 20, 44  # pixels
PLOT = WIDTH - LEFT - RIGHT
NARROW = 14  # pixels: a box that is smaller has no figure


def draw(plan: Plan) -> str:
    """The picture: in seconds where stages were measured, else in ticks."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: Plan) -> Iterator[str]:
    rows = plan.ticks if plan.times is None else plan.times
    end = max(row[-1].end for row in rows)
    scale = PLOT / end
    several = len(plan.stages) > len(rows)
    height = TOP + ROW * len(rows) + BOTTOM
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="12">'
    )
    yield f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    title = f"{plan.schedule}: {len(plan.stages)} stages, {plan.microbatches} micro-batches"
    yield f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>'
    busy = sum(it.end - it.begin for row in rows for it in row)
    unit = f"{end:.0f} ticks" if plan.times is None else f"{end * 1e3:.1f} ms"
    yield f'<text x="{LEFT}" y="40">{unit}, idle {1 - busy / (end * len(rows)):.1%}</text>'
    for rank, row in enumerate(rows):
        top = TOP + ROW * rank
        name = f"{'rank' if several else 'stage'} {rank}"
        yield f'<text x="{LEFT - 8}" y="{top + 19}" text-anchor="end">{name}</text>'
        yield f'<rect x="{LEFT}" y="{top}" width="{PLOT}" height="{BAR}" fill="#eeeeee"/>'
        for it in row:
            x, wide = LEFT + it.begin * scale, (it.end - it.begin) * scale
            colour = COLOURS[it.action.kind]
            yield (
                f'<rect x="{x:.1f}" y="{top}" width="{wide:.1f}" height="{BAR}" fill="{colour}" '
                'stroke="white"/>'
            )
            if wide >= NARROW:
                name = f"{it.action.stage}.{it.action.microbatch}" if several else str(it.action.microbatch)
                yield f'<text x="{x + wide / 2:.1f}" y="{top + 18}" text-anchor="middle">{name}</text>'
    kinds = sorted({it.action.kind for row in rows for it in row}, key="FBIW".index)
    x, y = LEFT, height - 26
    for kind in kinds:
        yield f'<rect x="{x}" y="{y}" width="14" height="14" fill="{COLOURS[kind]}"/>'
        yield f'<text x="{x + 20}" y="{y + 12}">{SAID[kind]}</text>'
        x += 160
    yield f'<rect x="{x}" y="{y}" width="14" height="14" fill="#eeeeee"/>'
    yield f'<text x="{x + 20}" y="{y + 12}">idle</text>'
    yield "</svg>"
