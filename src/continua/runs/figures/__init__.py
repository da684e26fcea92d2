"""Figures as plain data: what was measured, without a line of drawing."""

from continua.runs.figures.figure import AbstractFigure, Note, Scale
from continua.runs.figures.heat import Heat
from continua.runs.figures.kept import keep_section, kept_sections
from continua.runs.figures.lines import Lines, Series
from continua.runs.figures.paths import Paths
from continua.runs.figures.plain import from_plain, to_plain
from continua.runs.figures.section import Section, Verdict
from continua.runs.figures.steps import Bars, Stairs, Steps
from continua.runs.figures.table import Table

__all__ = [
    "AbstractFigure", "Bars", "Heat", "Lines", "Note", "Paths", "Scale", "Section", "Series", "Stairs", "Steps",
    "Table", "Verdict", "from_plain", "keep_section", "kept_sections", "to_plain",
]  # fmt: skip
