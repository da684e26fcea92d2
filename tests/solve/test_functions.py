"""Any function, any shape: `integrate` as others know it, and the tensors that a function depends on are found."""

import functools
import inspect
import math
import re
import types
from pathlib import Path

import pytest
import torch
from torch import nn

from continua import ContinuousTransformer, LostGradientWarning, SolveError, api
from continua.solve import (
    RK4,
    Adaptive,
    Backsolve,
    Checkpointed,
    Direct,
    DormandPrince,
    Euler,
    Fixed,
    Given,
    Observer,
    PerSequence,
    State,
    TorchdiffeqSolver,
    integrate,
)

torchdiffeq = pytest.importorskip("torchdiffeq")
pytestmark = pytest.mark.usefixtures("unchecked")

DOUBLE = {"dtype": torch.float64}
GLOBAL = torch.tensor(0.7, **DOUBLE, requires_grad=True)
BOX = types.SimpleNamespace(w=torch.tensor(0.3, **DOUBLE, requires_grad=True))
LIBRARY = types.ModuleType("library")
LIBRARY.w = torch.tensor(0.4, **DOUBLE, requires_grad=True)


def start(*shape: int) -> torch.Tensor:
    return torch.rand(shape, **DOUBLE, generator=torch.Generator().manual_seed(0)) + 0.5


# --- shapes, spans, settings


@pytest.mark.parametrize("shape", [(), (1,), (4,), (2, 3), (2, 3, 4), (2, 1, 3, 2)], ids=str)
@pytest.mark.parametrize("gradient", [Direct(), Checkpointed(), Backsolve()], ids=repr)
def test_any_shape(shape, gradient):
    """dx/dz = cos(z) x has x(z) = x0 e^{sin z}, and so has its gradient."""
    x0 = start(*shape).requires_grad_(True)
    solution = integrate(lambda z, x: torch.cos(z) * x, x0, (0, 1), rtol=1e-9, gradient=gradient, save_at=(0.25, 1.0))
    assert solution.x.shape == shape and solution.xs.shape == (2, *shape)
    growth = math.exp(math.sin(1.0))
    torch.testing.assert_close(solution.x, growth * x0, rtol=1e-8, atol=0.0)
    torch.testing.assert_close(solution.xs[0], math.exp(math.sin(0.25)) * x0, rtol=1e-6, atol=0.0)
    (found,) = torch.autograd.grad(solution.x.sum(), x0)
    torch.testing.assert_close(found, torch.full_like(x0, growth), rtol=1e-7, atol=0.0)


def test_as_short_as_odeint():
    x0 = start(3)
    f = lambda z, x: -x * z  # noqa: E731
    theirs = torchdiffeq.odeint(f, x0, torch.tensor([0.0, 1.0], **DOUBLE), rtol=1e-9, atol=1e-9)[-1]
    torch.testing.assert_close(integrate(f, x0, (0, 1), rtol=1e-9).x, theirs, rtol=1e-8, atol=0.0)


@pytest.mark.parametrize(("stepper", "name"), [(Euler(), "euler"), (DormandPrince(), "dopri5")], ids=repr)
def test_the_norm_is_that_of_torchdiffeq(stepper, name):
    """The root mean square over all entries: as many steps for ten copies of a problem as for one."""
    x0 = start(4)
    settings = {"steps": 7} if name == "euler" else {"rtol": 1e-7}
    one, ten = (
        integrate(lambda z, x: torch.sin(3 * x) + z, x, (0, 2), stepper, **settings) for x in (x0, x0.repeat(10, 1))
    )
    assert one.stats.grid == pytest.approx(ten.stats.grid, rel=1e-9)
    torch.testing.assert_close(ten.x, one.x.expand(10, 4), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "gradient", [Direct(), Checkpointed(), Checkpointed(segment=1.0, steps=3), Backsolve()], ids=repr
)
@pytest.mark.parametrize("choice", [{"steps": 20}, {"rtol": 1e-9}, {"controller": Given((2.0, 1.3, 0.5))}], ids=str)
def test_there_and_back(gradient, choice):
    """Backwards over a span is the inverse of forwards, with its gradient, its depths on the way and its costates."""
    w, x0 = torch.tensor(0.8, **DOUBLE, requires_grad=True), start(2, 3).requires_grad_(True)
    f = lambda z, x: w * torch.sin(z) * x  # noqa: E731
    seen = []
    observer = Observer(cotangent=lambda z, x, a: seen.append(z))
    solution = integrate(
        f, x0, (2.0, 0.5), gradient=gradient, save_at=(2.0, 1.7, 1.3, 0.5), observers=[observer], **choice
    )
    exact = lambda z: x0 * torch.exp(w * (math.cos(2.0) - math.cos(z)))  # noqa: E731
    loss = lambda xs: sum((i + 1) * x.square().sum() for i, x in enumerate(xs))  # noqa: E731
    expected = [exact(z) for z in (2.0, 1.7, 1.3, 0.5)]
    loose = (
        {"rtol": 1e-2, "atol": 1e-2} if isinstance(choice.get("controller"), Given) else {"rtol": 1e-6, "atol": 1e-6}
    )
    torch.testing.assert_close(solution.xs, torch.stack(expected), **loose)
    found = torch.autograd.grad(loss(solution.xs), [x0, w])
    assert seen[0] == 0.5 and seen[-1] == 2.0 and seen == sorted(seen)
    for g, e in zip(found, torch.autograd.grad(loss(expected), [x0, w]), strict=True):
        torch.testing.assert_close(g, e, **loose)


def test_each_sequence_its_own_steps():
    """The first axis is the batch, and z meets x as it is."""
    x0, speed = start(3, 2).requires_grad_(True), torch.tensor([[1.0], [4.0], [9.0]], **DOUBLE)
    f = lambda z, x: speed * torch.cos(3 * z) * x  # noqa: E731
    for gradient in (Direct(), Checkpointed()):
        solution = integrate(f, x0, (0, 1), controller=PerSequence(1e-8, 1e-8), gradient=gradient)
        expected = x0 * torch.exp(speed * math.sin(3.0) / 3)
        torch.testing.assert_close(solution.x, expected, rtol=1e-6, atol=0.0)
        found, exact = (torch.autograd.grad(x.sum(), x0)[0] for x in (solution.x, expected))
        torch.testing.assert_close(found, exact, rtol=1e-6, atol=0.0)
    with pytest.raises(ValueError, match=r"x0 = \(\): PerSequence needs a first axis.*Adaptive\(\)"):
        integrate(lambda z, x: -x, start(), (0, 1), controller=PerSequence())


def test_every_call_is_counted():
    calls = []
    f = lambda z, x: (calls.append(z), -x)[1]  # noqa: E731
    stats = integrate(f, start(2), (0, 1), Euler(), steps=5, gradient=Direct()).stats
    assert stats.evaluations == len(calls) == 5


# --- parameters


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)).double()

    def forward(self, z, x):
        return self.layers(x) * torch.cos(z)


class Plain:
    """No module: parameters as attributes."""

    def __init__(self) -> None:
        self.w, self.many = (
            torch.tensor(0.2, **DOUBLE, requires_grad=True),
            [torch.ones(3, **DOUBLE, requires_grad=True)],
        )

    def __call__(self, z, x):
        return self.w * x.sin() + self.many[0]

    def velocity(self, z, x):
        return self(z, x)


def by_global():
    return (lambda z, x: GLOBAL * torch.sin(x)), [GLOBAL]


def by_global_of_a_helper():
    def helper(x):
        return GLOBAL * torch.sin(x)

    return (lambda z, x: helper(x) * z), [GLOBAL]


def by_attribute_of_a_global():
    return (lambda z, x: BOX.w * torch.sin(x)), [BOX.w]


def by_attribute_of_a_library():
    return (lambda z, x: LIBRARY.w * torch.sin(x)), [LIBRARY.w]


def by_closure():
    w = start(3, 3).requires_grad_(True)
    return (lambda z, x: torch.tanh(x @ w) + z), [w]


def by_module():
    net = Net()
    return net, list(net.parameters())


def by_method():
    thing = Plain()
    return thing.velocity, [thing.w, *thing.many]


def by_object():
    thing = Plain()
    return thing, [thing.w, *thing.many]


def by_partial():
    w = torch.tensor(0.9, **DOUBLE, requires_grad=True)
    return functools.partial(lambda w, z, x: -w * x, w), [w]


def by_default():
    w = torch.tensor(0.9, **DOUBLE, requires_grad=True)

    def f(z, x, scale={"w": w}):  # noqa: B006
        return -scale["w"] * x

    return f, [w]


def by_non_leaf():
    a = torch.tensor(0.6, **DOUBLE, requires_grad=True)
    w = 2 * a.square()
    return (lambda z, x: -w * x.sin()), [a]


def by_leaf_and_non_leaf():
    """Both a and w = 2 a^2 enter: neither way to a may be counted twice."""
    a = torch.tensor(0.6, **DOUBLE, requires_grad=True)
    w = 2 * a.square()
    v = w.exp() * a
    return (lambda z, x: a * x.cos() - w * x.sin() + 0.1 * v), [a]


def by_deep_container():
    tree = {"a": [{"b": ({"c": [{"d": [torch.full((3,), 0.3, **DOUBLE, requires_grad=True)]}]},)}]}
    leaf = tree["a"][0]["b"][0]["c"][0]["d"][0]
    return (lambda z, x: tree["a"][0]["b"][0]["c"][0]["d"][0] * x.cos()), [leaf]


def by_custom_function():
    """What autograd sees and no torch function does."""

    class Times(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return g * w, g * x

    w = torch.full((3,), 0.4, **DOUBLE, requires_grad=True)
    return (lambda z, x: Times.apply(x, [[[[[w]]]]][0][0][0][0][0])), [w]


def by_branch():
    """Read beyond z = 0.5 only."""
    early, late = (torch.tensor(v, **DOUBLE, requires_grad=True) for v in (0.5, 1.5))
    return (lambda z, x: -(early if z < 0.5 else late) * x), [early, late]


def by_start():
    """The function reads where it started from."""
    x0 = start(2, 3).requires_grad_(True)
    return (lambda z, x: x0.sin() * x + x0.mean()), [x0]


def by_energy():
    """A gradient flow: f differentiates by x itself."""
    w = start(3).requires_grad_(True)

    def f(z, x):
        with torch.enable_grad():
            x = x.requires_grad_(True)
            return -torch.autograd.grad((w * x.cos()).sum(), x, create_graph=True)[0]

    return f, [w]


def by_energy_of_a_copy():
    """As before, on a leaf that f makes itself: no parameter, and no way to the start."""
    w = start(3).requires_grad_(True)

    def f(z, x):
        with torch.enable_grad():
            y = x.detach().requires_grad_(True)
            return -torch.autograd.grad((w * y.cos()).sum(), y, create_graph=True)[0] - 0.1 * x

    return f, [w]


WAYS = [
    by_global, by_global_of_a_helper, by_attribute_of_a_global, by_attribute_of_a_library, by_closure, by_module,
    by_method, by_object, by_partial, by_default, by_non_leaf, by_leaf_and_non_leaf, by_deep_container,
    by_custom_function, by_branch, by_start, by_energy, by_energy_of_a_copy,
]  # fmt: skip


def gradients(make, gradient, **settings) -> list[torch.Tensor]:
    f, wanted = make()
    x0 = wanted[0] if make is by_start else start(2, 3).requires_grad_(True)
    wanted = wanted if make is by_start else [x0, *wanted]
    x = integrate(f, x0, (0.0, 1.0), gradient=gradient, **settings).x
    return list(torch.autograd.grad(x.square().sum() + 0.1 * wanted[-1].sum(), wanted))


@pytest.mark.parametrize("make", WAYS, ids=lambda f: f.__name__)
def test_the_three_gradients_agree(make):
    for settings in ({"steps": 6}, {"rtol": 1e-7}):
        direct = gradients(make, Direct(), **settings)
        for gradient in (Checkpointed(), Checkpointed(segment=1.0, steps=2)):
            for g, e in zip(gradients(make, gradient, **settings), direct, strict=True):
                torch.testing.assert_close(g, e, rtol=1e-12, atol=1e-12)
    if make not in (by_branch, by_energy_of_a_copy):  # a jump that is told to nobody; f is no function of x alone
        for g, e in zip(gradients(make, Backsolve(), rtol=1e-9), gradients(make, Direct(), rtol=1e-9), strict=True):
            torch.testing.assert_close(g, e, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("make", [by_closure, by_module, by_non_leaf, by_leaf_and_non_leaf], ids=lambda f: f.__name__)
def test_gradients_are_those_of_torchdiffeq(make):
    f, wanted = make()
    span = torch.tensor([0.0, 1.0], **DOUBLE)
    theirs = torchdiffeq.odeint(f, start(2, 3), span, rtol=1e-10, atol=1e-10)[-1]
    expected = torch.autograd.grad(theirs.square().sum(), wanted)
    for gradient in (Checkpointed(), Backsolve()):
        f, wanted = make()
        found = torch.autograd.grad(
            integrate(f, start(2, 3), (0, 1), rtol=1e-10, gradient=gradient).x.square().sum(), wanted
        )
        for g, e in zip(found, expected, strict=True):
            torch.testing.assert_close(g, e, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("gradient", [Checkpointed(), Backsolve()], ids=repr)
def test_named_parameters_are_taken_at_their_word(gradient):
    a, b = (torch.tensor(v, **DOUBLE, requires_grad=True) for v in (0.5, 1.5))
    f = lambda z, x: -a * x + b  # noqa: E731
    integrate(f, start(2), (0, 1), gradient=gradient, parameters=[a, b]).x.sum().backward()
    assert a.grad is not None and b.grad is not None
    with pytest.raises(ValueError, match=r"f depends on a tensor that was not found.*parameters=\[\.\.\.\]"):
        integrate(f, start(2), (0, 1), gradient=gradient, parameters=[a])
    energy, (w,) = by_energy_of_a_copy()
    integrate(energy, start(3), (0, 1), gradient=gradient, parameters=[w]).x.sum().backward()


@pytest.mark.parametrize("gradient", [Checkpointed(), Backsolve()], ids=repr)
def test_a_hidden_parameter_raises(gradient):
    """Read at later depths only, and from where nobody looks: never a silent zero."""
    w = torch.tensor(0.5, **DOUBLE, requires_grad=True)
    hiding = types.ModuleType("hiding")
    hiding.w = w
    x0 = start(2).requires_grad_(True)
    f = lambda z, x: -x if z < 0.5 else -hiding.w * x  # noqa: E731
    solution = integrate(f, x0, (0, 1), gradient=gradient)
    with pytest.raises(ValueError, match=r"f depends on a tensor that was not found.*parameters=\[\.\.\.\]"):
        solution.x.sum().backward()
    integrate(f, x0, (0, 1), gradient=gradient, parameters=[w]).x.sum().backward()
    assert w.grad is not None


def test_a_hidden_result_raises():
    """What was computed outside of f and is not named."""
    w = 2 * torch.tensor(0.5, **DOUBLE, requires_grad=True)
    with pytest.raises(ValueError, match=r"result of a MulBackward0.*parameters=\[\.\.\.\]"):
        integrate(lambda z, x: -w * x, start(2), (0, 1), parameters=[])


W = torch.eye(2, **DOUBLE, requires_grad=True)


@pytest.mark.parametrize(
    ("f", "how"),
    [
        (lambda z, x: -GLOBAL.item() * x, ".item()"),
        (lambda z, x: -GLOBAL.detach() * x, ".detach()"),
        (lambda z, x: -GLOBAL.data * x, ".data"),
        (lambda z, x: -GLOBAL.tolist() * x, ".tolist()"),
        (lambda z, x: torch.tensor([[0.0, -GLOBAL], [GLOBAL, 0.0]], **DOUBLE) @ x, "torch.tensor(...)"),
        (lambda z, x: x.new_tensor([GLOBAL, GLOBAL]) * x, ".new_tensor(...)"),
        (lambda z, x: -GLOBAL.item() * (W @ x), ".item()"),  # the other one is differentiated
    ],
    ids=("item", "detach", "data", "tolist", "tensor", "new_tensor", "beside"),
)
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
def test_a_parameter_that_leaves_the_graph_is_told(f, how):
    with pytest.warns(LostGradientWarning, match=re.escape(f"shape () out of the graph by {how}")):
        integrate(f, start(2), (0, 1))
    with pytest.warns(LostGradientWarning):
        integrate(f, start(2), (0, 1), parameters=[GLOBAL, W])


def test_a_computed_parameter_that_leaves_the_graph_is_told():
    rate = 2 * GLOBAL
    with pytest.warns(LostGradientWarning):
        integrate(lambda z, x: -rate.item() * x, start(2), (0, 1))
    with pytest.warns(LostGradientWarning, match="f takes x out of the graph"):
        integrate(lambda z, x: x.detach() * GLOBAL, start(2), (0, 1))


@pytest.mark.filterwarnings("error::continua.LostGradientWarning")
def test_what_leaves_the_graph_and_is_missed_by_nobody_is_not_told():
    integrate(lambda z, x: -GLOBAL * x / GLOBAL.detach(), start(2), (0, 1))  # reached on another way
    integrate(lambda z, x: -x if x.sum().item() > 0 else x, start(2), (0, 1))  # a decision
    integrate(lambda z, x: torch.tensor([-v.item() for v in x], **DOUBLE), start(2), (0, 1))  # no gradient asked for
    integrate(lambda z, x: -W.detach().clone() @ x, start(2), (0, 1), gradient=Direct())
    integrate(lambda z, x: -W.detach() @ (GLOBAL * x), start(2), (0, 1), parameters=[GLOBAL])  # meant so


def test_what_computed_a_parameter_is_differentiated_once_and_stays():
    """retain_grad, a second backward pass over the same outside, and other uses of w all see what they should."""
    a = torch.tensor(0.6, **DOUBLE, requires_grad=True)
    found = {}
    for gradient in (Direct(), Checkpointed(segment=1.0, steps=2)):
        a.grad = None
        w = (2 * a).exp()
        w.retain_grad()
        f = lambda z, x: -w * a * x  # noqa: B023, E731
        first, second = (integrate(f, start(2), (0, 1), steps=4, gradient=gradient).x.sum() for _ in range(2))
        first.backward(retain_graph=True)
        (second + w.square()).backward()
        found[type(gradient)] = a.grad.clone(), w.grad.clone()
    torch.testing.assert_close(found[Checkpointed], found[Direct], rtol=1e-13, atol=0.0)


def test_without_gradients_nothing_is_looked_for():
    calls = []
    with torch.no_grad():
        integrate(lambda z, x: (calls.append(1), -GLOBAL * x)[1], start(2), (0, 1), Euler(), steps=3)
    with torch.inference_mode():
        assert integrate(lambda z, x: -x, start(2), (0, 1)).stats.evaluations > 0
    assert len(calls) == 3


def test_depths_to_save_come_as_a_tensor_and_may_miss_an_end_by_rounding():
    x0 = start(2)
    found = integrate(lambda z, x: -x, x0, (0, 0.3), save_at=torch.tensor([0.1, 0.2]), rtol=1e-10)
    torch.testing.assert_close(found.xs[1], x0 * math.exp(-found.depths[1]), rtol=1e-9, atol=0.0)
    assert 0.1 * 3 > 0.3 and integrate(lambda z, x: -x, x0, (0, 0.3), save_at=[0.1, 0.1 * 3]).depths[-1] == 0.3


def test_an_observer_of_steps_needs_no_parameters():
    """Autograd sees through dropout as it was drawn; only a costate is computed by calling f again."""
    seen, dropout = [], nn.Dropout(0.5)
    integrate(lambda z, x: dropout(-x), start(2), (0, 1), Euler(), gradient=Direct(), steps=2,
              observers=[Observer(step=lambda *args: seen.append(args))])  # fmt: skip
    assert len(seen) == 2


# --- mistakes


def test_mistakes_are_one_helpful_line():
    x0 = start(2)
    for call, match in (
        (lambda: integrate("decay", x0, (0, 1)), r"f = 'decay': this is no function. Pass a function f\(z, x\)"),
        (
            lambda: integrate(nn.Linear, x0, (0, 1)),
            r"f = .*Linear'>: this is no function\. Build it first, layer = Linear",
        ),
        (lambda: integrate(lambda x: -x, x0, (0, 1)), r"f = .*it is called as f\(z, x\)"),
        (lambda: integrate(lambda z, x: -x, [1.0], (0, 1)), r"x0 = 'list': this is no Tensor.*any shape"),
        (lambda: integrate(lambda z, x: -x, x0.long(), (0, 1)), r"x0 = torch.int64.*neither float32 nor float64"),
        (lambda: integrate(lambda z, x: -x, x0[:0], (0, 1)), r"x0 = \(0,\).*it is empty"),
        (
            lambda: integrate(lambda z, x: x.sum(), x0, (0, 1)),
            r"f\(z, x\) = '\(\), torch.float64'.*shape and dtype of x",
        ),
        (lambda: integrate(lambda z, x: (x, x), x0, (0, 1)), r"f\(z, x\) = .*tuple.*Return one tensor"),
        (lambda: integrate(lambda z, x: -x.float(), x0, (0, 1)), r"f\(z, x\) = .*float32.*shape and dtype of x"),
        (
            lambda: integrate(lambda z, x: -x, x0, (0.0, torch.tensor(2.0, requires_grad=True))),
            r"span = \(0\.0, 2\.0\): a solve has no gradient.*T \* f\(T \* z, x\) over \(0\.0, 1\.0\)",
        ),
        (lambda: integrate(lambda z, x: -x, x0, (0, 0)), r"span = \(0, 0\): the span is empty"),
        (lambda: integrate(lambda z, x: -x, x0, (0, 0.5, 1)), r"span = .*two ends.*save_at"),
        (lambda: integrate(lambda z, x: -x, x0, (0, 1), save_at=0.5), r"save_at = 0.5: depths come as a list"),
        (
            lambda: integrate(lambda z, x: -x, x0, (0, 1), save_at=torch.rand(1, 3)),
            r"save_at = \(1, 3\): depths come as a list\. Pass save_at\.flatten\(\)",
        ),
        (
            lambda: integrate(lambda z, x: -x, x0, (0, 1), save_at=torch.tensor([0.5], requires_grad=True)),
            r"save_at = \[0\.5\]: a solve has no gradient by the depths that it saves\. Pass save_at\.detach",
        ),
        (
            lambda: integrate(lambda z, x: -x, x0, (0, 1), save_at=[0.25, torch.tensor(0.5, requires_grad=True)]),
            r"save_at = \[0\.25, 0\.5\]: a solve has no gradient",
        ),
        (
            lambda: integrate(lambda z, x: -x, x0, (0, 1), "rk4"),
            r"stepper = 'rk4': this is no Stepper.*RK4\(\) for 'rk4'",
        ),
        (lambda: integrate(lambda z, x: -x, (x0, x0), (0, 1)), r"x0 = 'tuple': this is no Tensor.*torch\.cat\("),
        (lambda: integrate(lambda z, x: -x, x0, 1.0), r"span = 1\.0: a span has two ends.*Pass \(start, end\)"),
        (lambda: integrate(lambda y, t: -y, x0, (0, 1)), r"f\(z, x\) = '\(\), .*f\(z, x\) gets the depth first"),
        (
            lambda: integrate(lambda z, x: -x, x0, (0, 1), RK4()),
            r"stepper = RK4\(\).*no error estimate.*Fixed\(8\).*steps=8",
        ),
        (
            lambda: integrate(lambda z, x: -x, x0, (0, 1), steps=3, rtol=1e-3),
            r"steps = 3: rtol chooses the steps as well",
        ),
        (lambda: integrate(lambda z, x: -x, x0, (0, 1), controller=Fixed(2), steps=3), "controller = .*steps chooses"),
        (lambda: integrate(lambda z, x: -x, x0, (0, 1), gradient=Direct), "gradient = .*this is no Gradient"),
        (lambda: integrate(nn.Dropout(0.5).forward, x0, (0, 1)), r"f = .*it is called as f\(z, x\)"),
    ):
        with pytest.raises(ValueError, match=match):
            call()


def test_an_error_inside_a_function_says_how_it_was_called():
    """`f(y, t)`, the order of scipy's `odeint`: torch complains about a depth without axes."""
    for f, error in ((lambda y, t: torch.eye(2, **DOUBLE) @ y, RuntimeError), (lambda y, t: y[1:], IndexError)):
        with pytest.raises(error) as failure:
            integrate(f, start(2), (0, 1))
        assert failure.value.__notes__ == ["f is called as f(z, x), z of shape () and x of shape (2,)."]


def test_advice_names_only_what_the_caller_can_pass():
    """Words that `integrate` and `model.at` both take; nothing of parts that only a flow has."""
    for f, settings in (
        (lambda z, x: x**2, {}),  # a pole at z = 1
        (lambda z, x: 1e9 * (z - x), {"controller": Adaptive(max_steps=9)}),  # stiff
        (lambda z, x: 1e99 * x**2, {"steps": 9}),
        (lambda z, x: x / 0, {}),
    ):
        with pytest.raises(SolveError) as failure:
            integrate(f, torch.ones(2, **DOUBLE), (0, 2), gradient=Direct(), **settings)
        named = set(re.findall(r"(\w+)=", failure.value.advice)) - {"max_steps"}  # that of the controller it shows
        assert named <= set(inspect.signature(integrate).parameters) | {"solver"}, failure.value
        assert named - {"controller"} <= set(inspect.signature(ContinuousTransformer.at).parameters), failure.value
        assert not re.search("Damping|weights|atol", failure.value.advice)


def test_every_call_of_the_table_for_those_who_come_from_elsewhere():
    page = (Path(__file__).parents[2] / "docs" / "how-to.md").read_text(encoding="utf-8")
    calls = re.findall(r"\| `(integrate\(.*)` *(?:\||,)", page.partition("### From torchdiffeq and diffrax")[2])
    rate = torch.tensor(1.0, **DOUBLE, requires_grad=True)
    known = {"f": lambda z, x: -rate * x, "t": torch.tensor([0.5, 1.0]), "rate": rate, "torch": torch, **vars(api)}
    states = dict.fromkeys(("x0", "a", "b"), torch.ones(3, **DOUBLE))
    assert len(calls) > 12
    for call in calls:
        found = eval(call, known | states)
        x = found if isinstance(found, torch.Tensor) else found.x
        torch.testing.assert_close(x.flatten()[-3:], torch.full((3,), math.exp(-1.0), **DOUBLE), rtol=0, atol=1e-3)


def test_a_solution_shows_itself_in_a_line():
    solution = integrate(lambda z, x: -x, start(2), (0, 2), steps=3)
    shown = "Solution(x of shape (2,), depth 0 to 2, 18 evaluations, 3 steps accepted, 0 rejected)"
    assert repr(solution) == str(solution) == shown
    assert "depth" not in repr(integrate(lambda z, x: -x, start(2), (0, 2), controller=PerSequence()))


def test_randomness_inside_a_function_is_refused():
    f = lambda z, x: -x * torch.rand((), **DOUBLE)  # noqa: E731
    with pytest.raises(ValueError, match=r"draws random numbers.*f\.eval\(\).*Direct\(\)"):
        integrate(f, start(2).requires_grad_(True), (0, 1), steps=2)
    integrate(f, start(2).requires_grad_(True), (0, 1), steps=2, gradient=Direct())


def test_a_state_that_blows_up_is_named():
    with pytest.raises(SolveError, match=r"the state at index \(1,\) is no longer finite"):
        integrate(lambda z, x: x**3 * torch.tensor([0.0, 1e100], **DOUBLE), start(2), (0, 1), Euler(), steps=20)


def test_a_state_with_costs_needs_a_field():
    assert torch.equal(
        integrate(lambda z, x: -x, State(start(2)), (0, 1)).x, integrate(lambda z, x: -x, start(2), (0, 1)).x
    )


def test_torchdiffeq_takes_spans_that_run_backwards():
    from problems import rotation

    problem = rotation()
    solver = TorchdiffeqSolver("dopri5", 1e-9, 1e-9)
    there = solver.solve(problem.bound(), problem.state, (0.0, 1.0), Direct())
    back = solver.solve(problem.bound(), State(there.x), (1.0, 0.0), Direct(), save_at=(0.7, 0.2))
    torch.testing.assert_close(back.x, problem.start, rtol=0.0, atol=1e-7)
    torch.testing.assert_close(back.xs, torch.stack([problem.exact(z) for z in (0.7, 0.2)]), rtol=0.0, atol=1e-7)


def test_parameters_may_be_a_module_a_dictionary_or_one_tensor():
    net, rate = torch.nn.Linear(2, 2).double(), torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    for named, f in ((net, lambda z, x: net(x)), (rate, lambda z, x: -rate * x)):
        found = []
        for given in (named, None, {"named": named} if named is rate else dict(net.named_parameters())):
            leaf = net.weight if named is net else rate
            leaf.grad = None
            integrate(f, start(2), (0, 1), gradient=Checkpointed(), parameters=given).x.sum().backward()
            found.append(leaf.grad.clone())
        assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
