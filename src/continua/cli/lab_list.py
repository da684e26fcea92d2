"""The experiments of the lab, listed: as paragraphs for whoever reads a terminal, as lines for a pipe."""

import json
from collections.abc import Mapping

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from continua.lab import AbstractExperiment

_LINE = 100
"""Longer lines are hard to read, however wide the terminal is."""


def list_experiments(console: Console, experiments: Mapping[str, AbstractExperiment], as_json: bool) -> None:
    """Prints name, claim and source of each experiment.

    On a terminal each is a paragraph that fits it. In a pipe each is one line of three cells parted by tabs, so that
    `continua lab list | grep optimis` finds whole experiments; as JSON each is one object.
    """
    for name, experiment in experiments.items():
        if as_json:
            print(json.dumps({"experiment": name, "claim": experiment.claim, "source": experiment.source}))
        elif not console.is_terminal:
            print(name, experiment.claim, experiment.source, sep="\t")
        else:
            console.print(Text(name, "bold"))
            for text in (Text(experiment.claim), Text(experiment.source, "dim")):
                console.print(Padding(text, (0, 0, 0, 4)), width=min(console.width, _LINE))
    if console.is_terminal and not as_json:
        console.print(Text("\nMeasure one with `continua lab run NAME`; --quick takes seconds."))
