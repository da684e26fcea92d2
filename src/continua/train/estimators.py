"""Estimators in the manner of scikit-learn: `fit`, `predict` and `score` on arrays, for people who write no loop.

They need the extra `data`. Series are arrays (series, times) or (series, times, channels), equispaced, or lists of
arrays of different lengths; NaN marks what was not observed, and has no mass.
"""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, final

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import train_test_split
from sklearn.utils import check_array, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from continua.core.arguments import advise
from continua.core.errors import reject
from continua.data.kernel_ridge import KernelRidgeReference
from continua.model import ContinuousTransformer, Depth, TokenTime, transformer
from continua.train.fitting import (
    Fitting,
    SeriesTokens,
    fill_gaps,
    is_ragged,
    refuse_pairs,
    stack_ragged,
    to_clocks,
    to_tokens,
)
from continua.train.models import scale_outputs
from continua.train.settling import share_of_logits

_ELSEWHERE = {
    **dict.fromkeys(
        ("epochs", "n_epochs", "num_epochs", "max_epochs"),
        "max_iter=, which counts updates: epochs * series / batch_size",
    ),
    **dict.fromkeys(("n_iter", "updates"), "max_iter="),
    **dict.fromkeys(("lr", "learning_rate_init", "eta"), "learning_rate="),
    **dict.fromkeys(("d_model", "hidden_size", "hidden_layer_sizes", "n_units"), "width="),
    **dict.fromkeys(("n_layers", "num_layers", "layers"), "depth=Depth(4.0, field=4)"),
    **dict.fromkeys(("n_heads", "num_heads", "nhead"), "heads="),
    **dict.fromkeys(("seed", "random_seed"), "random_state="),
    **dict.fromkeys(("patience", "early_stopping"), "n_iter_no_change="),
    "horizon": "y of shape (series, horizon) to fit",
}
"""What other libraries call the arguments, updates and not epochs being counted here."""
_SMALL = 40
"""With fewer series none are held out: so few could not say when to stop."""
_ROWS = 512
"""Series that are answered at once."""


class AbstractSeriesEstimator(BaseEstimator, abc.ABC):
    """What both estimators share: series in, a trained network inside.

    `max_iter` counts updates of the optimiser, of `batch_size` series each, where `sklearn.neural_network` counts
    epochs. A fraction `validation_fraction` of the series, where there are 40 or more, is held out: its loss, read 20
    times in all, chooses the best parameters and ends the training after `n_iter_no_change` readings without a lower
    one. `learning_rate` is a number, the highest one of a schedule.
    """

    answers_many: ClassVar[bool]
    """Whether a series may have several targets."""
    width: int
    depth: float | Depth
    heads: int
    max_iter: int
    batch_size: int
    learning_rate: float
    validation_fraction: float
    n_iter_no_change: int
    random_state: Any

    @abc.abstractmethod
    def fit(self, X: Any, y: Any) -> "AbstractSeriesEstimator":
        """Trains on series X and what is known of them."""

    @abc.abstractmethod
    def predict(self, X: Any) -> np.ndarray:
        """The answer for every series."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.three_d_array = True
        tags.target_tags.multi_output = self.answers_many
        return tags

    def _read(self, X: Any, y: Any = "no_validation", **checks: Any) -> Any:
        """Series as an array (series, times, channels), and targets where there are any.

        Series with channels, and ragged ones, may have another number of times than those of training: the model reads
        times and not columns. Tables of two axes are held to their number of columns, as everywhere in scikit-learn.
        """
        reset = not isinstance(y, str)
        refuse_pairs(X)
        if reset:
            self.ragged_ = is_ragged(X)
        # fitted to lists of any lengths it takes lists of one length too
        if is_ragged(X) or (getattr(self, "ragged_", False) and isinstance(X, Sequence | np.ndarray)):
            X = stack_ragged(X)
        named = {"allow_nd": True, "ensure_all_finite": "allow-nan", "dtype": np.float64, **checks}
        table = len(getattr(X, "shape", ())) < 3
        if reset:
            X, y = validate_data(self, X, y, **named)
        else:
            X = validate_data(self, X, reset=False, **named) if table else check_array(X, **named)
        if X.ndim > 3:
            reject("X", X.shape, "series have times and channels", "Pass (series, times) or (series, times, channels).")
        X = X[..., None] if X.ndim == 2 else X
        if reset:
            self.channels_ = X.shape[2]
        elif X.shape[2] != self.channels_:
            reject("X", X.shape, f"the model was fitted to {self.channels_} channels", "Pass the channels of training.")
        return (X, y) if reset else X

    def _train(self, values: np.ndarray, targets: torch.Tensor, outputs: int, loss: Any, held_out: np.ndarray) -> None:
        """`model_`, trained on normalised series; in double precision, so that no answer depends on its batch mates."""
        self.spacing_ = 1.0 / max(1, values.shape[1] - 1)
        tokens = SeriesTokens(*(x.float() if x.is_floating_point() else x for x in to_tokens(values, self.spacing_)))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        fitting = Fitting(self.max_iter, self.batch_size, self.learning_rate, patience=self.n_iter_no_change)
        with torch.random.fork_rng([]):  # nobody's random numbers change because somebody fits a model
            torch.manual_seed(seed)
            model = self._build(values.shape[2], outputs)
            scale_outputs(model, torch.zeros(outputs))  # a new network adds nothing to the reference
            chosen, generator = torch.from_numpy(held_out), torch.Generator().manual_seed(seed)
            self.n_iter_, self.validation_losses_ = fitting.run(model, tokens, targets, chosen, loss, generator)
        self.model_ = model.double().eval()

    def _build(self, features: int, outputs: int) -> ContinuousTransformer:
        time = TokenTime(spacing=min(1.0, self.spacing_))
        return transformer(
            self.width, outputs, features=features, time=time, axis=1, heads=self.heads, depth=self.depth
        )

    def _hold_out(self, samples: int, labels: np.ndarray | None = None) -> np.ndarray:
        """Which series choose the best parameters: none of few, and of every class a fraction."""
        held_out = np.zeros(samples, dtype=bool)
        count = int(self.validation_fraction * samples)
        rare = labels is not None and (np.bincount(labels).min() < 2 or count < labels.max() + 1)
        if samples >= _SMALL and count > 0 and not rare:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            _, rows = train_test_split(np.arange(samples), test_size=count, random_state=seed, stratify=labels)
            held_out[rows] = True
        return held_out

    @torch.no_grad()
    def _answer(self, values: np.ndarray) -> np.ndarray:
        tokens = to_tokens(values, self.spacing_)
        parts = [self.model_(*tokens.rows(slice(i, i + _ROWS))) for i in range(0, len(values), _ROWS)]
        return torch.cat(parts).numpy()


@final
class ContinuousClassifier(ClassifierMixin, AbstractSeriesEstimator):
    """Equispaced series -> class, `ContinuousClassifier().fit(X, y).predict(X)`; irregular times go in as a channel.

    X is (series, times), (series, times, channels) or a list of arrays of different lengths; NaN is a missing value,
    so that series with common times may have gaps. Irregular times of each series go in as one more channel, or into
    `continua.transformer`, which takes them as they are. It works inside pipelines and cross-validation as well.
    Channels are centred and scaled by the training part. Logits are those of a `reference_` (kernel ridge, as of
    `continua train uea`) and a fraction a of the network's,

        logits = reference(x) + a network(x) ,

    which learns what the reference leaves of series that are left out; a, from 0 to 1, is the one that serves the
    held-out series best (1 where none are held out). `width`, `depth` and `heads` are those of `continua.transformer`;
    `max_iter` counts updates, not epochs; the trained network is `model_`, and `model_.at(steps=8)` reads it otherwise.
    """

    answers_many = False

    @advise("ContinuousClassifier", _ELSEWHERE)
    def __init__(  # noqa: PLR0913 - one word for each choice, as scikit-learn has them
        self,
        width: int = 32,
        depth: float | Depth = 2.0,
        heads: int = 4,
        max_iter: int = 400,
        batch_size: int = 64,
        learning_rate: float = 5e-3,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 6,
        random_state: Any = None,
    ) -> None:
        self.width, self.depth, self.heads = width, depth, heads
        self.max_iter, self.batch_size, self.learning_rate = max_iter, batch_size, learning_rate
        self.validation_fraction, self.n_iter_no_change = validation_fraction, n_iter_no_change
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "ContinuousClassifier":
        """Trains on series X and their classes y, of any kind that scikit-learn takes."""
        series, y = self._read(X, y)
        check_classification_targets(y)
        self.classes_, labels = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(self.classes_) < 2:
            reject("y", self.classes_.tolist(), "all samples have one class", "Pass at least two classes.")
        self.centre_ = np.nanmean(series, (0, 1))
        scale = np.nanstd(series, (0, 1))
        self.scale_ = np.where(scale > 0.0, scale, 1.0)
        held_out = self._hold_out(len(labels), labels)
        values = (series - self.centre_) / self.scale_
        self.reference_ = KernelRidgeReference.fit(to_clocks(values), labels.tolist(), len(self.classes_))
        targets = torch.from_numpy(np.concatenate([labels[:, None], self.reference_.held], 1)).float()
        self._train(values, targets, len(self.classes_), _beside_reference, held_out)
        self.factor_ = 1.0
        if held_out.any():
            found = torch.from_numpy(self._answer(values[held_out]))
            offset = torch.from_numpy(self.reference_.held[held_out])
            self.factor_ = share_of_logits(found, offset, torch.from_numpy(labels[held_out]))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of every class of `classes_`, (samples, classes)."""
        check_is_fitted(self)
        values = (self._read(X) - self.centre_) / self.scale_
        logits = self.factor_ * self._answer(values) + self.reference_.logits(to_clocks(values))
        odds = np.exp(logits - logits.max(1, keepdims=True))
        return odds / odds.sum(1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of every series."""
        odds = self.predict_proba(X)
        return self.classes_[odds.argmax(1)]


@final
class ContinuousForecaster(RegressorMixin, AbstractSeriesEstimator):
    """Equispaced windows -> what comes next: `ContinuousForecaster().fit(windows, horizons).predict(windows)`.

    X is as for `ContinuousClassifier`; y (series,) or (series, horizon) are values of the channel `target` of X after
    the past that X holds, or between its times. Each row of X, a window, is seen relative to its own last value l and
    its own deviation s,

        y = l + s (ridge(w) + a network(w)) ,   w = (window - l)/s

    so that a trend may leave the range of training. The ridge regression reads the window with gaps interpolated; the
    network learns what it leaves, and its factor a, from 0 to 1, is the one that serves the held-out windows best
    (1 where none are held out). Without `network` it is the ridge regression alone. `max_iter` counts
    updates, not epochs.
    """

    answers_many = True

    @advise("ContinuousForecaster", _ELSEWHERE)
    def __init__(  # noqa: PLR0913 - one word for each choice, as scikit-learn has them
        self,
        width: int = 32,
        depth: float | Depth = 2.0,
        heads: int = 4,
        max_iter: int = 400,
        batch_size: int = 64,
        learning_rate: float = 5e-3,
        validation_fraction: float = 0.2,
        n_iter_no_change: int = 6,
        random_state: Any = None,
        target: int = 0,
        network: bool = True,
    ) -> None:
        self.width, self.depth, self.heads = width, depth, heads
        self.max_iter, self.batch_size, self.learning_rate = max_iter, batch_size, learning_rate
        self.validation_fraction, self.n_iter_no_change = validation_fraction, n_iter_no_change
        self.random_state, self.target, self.network = random_state, target, network

    def fit(self, X: Any, y: Any) -> "ContinuousForecaster":
        """Trains on windows X and the values y that follow them."""
        series, y = self._read(X, y, multi_output=True, y_numeric=True)
        self.flat_ = y.ndim == 1
        values, level, scale = self._normalise(series)
        answers = (y.reshape(len(y), -1) - level) / scale
        held_out = self._hold_out(len(y)) if self.network else np.zeros(len(y), dtype=bool)
        self.factor_, self.n_iter_ = 0.0, 1  # of a ridge regression there is one solve
        if self.network:
            left = answers - _predict(self._fit_ridge(values[~held_out], answers[~held_out]), values)
            self.residual_ = float(left.std()) or 1.0
            targets = torch.from_numpy(left / self.residual_).float()
            self._train(values, targets, answers.shape[1], F.mse_loss, held_out)
            self.factor_ = self._best_share(values[held_out], left[held_out]) if held_out.any() else 1.0
        self.ridge_ = self._fit_ridge(values, answers)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """What comes next, in the units of the series, in the shape of the targets of training."""
        check_is_fitted(self)
        values, level, scale = self._normalise(self._read(X))
        answers = _predict(self.ridge_, values)
        if self.factor_ > 0.0:
            answers = answers + self.factor_ * self.residual_ * self._answer(values)
        found = level + scale * answers
        return found[:, 0] if self.flat_ else found

    def _fit_ridge(self, values: np.ndarray, answers: np.ndarray) -> RidgeCV:
        return RidgeCV(alphas=np.logspace(-6, 3, 19)).fit(_flat(values), answers)

    def _best_share(self, values: np.ndarray, left: np.ndarray) -> float:
        """a = <left, network>/<network, network>, the least squares of what the ridge left, within [0, 1]."""
        found = self.residual_ * self._answer(values)
        size = float((found * found).sum())
        return float(np.clip((left * found).sum() / size, 0.0, 1.0)) if size > 0.0 else 0.0

    def _normalise(self, series: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Windows relative to their last values and deviations, and both of these for the target, (samples, 1)."""
        filled = fill_gaps(series)
        level, scale = filled[:, -1:], filled.std(1, keepdims=True)
        scale = np.where(scale > 1e-12 * np.abs(filled).max(1, keepdims=True), scale, 1.0)
        if not -self.channels_ <= self.target < self.channels_:
            reject("target", self.target, f"X has {self.channels_} channels", "Name the channel that y continues.")
        return (series - level) / scale, level[:, :, self.target], scale[:, :, self.target]


def _beside_reference(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The cross-entropy of the reference's logits, behind the labels in the targets, and the network's."""
    return F.cross_entropy(output + targets[:, 1:], targets[:, 0].long())


def _predict(ridge: RidgeCV, values: np.ndarray) -> np.ndarray:
    return ridge.predict(_flat(values)).reshape(len(values), -1)  # one answer comes without its axis


def _flat(values: np.ndarray) -> np.ndarray:
    """Normalised windows as rows of numbers, with gaps interpolated."""
    return fill_gaps(values).reshape(len(values), -1)
