"""How depth was solved: the steps, what they cost, and the statistics of the solve."""

import dataclasses

from continua.core.errors import SolveError
from continua.runs import AbstractFigure, Note, Scale, Section, Stairs, Steps, Table
from continua.solve import Adaptive, DormandPrince, Solver, Stats
from continua.train.portrait.sitter import Sitter


def depth_section(sitter: Sitter, measured: str) -> Section:
    """Steps of the model's own solver beside those that an adaptive one would take, and the numbers of both."""
    tight = sitter.model.at(solver=Solver(DormandPrince(), Adaptive(1e-5, 1e-5)))
    own = sitter.solve()
    breaks = sitter.model.flow.bind(sitter.cloud, memory=sitter.memory, random=False).breaks
    solves = {"as trained": own.stats}
    try:
        adaptive = dataclasses.replace(sitter, model=tight).solve()
        solves["adaptive, 1e-5"] = adaptive.stats
        gap = float((own.x - adaptive.x).norm() / adaptive.x.norm().clamp_min(1e-30))
        told = f"The two ends X(Z) differ by {gap:.2g} of their norm: how much the model leans on its own grid. "
    except SolveError as wild:  # no reason to lose all other figures
        told = f"An adaptive solve at 1e-5 was not possible: {wild.reason}. "
    figures: list[AbstractFigure] = []
    stairs = tuple(_stairs(name, stats, i) for i, (name, stats) in enumerate(solves.items()) if len(stats.grid) > 1)
    if stairs:
        caption = (
            "Each bar is one accepted step, as wide and as high as it is long; an adaptive solve slows down where "
        )
        figures.append(
            Steps(
                title="Steps along depth",
                caption=caption + "the tokens move fast.",
                measured=measured,
                x=Scale("depth z"),
                y=Scale("step Δz"),
                stairs=stairs,
                notes=tuple(Note(z, "jump") for z in breaks) if len(breaks) <= 3 else (),
            )
        )
    figures.append(_table(solves, told, measured))
    prose = (
        "The tokens move along depth by an ordinary differential equation. What a forward pass costs is the number of "
        "evaluations of its velocity.",
    )
    return Section("Depth", prose, "frac{d X}{d z} = sum_p f_p(theta_p(z), X)", tuple(figures))


def _stairs(name: str, stats: Stats, place: int) -> Stairs:
    lengths = [b - a for a, b in zip(stats.grid[:-1], stats.grid[1:], strict=True)]
    return Stairs.of(name, stats.grid, lengths, place)


def _table(solves: dict[str, Stats], told: str, measured: str) -> Table:
    rows = tuple(
        (name, *(value(stats) for stats in solves.values()))
        for name, value in {
            "evaluations": lambda stats: stats.evaluations,
            "steps accepted": lambda stats: stats.accepted,
            "steps rejected": lambda stats: stats.rejected,
            "worst error": lambda stats: max(stats.errors) if any(stats.errors) else None,
        }.items()
    )
    told += "The worst error of a step is in units of the tolerance."
    columns = ("", *solves)
    return Table(title="Solver statistics", caption=told, measured=measured, columns=columns, rows=rows)
