"""Writes the pages of the site into one folder of plain markdown, from which the site is built:

    python -m tools.stage build/pages

The pages of docs/ with their formulas typeset, the reference made from the docstrings, and those pages of the
repository that the site shows too. The builder needs no hook of ours, so another one may take its place.
"""

import shutil
import sys
from pathlib import Path

from tools.formulas import replace_fences
from tools.reference import pages

ROOT = Path(__file__).parents[2]
OUTSIDE = ("CHANGELOG.md", "CONTRIBUTING.md")


def stage(folder: Path) -> Path:
    """Fills the folder, whatever was in it before."""
    if folder.exists():
        shutil.rmtree(folder)
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("tools"))
    for name in OUTSIDE:
        text = (ROOT / name).read_text(encoding="utf-8")
        (folder / name).write_text(text.replace("](docs/", "]("), encoding="utf-8")
    for page in folder.rglob("*.md"):
        page.write_text(_on_site(page.read_text(encoding="utf-8")), encoding="utf-8")
    (folder / "reference").mkdir()
    for name, text in pages().items():
        (folder / "reference" / name).write_text(text, encoding="utf-8")
    return folder


def _on_site(text: str) -> str:
    """A page as the site has it: what stands above docs/ in the repository is beside it there."""
    for name in OUTSIDE:
        text = text.replace(f"](../{name}", f"]({name}")
    return replace_fences(text.replace("](../README.md", "](index.md"))


if __name__ == "__main__":
    stage(Path(sys.argv[1]))
