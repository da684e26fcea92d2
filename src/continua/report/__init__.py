"""Floor 5: the only room that draws; it reads plain data and knows no model."""

from continua.report.pontryagin_figure import PontryaginRecord, pontryagin_figure
from continua.report.record import SolveRecord
from continua.report.resolution_figure import resolution_figure
from continua.report.solve_figure import solve_figure

__all__ = ["PontryaginRecord", "SolveRecord", "pontryagin_figure", "resolution_figure", "solve_figure"]
