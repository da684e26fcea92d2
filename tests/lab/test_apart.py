"""The lab and the benchmarks are applications: the library neither knows nor loads them."""

import subprocess
import sys

PROGRAM = """
import importlib, pathlib, sys
import continua

assert "ContinuousTransformer" in continua.__all__  # loads `continua.api`
apart = ("continua.lab", "continua.bench", "continua.cli", "continua.__main__")
source = pathlib.Path(continua.__path__[0])
for path in source.rglob("*.py"):
    module = ".".join(path.relative_to(source.parent).with_suffix("").parts).removesuffix(".__init__")
    if not module.startswith(apart):
        importlib.import_module(module)
print(*sorted(name for name in sys.modules if name.startswith(apart)))
print(sum(name.startswith("continua.") for name in sys.modules))
"""


def test_no_other_room_loads_the_lab_or_the_benchmarks():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    loaded, count = done.stdout.split("\n")[:2]
    assert loaded == "" and int(count) > 50
