"""A part of a report: what is asked, the formula, the pictures, and what came out."""

import dataclasses
from typing import final

from continua.runs.figures.figure import AbstractFigure


@final
@dataclasses.dataclass(frozen=True)
class Verdict:
    """What came out, in a sentence; `holds` is `None` where nothing was claimed."""

    text: str
    holds: bool | None = None


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Section:
    """A heading with prose, a formula, figures and a verdict.

    `prose` has one string a paragraph. `formula` is written as in the docstrings of this project, `alpha_{ij} =
    frac{w_j e^{beta ⟨q_i, k_j⟩}}{sum_l w_l e^{beta ⟨q_i, k_l⟩}}`; the page typesets it. `source` names the model that
    was measured: sections of one heading and several sources are shown together.
    """

    heading: str
    prose: tuple[str, ...] = ()
    formula: str = ""
    figures: tuple[AbstractFigure, ...] = ()
    verdict: Verdict | None = None
    source: str = ""
