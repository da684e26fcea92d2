"""Floor 5: the only room that draws; it reads plain data and knows no model."""

from continua.report.compose import report_page, write_report
from continua.report.drawing import figure_svg, save_figures
from continua.report.page import Page, figure_html, mathml
from continua.report.scales import format_duration, format_number
from continua.report.sections import pareto_front, resolution_figures

__all__ = [
    "Page", "figure_html", "figure_svg", "format_duration", "format_number", "mathml", "pareto_front",
    "report_page", "resolution_figures", "save_figures", "write_report",
]  # fmt: skip
