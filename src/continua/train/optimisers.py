"""The plain optimiser of a model: AdamW whose decay spares biases, gains and positions."""

import torch
from torch import nn


def decayed(model: nn.Module, lr: float, decay: float) -> torch.optim.AdamW:
    """`torch.optim.AdamW` with `decay` on matrices alone, betas (0.9, 0.98).

    A path of vectors in depth has two axes and is no matrix: parameters are told by their names, which end in `gain`,
    or in `b` with what it is the bias of.
    """
    matrices, vectors = [], []
    for name, parameter in model.named_parameters():
        last = name.replace(".", "_").rpartition("_")[2]
        vector = parameter.ndim < 2 or last == "gain" or last.startswith("b")
        (vectors if vector else matrices).append(parameter)
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=lr, betas=(0.9, 0.98))
