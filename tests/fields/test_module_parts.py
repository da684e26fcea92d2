"""Any torch module as a term of the velocity."""

import pytest
import torch
from scipy.integrate import solve_ivp
from torch import nn

from continua.fields import Constant
from continua.model import CloudEmbedding, ContinuousTransformer, Flow, NormReadout, Part, save
from continua.operators import Damping
from continua.optim import Recipe
from continua.solve import RK4, Checkpointed, Direct, Fixed, Solver
from continua.spaces import Cloud

WIDTH = 4


class Wave(nn.Module):
    """A velocity of depth and state."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, z, x):
        return torch.tanh(self.layer(x)) * torch.cos(3.0 * z)


def model(*parts, gradient=Direct()):
    torch.manual_seed(0)
    flow = Flow([*parts], depth=1.0)
    return ContinuousTransformer(CloudEmbedding(WIDTH), flow, NormReadout(WIDTH), Solver(RK4(), Fixed(32)), gradient)


def tokens():
    return torch.randn(2, 3, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_modules_flow_as_scipy_has_them():
    """dx/dz = wave(z, x) + linear(x) - gamma x, against `solve_ivp` on the modules themselves."""
    torch.manual_seed(0)
    wave, linear, damping = Wave().double(), nn.Linear(WIDTH, WIDTH).double(), Damping(0.3)
    made = model(Part(wave), Part(linear, None), Part(damping, Constant(damping.spec(WIDTH)))).double()
    x0 = tokens()

    @torch.no_grad()
    def f(z, y):
        x = torch.from_numpy(y).view(x0.shape)
        return (wave(torch.tensor(z), x) + linear(x) - 0.3 * x).flatten().numpy()

    end = solve_ivp(f, (0.0, 1.0), x0.flatten().numpy(), rtol=1e-10, atol=1e-12).y[:, -1]
    found = made(x0, full=True).solution.x.detach()
    torch.testing.assert_close(found.flatten(), torch.from_numpy(end), rtol=1e-6, atol=1e-6)


def test_their_parameters_are_trained_saved_and_told_apart(tmp_path):
    gradients = {}
    for gradient in (Direct(), Checkpointed()):
        torch.manual_seed(0)
        made = model(Part(Wave()), Part(nn.Linear(WIDTH, WIDTH)), gradient=gradient).double()
        made(tokens()).square().mul(torch.arange(WIDTH)).mean().backward()
        gradients[gradient] = [p.grad for p in made.flow.parameters()]
    for a, b in zip(*gradients.values(), strict=True):
        torch.testing.assert_close(a, b)
    assert len(gradients[gradient]) == 4 and made.parameter_spaces().keys() == dict(made.named_parameters()).keys()
    Recipe().build(made).step()
    with pytest.raises(ValueError, match="Wave"):
        save(made, tmp_path)  # a class of somebody else's cannot be found again by its name


def test_padding_is_neither_read_nor_moved():
    made, x = model(Part(nn.Linear(WIDTH, WIDTH))).double(), tokens()
    mass = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    end = made(Cloud(x, mass), full=True).solution.x
    assert torch.equal(end[0, 2], torch.zeros(WIDTH, dtype=torch.float64))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)),
            r"operator = 'Sequential\.1': it draws numbers .*dropout=0\.0",
        ),
        (nn.Sequential(nn.BatchNorm1d(4)), r"operator = 'Sequential\.0': it keeps statistics .*LayerNorm"),
        (nn.MultiheadAttention(4, 2), r"MultiheadAttention.*3 arguments without a default.*forward\(self, z, x\)"),
    ],
    ids=["dropout", "batch norm", "three arguments"],
)
def test_what_is_no_velocity_is_refused(module, message):
    with pytest.raises(ValueError, match=message):
        Part(module)


def test_a_velocity_has_the_shape_of_the_tokens():
    with pytest.raises(
        ValueError, match=r"Linear\(x\) = \(2, 3, 5\): a velocity has the shape of the tokens, \(2, 3, 4\)"
    ):
        model(Part(nn.Linear(WIDTH, 5)))(tokens().float())


def test_a_module_beside_a_field_is_refused():
    with pytest.raises(ValueError, match=r"operator = 'Linear': this is no Operator\. .*or a module alone"):
        Part(nn.Linear(WIDTH, WIDTH), Constant(Damping(1.0).spec(WIDTH)))
