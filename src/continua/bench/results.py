"""What a benchmark leaves on disk: one JSON file with its numbers and how to get them again."""

import dataclasses
import importlib.metadata
import json
import platform
from collections.abc import Sequence
from pathlib import Path

from continua.bench.benchmark import AbstractBenchmark, Outcome


def written(folder: Path, name: str, command: Sequence[str], benchmark: AbstractBenchmark, outcome: Outcome) -> Path:
    """Writes `folder/name.json` and returns its path."""
    assert dataclasses.is_dataclass(benchmark), "the fields of a benchmark are its sizes"
    ratios = [dataclasses.asdict(ratio) | {"holds": ratio.holds} for ratio in outcome.ratios]
    record = {
        "benchmark": name,
        "claim": benchmark.claim,
        "command": " ".join(command),
        "ratios": ratios,
        "rows": outcome.rows,
        "settings": dataclasses.asdict(benchmark),
        "threads": benchmark.threads,
        "versions": {"python": platform.python_version()} | _versions("continua", "torch", "torchdiffeq"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return path


def _versions(*packages: str) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "absent"
    return found
