"""A term of the velocity written as any torch module: its field holds the module, its operator calls it."""

import dataclasses
import inspect
from typing import NamedTuple, final

import torch
from torch import nn

from continua.core.errors import reject
from continua.core.shapes import DepthValue, Points, Tensor
from continua.fields.field import AbstractField, parameter_spaces
from continua.operators import AbstractOperator, Binding, Theta
from continua.operators.operator import NoTheta
from continua.spaces import AbstractParameterSpace, Cloud


class ModuleTheta(NamedTuple):
    """A module, and the depth to call it at; `None` where it does not ask."""

    module: nn.Module
    z: DepthValue | None


@final
class ModuleField(AbstractField):
    """theta(z) = (module, z): the parameters are the module's own, and vary along depth only if it reads z."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(NoTheta())
        _refuse_state(module)
        self.reads_depth = _arguments(module) == 2
        self.module = module

    def forward(self, z: DepthValue, inside: DepthValue | None = None) -> Theta:
        return ModuleTheta(self.module, z if self.reads_depth else None)

    def parameter_spaces(self) -> dict[str, AbstractParameterSpace]:
        return {f"module.{name}": space for name, space in parameter_spaces(self.module).items()}


@final
@dataclasses.dataclass(frozen=True)
class ModuleOperator(AbstractOperator):
    """velocity = module(x) or module(z, x), x all tokens (batch, tokens, width), z a tensor that meets them.

    The module sees neither masses nor times; whatever it gives absent tokens is not read. One that mixes tokens mixes
    padding (zeros) in as well: an operator of your own, a subclass of `AbstractOperator`, gets the whole cloud.
    """

    def spec(self, width: int) -> Theta:
        return NoTheta()

    def bind(self, binding: Binding) -> "ModuleOperator":
        return self

    def velocity(self, theta: ModuleTheta, cloud: Cloud, source: Cloud | None = None) -> Points:
        x, z = cloud.points, theta.z
        if z is None:
            found = theta.module(x)
        else:
            found = theta.module(z.to(x).view(-1, 1, 1) if isinstance(z, Tensor) else x.new_full((), z), x)
        if not isinstance(found, torch.Tensor) or found.shape != x.shape:
            got = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
            why = f"a velocity has the shape of the tokens, {tuple(x.shape)}"
            reject(f"{type(theta.module).__name__}(x)", got, why, "Return one tensor of that shape.")
        return found


def _arguments(module: nn.Module) -> int:
    """How many arguments the module must have: one, x, or two, z and x."""
    given = inspect.signature(module.forward).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    count = sum(p.kind in positional and p.default is inspect.Parameter.empty for p in given)
    if count not in (1, 2):
        why = f"its forward has {count} arguments without a default"
        reject("operator", type(module).__name__, why, "Write it as forward(self, x) or forward(self, z, x).")
    return count


def _refuse_state(module: nn.Module) -> None:
    """A solve evaluates the velocity many times, and its gradient evaluates it again: it must always be the same."""
    for name, part in module.named_modules():
        random = isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0.0
        if random or isinstance(part, nn.modules.batchnorm._BatchNorm):
            why = "it draws numbers" if random else "it keeps statistics"
            cure = "Build the module with dropout=0.0." if random else "Use LayerNorm."
            where = f"{type(module).__name__}{'.' if name else ''}{name}"
            reject("operator", where, f"{why} in each of many evaluations of one solve", cure)
