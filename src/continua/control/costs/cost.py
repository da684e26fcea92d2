"""What every running cost is: a rate r(z, X, theta) that is integrated along depth, inside the same solve."""

import abc
import re
from typing import ClassVar, final

from continua.model import Rate, Setting


class AbstractRunningCost(abc.ABC):
    """int_0^Z r(z, X_b, theta) dz for each sequence b, one more component of the state of the solve.

    Costs never act back on the tokens and stay outside the error norm, unless the control says `costs=True`. At every
    stage the rate sees the velocity of the flow; split and projected steps have only the mean velocity dx/dz of the
    whole step to show, and their costs are sums over steps.
    """

    random: ClassVar[bool] = False
    """Whether it draws something, once for each solve."""
    decays: ClassVar[bool] = False
    """Whether it is an L2 term of the parameters, which weight decay would repeat."""

    @abc.abstractmethod
    def bind(self, setting: Setting, place: int) -> Rate:
        """The rate for one solve, with all its randomness drawn; `place` tells several costs apart."""

    @final
    @property
    def name(self) -> str:
        """The words of the class, joined: `kinetic_energy`."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(self).__name__).lower()
