"""What breaks, in the code, the thing that an experiment measures; rows that are measured again then must fail."""

import dataclasses

from continua.lab import UpdateRule, depth_limit, lipschitz
from continua.lab.risk import pathwise, transport
from continua.lab.variations import cells as variations
from continua.solve import Midpoint

BUILD = UpdateRule.build


def tilt_attention(monkeypatch):
    """Attention that returns three times its mean."""
    plain = lipschitz.softmax_mean
    monkeypatch.setattr(lipschitz, "softmax_mean", lambda q, cloud, beta: 3.0 * plain(q, cloud, beta))


def forget_projection(monkeypatch):
    """Layers that are called normalised, and are not."""
    monkeypatch.setattr(depth_limit, "Projected", lambda stepper, manifold, tangent=False: stepper)


def push_out(monkeypatch):
    """Parameters that decay five times more slowly than they are said to."""

    def build(rule, parameters):
        return BUILD(dataclasses.replace(rule, weight_decay=0.2 * rule.weight_decay), parameters)

    monkeypatch.setattr(UpdateRule, "build", build)


def climb_uphill(monkeypatch):
    """Training that goes the other way; the residual is that of the true gradient."""

    def build(rule, parameters):
        optimiser = BUILD(rule, parameters)

        def turn_round(*_):
            for w in parameters:
                w.grad.neg_()

        optimiser.register_step_pre_hook(turn_round)
        return optimiser

    monkeypatch.setattr(UpdateRule, "build", build)


def turn_velocity(monkeypatch):
    """The action of a flow that goes the other way."""
    plain = variations.tangential
    monkeypatch.setattr(variations, "tangential", lambda flow: lambda z, x: -plain(flow)(z, x))


def step_twice_as_well(monkeypatch):
    """Layers of another order than they are said to be."""
    monkeypatch.setattr(pathwise, "Euler", Midpoint)


def turn_particles(monkeypatch):
    """Particles that go the other way than the density."""
    plain = transport.angular_velocity
    monkeypatch.setattr(transport, "angular_velocity", lambda angles, beta: -plain(angles, beta))


SABOTEURS = {
    "attention-lipschitz": (tilt_attention, range(8)),
    "post-norm": (forget_projection, range(3)),
    "euler-lagrange": (turn_velocity, range(3)),
    "pathwise": (step_twice_as_well, range(2)),
    "transport": (turn_particles, (2,)),
}
"""For each experiment what breaks it, and the cells that are measured again."""
