"""Run folders as training leaves them: real curves of a made-up learner, every kind of figure."""

import math
from pathlib import Path

import numpy as np

from continua.runs import (
    Bars,
    Curve,
    Heat,
    Lines,
    Note,
    Paper,
    Paths,
    Run,
    Scale,
    Section,
    Table,
    Verdict,
)


def figures() -> dict[str, object]:
    """One figure of every kind, small arrays and large ones."""
    random = np.random.default_rng(0)
    z = np.linspace(0.0, 1.0, 9)
    turn = np.stack([np.cos(3 * z), np.sin(3 * z)], -1)[:, None, :] * np.linspace(0.5, 1.0, 12)[None, :, None]
    logits = random.normal(size=(3, 5, 20, 20)) * np.arange(1, 6)[None, :, None, None]
    alpha = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    x, y = Scale("depth z"), Scale("step Δz")
    return {
        "lines": Lines(
            title="Costates", x=x, y=Scale("norm", log=True), notes=(Note(0.5, "jump"),),
            curves=(Curve.of("|a|", z, np.exp(-z), np.exp(-z) / 2, 2 * np.exp(-z)),
                    Curve.of("gap", z, [None, *z[1:]], mark="both")),
        ),
        "heat": Heat(title="Attention weights", x=Scale("s"), y=Scale("t"), columns=np.arange(20.0),
                     rows=np.arange(20.0), values=alpha, value="α", frames=np.linspace(0, 1, 5), slider="depth z",
                     panels=("mean", "head 1", "head 2")),
        "paths": Paths(title="Tokens along depth", x=Scale("first"), y=Scale("second"), depths=z, points=turn,
                       tokens=np.linspace(0, 1, 12), hue="token time t"),
        "steps": Lines(title="Lengths of steps", x=x, y=y,
                       curves=(Curve.of("own", [0, 0.2, 0.6, 1], [0.2, 0.4, 0.4, None], mark="steps"),)),
        "bars": Bars(title="Samplings", y=Scale("accuracy"), categories=("as trained", "half of the samples missing"),
                     names=("continuous", "standard"), values=np.array([[0.97, 0.91], [0.94, np.nan]])),
        "table": Table(title="Solver statistics", columns=("solve", "evaluations", "error"),
                       rows=(("own", 8, 0.25), ("tight", 1234, None), ("<b>x</b>", 3, math.nan))),
    }  # fmt: skip


def written_run(folder: Path, seed: int = 0, learners: tuple[str, ...] = ("continuous", "standard")) -> Run:
    """A finished training run with records, figures and papers."""
    random = np.random.default_rng(seed)
    sizes = dict.fromkeys(learners, 59_010)
    run = Run.begin(folder, "train", {"task": "mnist1d", "seed": seed}, {"parameters": sizes})
    for update in range(1, 301):
        for place, learner in enumerate(learners):
            loss = 2.3 * math.exp(-update / (80 + 60 * place)) + 0.2 + 0.1 * abs(random.normal())
            row = {"loss": loss, "lr": 3e-3, "evaluations": 8 - 4 * place, "tokens_per_second": 9e3, "seconds": 0.2}
            run.record("update", update=update, model=learner, clock=0.4 * update, grad_norm=1.0, **row)
            if update % 60 == 0:
                metrics = {"loss": loss, "accuracy": 1.0 - loss / 3}
                run.record("validation", update=update, model=learner, clock=0.4 * update, metrics=metrics)
    for learner in learners:
        tests = {"as trained": {"loss": 0.3, "accuracy": 0.9712}, "half": {"loss": 0.5, "accuracy": 0.91}}
        steps = {str(n): {"loss": 1.0 / n, "accuracy": 1.0 - 1.0 / (n + 1)} for n in (1, 2, 4, 8)}
        run.record("test", model=learner, samplings=tests, depth_steps=steps, **{"solver error": 0.01})
    made = figures()
    formula = "alpha_{ij} = frac{w_j e^{beta ⟨q_i, k_j⟩}}{sum_l w_l e^{beta ⟨q_i, k_l⟩}}"
    for place, learner in enumerate(learners):
        pictures = (made["heat"], made["paths"])
        run.keep_section(f"00-attention-{place}", Section("Attention", ("Prose.",), formula, pictures, source=learner))
    others = (made["lines"], made["steps"], made["bars"], made["table"])
    run.keep_section("01-rest", Section("A <claim> & more", figures=others, verdict=Verdict("It does.", True)))
    run.note(papers=[Paper("a2020", "A. Author", 2020, "A <title>", "A venue", "Attention").plain()])
    run.end("finished")
    return run
