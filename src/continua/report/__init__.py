"""Floor 5: the only room that draws; it reads plain data and knows no model."""

from continua.report.compose import report_page, write_report
from continua.report.digits import lasting, shown
from continua.report.drawing import figure_html
from continua.report.formula import mathml
from continua.report.page import Page
from continua.report.pontryagin_figure import PontryaginRecord, pontryagin_figure
from continua.report.record import SolveRecord
from continua.report.resolution_figure import resolution_figure
from continua.report.solve_figure import solve_figure

__all__ = [
    "Page", "PontryaginRecord", "SolveRecord", "figure_html", "lasting", "mathml", "pontryagin_figure",
    "report_page", "resolution_figure", "shown", "solve_figure", "write_report",
]  # fmt: skip
