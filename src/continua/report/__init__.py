"""Floor 5: the only room that draws; it reads plain data and knows no model."""

from continua.report.compose import report_page, write_report
from continua.report.drawing import figure_svg, save_figures
from continua.report.page import Page, figure_html, mathml
from continua.report.scales import format_duration, format_number
from continua.report.solves import (
    PontryaginRecord,
    SolveRecord,
    pontryagin_figures,
    resolution_figures,
    solve_figures,
)

__all__ = [
    "Page", "PontryaginRecord", "SolveRecord", "figure_html", "figure_svg", "format_duration", "format_number",
    "mathml", "pontryagin_figures", "report_page", "resolution_figures", "save_figures", "solve_figures",
    "write_report",
]  # fmt: skip
