"""Kinds of options that several commands have, and how `--help` shows them.

Where an option has no value of its own, its text says what holds without it: tyro's own "(default: None)" says nothing.
"""

from pathlib import Path
from typing import Annotated

import tyro

_PRESET = "(default: the preset's)"

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]
Folder = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")]
Word = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]
Count = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]
Number = Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint="")]
Size = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint=_PRESET)]
Strength = Annotated[float | None, tyro.conf.arg(metavar="FLOAT", help_behavior_hint=_PRESET)]
Stepping = Annotated[str | None, tyro.conf.arg(metavar="euler|midpoint|splitting", help_behavior_hint=_PRESET)]
Switch = Annotated[bool | None, tyro.conf.arg(metavar="True|False", help_behavior_hint=_PRESET)]
Optimiser = Annotated[str, tyro.conf.arg(metavar="adamw|recipe|soap")]
