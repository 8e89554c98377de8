"""What a step's launch sends to its device."""

import torch
from torch import Tensor


def to_device(numbers: Tensor, device: torch.device) -> Tensor:
    """A copy of host memory on its way to a GPU; on a CPU the tensor itself.

    From pinned memory: a copy from other memory waits for the steps before it, and the host could not launch ahead of the GPU.
    """
    return numbers.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers.to(device)
