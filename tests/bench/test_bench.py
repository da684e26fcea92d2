"""Benchmarks run at small sizes and leave what a reader needs to repeat them; how fast they are is not tested."""

import dataclasses
import functools
import json
import math
from typing import final

import pytest
import torch

from continua.bench.axes import _REFINED, AxesCost
from continua.bench.benchmark import (
    AbstractBenchmark,
    BenchResult,
    Ratio,
    median_ratio,
    sum_rounds,
    time_in_turn,
    write_result,
)
from continua.bench.command import BENCHMARKS
from continua.bench.memory import peak_memory, prepare_solve
from continua.train import Plan

pytestmark = pytest.mark.usefixtures("unchecked_module")


@pytest.fixture
def no_processes(monkeypatch):
    """Peaks that follow the steps or the tokens: every process of its own would take seconds to start."""

    def peak(prepare, allocator=None, **settings):
        if not allocator:  # with another one the case is the same
            prepare(**settings)()
        return 10.0 * settings.get("steps", settings.get("tokens", 1))

    for file in ("memory", "attention", "axes"):
        monkeypatch.setattr(f"continua.bench.{file}.peak_memory", peak)


@functools.cache
def quick_result(name: str) -> BenchResult:
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)  # other than those of the quick sizes: giving them back can be seen
    try:
        result = BENCHMARKS[name].quick().run()
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_num_threads(threads)
    return result


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_runs_and_is_written_down(name, no_processes, tmp_path):
    benchmark = BENCHMARKS[name].quick()
    path = write_result(tmp_path, name, ["continua", "bench", name, "--quick"], benchmark, quick_result(name))
    record = json.loads(path.read_text())
    assert record["command"] == f"continua bench {name} --quick"
    assert record["claim"] == benchmark.claim and record["threads"] == 1
    assert record["settings"]["threads"] == 1 and record["versions"]["torch"] == torch.__version__
    assert record["rows"] == [dict(row) for row in quick_result(name).rows] and all(record["rows"])
    assert record["ratios"] and all(math.isfinite(ratio["value"]) for ratio in record["ratios"])


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_claim_says_how_many_threads_it_speaks_of(name):
    benchmark = BENCHMARKS[name]
    assert benchmark.threads in (1, 2) and benchmark.claim
    assert dataclasses.is_dataclass(benchmark.quick()) and type(benchmark.quick()) is type(benchmark)


def test_speed_counts_the_evaluations_of_both_sides(no_processes):
    rows = quick_result("speed").rows
    assert {row["solve"] for row in rows} == {"Direct", "odeint", "Checkpointed", "odeint_adjoint"}
    for row in rows:
        assert row["forward evaluations"] >= 8  # the start, the probe, one step of six
        assert row["error / tolerance"] < 100
        assert (row["backward evaluations"] > 0) == (row["solve"] in ("Checkpointed", "odeint_adjoint"))


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("speed", {"Direct": 0.75, "Checkpointed": 0.7}),
        ("overhead", {"forward": 1.08, "Direct": 1.08, "Checkpointed": 1.08}),
        ("memory", {"Checkpointed": 1.5, "Direct": 0.1}),
        ("attention", {"peak of plain": 1.0, "peak of weighted": 1.0, "peak of own masses": 1.0}),
        ("integrals", {"exponent of subset": 1.1}),
        (
            "axes",
            {
                "all four axes / time and depth alone": 1.25,
                "all four axes, refined / time and depth alone, refined": 1.25,
                "all four axes, 10% refined / four layers": 1.4,
                "twelve steps / twelve layers": {1.4, None},
                "tensors: all four axes / four layers": {1.1, None},  # beside regularised ones for information
                "resident, freed at once: twelve steps": {1.1, None},
            },
        ),
    ],
)
def test_the_limits_are_those_that_were_promised(name, limits, no_processes):
    ratios = quick_result(name).ratios
    for start, limit in limits.items():
        assert {r.limit for r in ratios if r.name.startswith(start)} == (
            limit if isinstance(limit, set) else {limit}
        ), start


def test_axes_compare_networks_of_one_size_at_the_steps_that_they_name(no_processes):
    rows = {row["model"]: row for row in quick_result("axes").rows}
    four = rows["four layers"]["parameters"]
    assert all(abs(rows[name]["parameters"] / four - 1) < 0.05 for name in ("all four axes", "time and depth alone"))
    assert rows["twelve layers"]["parameters"] > 2 * rows["twelve steps"]["parameters"]
    refined = {name for name, row in rows.items() if "refined" in row}
    assert {"all four axes", "time and depth alone"} < refined and "twelve steps" not in refined
    assert {"tensors MiB", "resident MiB", "resident, freed at once MiB"} <= set(rows["four layers"])
    assert rows["all four axes"]["tensors MiB"] > rows["time and depth alone"]["tensors MiB"] > 0.0


def test_axes_train_each_model_as_its_name_says():
    sizes = AxesCost().quick()
    plan, steps = Plan(10, sizes.batch_size), {}
    for name in ("all four axes", "time and depth alone", "four layers", "four layers, regularised", "twelve steps"):
        learner = sizes.learner(name)
        steps[name] = learner.update(sizes.batch(), 0, plan).steps
        assert bool(learner.objective.names) == (name != "four layers"), name
        assert (learner.model.axis is not None) == (name in ("all four axes", "twelve steps")), name
    assert list(steps.values()) == [4, 4, 4, 4, 12]
    assert sizes.learner("all four axes", _REFINED).update(sizes.batch(), 0, plan).steps == 8


def test_every_case_runs_in_every_round():
    order = []
    seconds = time_in_turn({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repetitions=3)
    assert order == ["b", "a", "a", "b", "b", "a", "a", "b"]
    assert [len(times) for times in seconds.values()] == [3, 3]


def test_ratios_are_taken_round_by_round():
    assert median_ratio([1.0, 30.0, 3.0], [2.0, 60.0, 3.0]) == 0.5
    assert sum_rounds({"a": [1.0, 2.0], "b": [10.0, 20.0], "c": [7.0, 7.0]}, ["a", "b"]) == [11.0, 22.0]


def test_a_ratio_without_a_limit_is_for_information():
    assert Ratio("r", 5.0).holds and Ratio("r", 0.7, 0.75).holds and not Ratio("r", 0.8, 0.75).holds


@final
@dataclasses.dataclass(frozen=True)
class _Failing(AbstractBenchmark):
    """Fails on as many threads as it was allowed."""

    threads: int
    claim: str = "none"

    def quick(self):
        return self

    def measure(self):
        raise ZeroDivisionError(torch.get_num_threads())


def test_threads_are_given_back_after_a_failure():
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError, match=f"^{before + 1}$"):
        _Failing(before + 1).run()
    assert torch.get_num_threads() == before


def test_peak_memory_is_that_of_a_process_of_its_own():
    sizes = {"batch": 2, "tokens": 64, "width": 32, "heads": 2, "hidden": 64}
    peak = peak_memory(prepare_solve, gradient="Direct", steps=4, modes=2, threads=1, sizes=sizes)
    assert 0.5 < peak < 200.0  # a graph of 24 evaluations of 2 x 64 tokens


def test_a_failed_process_says_why():
    with pytest.raises(RuntimeError, match="no_such_gradient"):
        peak_memory(prepare_solve, gradient="no_such_gradient", steps=1, modes=2, threads=1, sizes={})


def test_the_process_has_the_environment_that_it_is_given():
    with pytest.raises(RuntimeError, match="nowhere"):
        peak_memory(prepare_solve, {"PYTHONHOME": "/nowhere"}, gradient="Direct", steps=1, modes=2, threads=1, sizes={})
