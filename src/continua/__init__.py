"""continua: the Transformer that is continuous in token time, embedding, heads and depth.

    data -> embedding -> cloud -> flow (fields give parameters, operators act) -> solve -> readout

The names of `continua.api` are enough for most users; every room (`continua.operators`, `continua.fields`,
`continua.solve`, ...) exports its own. They are loaded when first asked for, so that `continua --help` does not wait
for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from continua.api import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]
    from continua.train.estimators import ContinuousClassifier as ContinuousClassifier
    from continua.train.estimators import ContinuousForecaster as ContinuousForecaster

_ESTIMATORS = ("ContinuousClassifier", "ContinuousForecaster")
"""What needs scikit-learn, of the extra `data`, is not in `continua.api`: all else works without it."""
_SOLVERS = ("odeint", "odeint_adjoint", "diffeqsolve", "solve_ivp")
"""What other libraries call `integrate`."""


def __getattr__(name: str) -> Any:
    if name.startswith("_") and name not in ("__all__", "__version__"):
        raise AttributeError(f"module 'continua' has no attribute {name!r}")
    if name in _ESTIMATORS:
        importlib.import_module("continua.core.extras").extra("sklearn", "data", name)
        return getattr(importlib.import_module("continua.train.estimators"), name)
    api = importlib.import_module("continua.api")
    try:
        return getattr(api, name)
    except AttributeError:
        meant = "; an ODE is solved by continua.integrate" if name in _SOLVERS else ""
        raise AttributeError(f"module 'continua' has no attribute {name!r}{meant}") from None


def __dir__() -> list[str]:
    return sorted([*__getattr__("__all__"), *_ESTIMATORS])
