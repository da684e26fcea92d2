"""Arguments by the names that other libraries give them: one line says what to pass here."""

import pytest
import torch

import continua
from continua.core.arguments import refuse_unknown
from continua.solve import RK4

pytestmark = pytest.mark.usefixtures("unchecked")
VALUES = torch.zeros(1, 4, 1)


def model():
    return continua.transformer(width=8, outputs=1, features=1, axis=1, depth=1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: continua.transformer(d_model=64, outputs=1, features=1),
            r"transformer has no argument 'd_model'. Pass width=\.",
        ),
        (
            lambda: continua.transformer(8, 1, features=1, num_layers=4),
            r"'num_layers'\. Pass depth=Depth\(4\.0, field=4\) for four",
        ),
        (lambda: continua.transformer(8, 1, feature=1), r"no argument 'feature'\. Pass features\."),
        (lambda: model()(VALUES, mask=None), r"model\(\.\.\.\) has no argument 'mask'\. Pass present=mask\.bool\(\)"),
        (lambda: model()(VALUES, tims=None), r"no argument 'tims'\. Pass times\."),
        (lambda: model()(VALUES, steps=8), r"'steps'\. Pass it to at: model\.at\(steps=8\)\(\.\.\.\)\."),
        (lambda: model()(inputs=VALUES), r"'inputs'\. It has values, times, present, query_times, save_at"),
        (lambda: model().at(stepper=RK4()), r"'stepper'\. Pass solver=Solver\(RK4\(\), Fixed\(8\)\)\."),
        (lambda: continua.Decoding(top_p=0.9), r"'top_p'\. Pass temperature= and top_k=: there is no top_p"),
        (
            lambda: continua.Solver(RK4(), steps=8),
            r"continua\.Solver has no argument 'steps'\. Pass controller=Fixed\(8\)",
        ),
        (lambda: model().at(nodes=5), r"model\.at has no argument 'nodes'\. Pass axis_nodes= .* or head_nodes="),
        (
            lambda: continua.integrate(torch.sin, VALUES, (0, 1), method="rk4"),
            r"'method'\. Pass stepper=, an object such as RK4",
        ),
    ],
    ids=[
        "d_model",
        "num_layers",
        "feature",
        "mask",
        "tims",
        "steps",
        "inputs",
        "stepper",
        "top_p",
        "solver",
        "nodes",
        "method",
    ],
)
def test_a_wrong_name_is_met_with_the_right_one(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_a_name_that_is_like_none_gets_them_all():
    with pytest.raises(TypeError, match=r"^f has no argument 'zzz'\. It has one, two\.$"):
        refuse_unknown("f", ["one", "zzz"], ["one", "two"], {})


def test_right_names_pass():
    present = torch.ones(1, 4, dtype=torch.bool)
    assert model()(values=VALUES, times=torch.arange(4.0)[None] / 4, present=present).shape == (1, 1)
    assert continua.transformer(8, 5, vocabulary=5, axis=1, depth=1.0)(tokens=torch.ones(1, 2).long()).shape == (
        1,
        2,
        5,
    )


def test_a_class_of_modules_is_no_function():
    with pytest.raises(
        ValueError, match=r"Build it first, layer = Linear\(\.\.\.\), and pass lambda z, x: layer\(x\)\."
    ):
        continua.integrate(torch.nn.Linear, torch.zeros(3), (0, 1))
    with pytest.raises(
        ValueError, match=r"f = 'Linear\(\.\.\.\)': it is called as f\(z, x\)\. Pass lambda z, x: module\(x\)"
    ):
        continua.integrate(torch.nn.Linear(3, 3), torch.zeros(3), (0, 1))
