"""Runs the tutorials and writes their figures anew, those that are named or all:

python -m tools.figures series text
"""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).parents[1]
TUTORIALS = tuple(sorted(page.stem for page in (DOCS / "tutorials").glob("*.md")))
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
_SHOWN = re.compile(r"\]\((?:\.\./)?figures/([\w-]+\.svg)\)")


def run_page(name: str, folder: Path) -> list[str]:
    """Executes all blocks of a tutorial as one program inside a folder; the figures that its page shows, by name."""
    text = (DOCS / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    program = compile("\n".join(_BLOCK.findall(text)), f"docs/tutorials/{name}.md", "exec")
    with contextlib.chdir(folder):
        exec(program, {"__name__": "__main__"})
    return _SHOWN.findall(text)


def write_figures(names: Sequence[str]) -> None:
    """Runs the pages and keeps what they draw."""
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            for figure in run_page(name, Path(folder)):
                os.replace(Path(folder) / figure, DOCS / "figures" / figure)
                print(f"docs/figures/{figure}")


if __name__ == "__main__":
    write_figures(sys.argv[1:] or TUTORIALS)
