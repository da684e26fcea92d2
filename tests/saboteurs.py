"""What breaks, in the code, the thing that an experiment measures; rows that are measured again then must fail."""

import dataclasses
import math

import numpy as np
import torch

from continua.control import CrossEntropy
from continua.lab import (
    UpdateRule,
    ceiling,
    depth_limit,
    derivatives,
    estimator_bias,
    flows,
    gradient_accuracy,
    lipschitz,
    mean_field,
    sde_scaling,
    sheet_ways,
)
from continua.lab.risk import pathwise, problem, sampling, softmax_residual, transport
from continua.lab.stacks import cells as stacks
from continua.lab.training import cells as training_cells
from continua.lab.training import width
from continua.lab.training.networks import Network, compute_limits
from continua.lab.variations import cells as variations
from continua.operators import Attention, AttentionTheta, Subset
from continua.solve import Checkpointed, Midpoint, Projected

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


def smooth_labels(monkeypatch):
    """Labels that are not what the softmax is compared with."""
    monkeypatch.setattr(softmax_residual, "CrossEntropy", lambda: CrossEntropy(smoothing=0.2))


def sample_one_half(monkeypatch):
    """Samples that miss one half of the population."""
    monkeypatch.setattr(
        sampling,
        "draw_counts",
        lambda size, n, draws, seed: np.random.default_rng(seed).multinomial(
            n, [2.0 / size] * (size // 2) + [0.0] * (size // 2), size=draws
        ),
    )


def solve_layers_better(monkeypatch):
    """Layers that converge at another order than they are said to: their least values do too."""
    monkeypatch.setattr(problem, "Euler", Midpoint)
    monkeypatch.setattr(problem, "Projected", lambda stepper, sphere, tangent=False: Projected(stepper, sphere, True))


def replay_finer(monkeypatch):
    """A discrete adjoint of other steps than were taken."""
    monkeypatch.setitem(gradient_accuracy.WAYS, "Checkpointed", Checkpointed(refine=2))


def call_it_debiased(monkeypatch):
    """A plain subset under the name of the estimate without bias."""
    plain = estimator_bias.estimators
    monkeypatch.setattr(estimator_bias, "estimators", lambda m: {**plain(m), "debiased": Subset(m)})


def take_better_layers(monkeypatch):
    """Layers of another order than they are said to be."""
    monkeypatch.setattr(depth_limit, "Euler", Midpoint)


def turn_gradients(monkeypatch):
    """Networks, and not their limit, that are trained the other way."""
    keep = Network._keep_gradient
    monkeypatch.setattr(
        Network,
        "_keep_gradient",
        lambda network, layer, g: keep(network, layer, AttentionTheta(*(-w for w in (g.q, g.k, g.v, g.o)))),
    )


def learn_by_width(monkeypatch):
    """Updates that grow with the dimension."""
    monkeypatch.setattr(training_cells, "compute_limits", compute_limits.__wrapped__)

    def build(rule, parameters):
        wide = parameters[0].shape[-1]
        return BUILD(dataclasses.replace(rule, learning_rate=wide * rule.learning_rate), parameters)

    monkeypatch.setattr(UpdateRule, "build", build)


def forget_the_ball(monkeypatch):
    """A derivative that does not know of the projection on the ball."""
    plain = derivatives.radial_slope
    monkeypatch.setattr(derivatives, "radial_slope", lambda x, radius: plain(x, math.inf))


def mistake_the_limit(monkeypatch):
    """The limit of masked tokens for that of the others."""
    plain = mean_field.limit_map
    monkeypatch.setattr(mean_field, "limit_map", lambda causal, grid: plain(not causal, grid))


def strengthen_heads(monkeypatch):
    """Q, K, V and O a twentieth larger than the identity."""
    plain = flows.identity_theta
    monkeypatch.setattr(flows, "identity_theta", lambda d: AttentionTheta(*(1.05 * w for w in plain(d)[:4])))


def keep_temperature(monkeypatch):
    """The same inverse temperature for longer tokens."""
    monkeypatch.setattr(width, "Attention", lambda heads, key, beta, **rest: Attention(heads, key, beta=1.0, **rest))


def drop_signs(monkeypatch):
    """Heads whose mean is not zero."""
    plain = sde_scaling.Walk._masses
    monkeypatch.setattr(sde_scaling.Walk, "_masses", lambda walk, generator: plain(walk, generator).abs())


def mistake_digits(monkeypatch):
    """A posterior that names the next digit."""
    plain = ceiling.Mnist1dPosterior.log_probabilities
    monkeypatch.setattr(
        ceiling.Mnist1dPosterior, "log_probabilities", lambda own, values, seen: plain(own, values, seen).roll(1)
    )


def shuffle_layers(monkeypatch):
    """Layers that are read in another order than tokens meet them."""
    plain = stacks.layer_weights
    monkeypatch.setattr(stacks, "layer_weights", lambda model: torch.cat([plain(model)[::2], plain(model)[1::2]][::-1]))


def replay_everything(monkeypatch):
    """Checkpoints that are as long as depth, and replayed by eight times as many steps."""
    monkeypatch.setattr(sheet_ways, "Checkpointed", lambda segment: Checkpointed(10.0 * segment, refine=8))


SABOTEURS = {
    "depth-limit": (take_better_layers, range(2)),
    "adamw-limit": (turn_gradients, range(1, 4)),
    "dimension-free": (learn_by_width, range(99)),
    "lions-derivative": (forget_the_ball, range(99)),
    "mean-field": (mistake_the_limit, range(3)),
    "clusters": (strengthen_heads, range(2)),
    "rms-scaling": (keep_temperature, range(2)),
    "sde-scaling": (drop_signs, range(99)),
    "mnist1d-ceiling": (mistake_digits, (1,)),
    "attention-lipschitz": (tilt_attention, range(8)),
    "post-norm": (forget_projection, range(3)),
    "euler-lagrange": (turn_velocity, range(3)),
    "pathwise": (step_twice_as_well, range(2)),
    "transport": (turn_particles, (2,)),
    "softmax-residual": (smooth_labels, (0,)),
    "sampling": (sample_one_half, (0,)),
    "optimal-values": (solve_layers_better, (0,)),
    "gradient-accuracy": (replay_finer, (0,)),
    "estimator-bias": (call_it_debiased, (0,)),
    "trained-networks": (shuffle_layers, range(12, 16)),
    "adamw-compactness": (push_out, range(8, 10)),
    "cheat-sheet": (replay_everything, range(4, 6)),
}
"""For each experiment what breaks it, and the cells that are measured again; `test_kkt_points` has two more."""
