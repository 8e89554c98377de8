"""An adapter's numbers made ready for the sublayer they go to, before there is a slot for them."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from penstock.runtime.execution.load.low_rank import LowRank

IDENTITY_ROWS = 512


def like_of(module: nn.Module) -> Tensor:
    """A number of the type a sublayer computes in, where it computes."""
    weight = getattr(module, "weight", None)
    if isinstance(weight, Tensor) and weight.dtype.is_floating_point:
        return weight
    dtype = getattr(module, "dtype", None)
    device = next(module.parameters()).device
    if dtype is None:
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    return torch.empty(0, dtype=dtype, device=device)


def prepared(module: nn.Module, change: LowRank) -> LowRank:
    """In the module's own numbers, in memory a GPU can read by itself; a DoRA's scales as factors of the plain product."""
    like, left, scales = like_of(module), change.left, change.scales
    if scales is not None:
        scales = scales / _norms(module, change, change.first, len(left)).cpu()
        left = left * scales[:, None]
    placed = [part if part is None else part.to(like.dtype).contiguous() for part in (left, change.right, scales)]
    if like.device.type == "cuda":
        placed = [part if part is None else part.pin_memory() for part in placed]
    return LowRank(placed[0], placed[1], change.first, placed[2])  # type: ignore[arg-type]


def _norms(module: nn.Module, change: LowRank, first: int, size: int) -> Tensor:
    """Lengths of the rows of W + BA, from what the sublayer makes of few rows: W itself may be packed.

    |w + ba|^2 = |w|^2 + 2 b (A w) + b (A A^T) b
    """
    like, columns = like_of(module), change.right.shape[1]
    squares = sum(
        part.float().square().sum(0) for part in _images(module, torch.eye(columns, device=like.device), first, size)
    )
    right, left = change.right.to(like.device), change.left.to(like.device)
    crossed = torch.cat(list(_images(module, right, first, size)))
    inner = right.float() @ right.float().t()
    total = squares + 2 * (left * crossed.t().float()).sum(1) + ((left @ inner) * left).sum(1)
    return total.clamp(min=1e-12).sqrt()


def _images(module: nn.Module, rows: Tensor, first: int, size: int) -> Iterator[Tensor]:
    """What the matrix makes of some rows, without a bias."""
    dtype = like_of(module).dtype
    weight = getattr(module, "weight", None)
    bias = getattr(module, "bias", None)
    for part in torch.split(rows, IDENTITY_ROWS):
        if isinstance(weight, Tensor):
            yield part.float() @ weight[first : first + size].float().t()
        else:
            made = module.scores(part.to(dtype)) if not hasattr(module, "forward") else module(part.to(dtype))  # type: ignore[operator]
            yield (made if bias is None else made - bias)[:, first : first + size].float()
