"""Sweeps: rows kept one by one, a killed sweep that goes on, processes, and a missing cluster."""

import json
import signal
import subprocess
import sys

import pytest

from continua.core.extras import MissingExtraError
from continua.lab import AbstractCell, CellStore, LocalProcesses, Ray, silent, sweep
from continua.lab.clusters.particles import Equiangular


class Counted(AbstractCell):
    """Leaves a mark each time it is measured."""

    place: int
    marks: str

    def measure(self):
        with open(self.marks, "a") as file:
            file.write(f"{self.place}\n")
        return {"square": self.place**2}


def test_a_sweep_measures_only_what_is_missing(tmp_path):
    marks, store = tmp_path / "marks", CellStore(tmp_path / "cells")
    cells = [Counted(i, str(marks)) for i in range(6)]
    for cell in cells[:4]:
        store.write(cell, cell.measure())
    damaged = tmp_path / "cells" / f"{cells[1].key()}.json"
    damaged.write_text('{"squ')
    seen = []
    rows = sweep("squares", cells, LocalProcesses(1), store, lambda name, done, total: seen.append((name, done, total)))
    assert [row["square"] for row in rows] == [0, 1, 4, 9, 16, 25]
    assert marks.read_text().split() == ["0", "1", "2", "3", "1", "4", "5"]
    assert seen == [("squares", done, 6) for done in (3, 4, 5, 6)]
    assert json.loads(damaged.read_text()) == {"square": 1}


SWEEP = """
import dataclasses, sys, time
from pathlib import Path
from continua.lab import AbstractCell, CellStore, LocalProcesses, sweep

class Slow(AbstractCell):
    place: int
    def measure(self):
        time.sleep(0.0 if self.place < 3 or sys.argv[2] == "go" else 60.0)
        return {"place": self.place}

def tell(name, done, total):
    print(done, flush=True)

rows = sweep("slow", [Slow(i) for i in range(5)], LocalProcesses(1), CellStore(Path(sys.argv[1])), tell)
print([row["place"] for row in rows])
"""


def test_a_killed_sweep_goes_on_where_it_stopped(tmp_path):
    command = [sys.executable, "-c", SWEEP, str(tmp_path / "cells")]
    killed = subprocess.Popen([*command, "wait"], stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None
    for wanted in ("0", "1", "2", "3"):
        assert killed.stdout.readline().strip() == wanted
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    assert len(list((tmp_path / "cells").glob("*.json"))) == 3
    resumed = subprocess.run([*command, "go"], capture_output=True, text=True, check=True)
    assert resumed.stdout.split("\n")[:4] == ["3", "4", "5", "[0, 1, 2, 3, 4]"]


def test_processes_give_the_rows_of_one():
    cells = [Equiangular(n, 1.0, 0.5) for n in (2, 3, 4)]
    alone, apart = (dict(engine.rows(cells)) for engine in (LocalProcesses(1), LocalProcesses(2)))
    assert alone == apart and sorted(alone) == [0, 1, 2]


def test_a_key_changes_with_every_field():
    keys = {Equiangular(n, beta, t).key() for n in (2, 3) for beta in (1.0, 2.0) for t in (0.5, 1.0)}
    assert len(keys) == 8
    assert Equiangular(2, 1.0, 0.5).key() == Equiangular(2, 1.0, 0.5).key()


def test_without_ray_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"'\.\[scale\]'"):
        list(Ray().rows([Equiangular(2, 1.0, 0.5)]))


def test_a_cluster_gives_the_rows_of_one_process_and_goes_on_after_a_kill(tmp_path):
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install -c constraints.txt -e '.[scale]'")
    cells = [Equiangular(n, 1.0, 0.5) for n in (2, 3, 4)]
    alone, apart = CellStore(tmp_path / "alone"), CellStore(tmp_path / "apart")
    sweep("overlaps", cells, LocalProcesses(1), alone, silent)
    apart.write(cells[1], {"kept": True})
    try:
        rows = sweep("overlaps", cells, Ray(), apart, silent)
    finally:
        ray.shutdown()
    assert rows[1] == {"kept": True}
    for cell in (cells[0], cells[2]):
        name = f"{cell.key()}.json"
        assert (tmp_path / "alone" / name).read_bytes() == (tmp_path / "apart" / name).read_bytes()


def test_a_sweep_needs_a_process():
    with pytest.raises(ValueError, match="processes = 0"):
        LocalProcesses(0)
