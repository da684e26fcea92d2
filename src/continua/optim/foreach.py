"""torch's operations on lists of tensors, one call for all: what its own optimisers are made of, under public names."""

from typing import Any

import torch

_torch: Any = torch  # they are not declared public, though torch.optim stands on them

add_ = _torch._foreach_add_
addcdiv_ = _torch._foreach_addcdiv_
addcmul_ = _torch._foreach_addcmul_
copy_ = _torch._foreach_copy_
lerp_ = _torch._foreach_lerp_
mul_ = _torch._foreach_mul_
norm = _torch._foreach_norm
sqrt = _torch._foreach_sqrt
