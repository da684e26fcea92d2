"""What the processor can do, asked where asking is safe."""

import functools
import subprocess
import sys

import torch

from continua.core.errors import reject

_PROBE = """
import torch
x = torch.ones(64, 64, dtype={dtype}, requires_grad=True)
torch.nn.functional.linear(x, x, x[0]).sum().backward()
"""


@functools.cache
def multiplies(dtype: torch.dtype) -> bool:
    """Whether products of matrices of this dtype, and their gradients, work on the CPU.

    Asked once, in a process of its own: where torch was built for instructions that the processor lacks, the process
    ends, and nothing can be caught.
    """
    command = [sys.executable, "-c", _PROBE.format(dtype=dtype)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def check_autocast(device: torch.device) -> None:
    """Refuses an autocast to a dtype whose products would end the process."""
    if device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return
    dtype = torch.get_autocast_dtype("cpu")
    if not multiplies(dtype):
        cure = "Use torch.autocast('cpu', dtype=torch.float16), or no autocast on this machine."
        reject("autocast", dtype, "this processor cannot multiply matrices of it, and the process would end", cure)
