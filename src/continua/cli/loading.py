"""A run as it was left: its task and its models."""

from pathlib import Path

from continua.cli.config import built
from continua.cli.tasks import task_of
from continua.cli.train import Train, given
from continua.core.errors import reject
from continua.data import AbstractTask
from continua.model import ContinuousTransformer, load
from continua.runs import Run


def opened(folder: Path) -> tuple[Run, AbstractTask]:
    """A training run and its task."""
    run = Run.open(folder)
    if run.manifest["kind"] != "train":
        reject("run", str(folder), f"this is a run of kind {run.manifest['kind']!r}", "Pass one of `continua train`.")
    options = built(Train, given(run.manifest["config"]), str(folder / "manifest.json"))
    return run, task_of(options)


def models_of(run: Run) -> dict[str, ContinuousTransformer]:
    """The models of a run by name, as of its latest checkpoint; the continuous one first."""
    folders = sorted((run.folder / "models").glob("*/model.json"))
    if not folders:
        reject("run", str(run.folder), "it has no model yet", "Let it reach its first checkpoint.")
    models = {}
    for path in folders:
        model = load(path.parent)
        assert isinstance(model, ContinuousTransformer)
        models[path.parent.name] = model.eval()
    return models
