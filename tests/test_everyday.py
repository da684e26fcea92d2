"""Five everyday tasks take no more lines than with the libraries that people use for them today."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "index.md").read_text(encoding="utf-8")
TASKS = {section.partition("\n")[0]: section for section in PAGE.split("\n### ")[1:]}


def counted_lines(block: str) -> int:
    """Lines that do the work: between the marks where there are any, without blank lines and comments."""
    inside = re.search(r"# count from here\n(.*)# to here", block, re.DOTALL)
    lines = (inside.group(1) if inside else block).splitlines()
    return sum(1 for line in lines if line.strip() and not line.strip().startswith("#"))


@pytest.mark.parametrize("task", TASKS)
def test_a_task_takes_no_more_lines_than_elsewhere(task):
    ours, *theirs = re.findall(r"```(?:python|py)\n(.*?)```", TASKS[task], re.DOTALL)
    assert theirs, "nothing stands beside it"
    assert counted_lines(ours) <= min(counted_lines(block) for block in theirs)


def test_there_are_five_tasks():
    assert len(TASKS) == 5
