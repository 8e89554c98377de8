"""GPTQ: values are chosen input by input, and what rounding one of them costs is made good by those that are still free.

`hessian` is the mean of x x^T over calibration inputs x. Inputs are taken in the order of their importance; scales of groups
are fixed before, in the file's own order, so that what is written needs no order of its own (`actorder: static`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial

import torch
from torch import Tensor

from penstock.tools.quantize.integers import Grid, IntegerCodes, IntegerEncoding

BLOCK = 32
ROWS_AT_ONCE = 4096
ROWS_ON_GPU = 32768
DAMPING = 0.01
"""Of the mean diagonal, added to it: inputs that calibration hardly moves must not be trusted with large corrections."""
MOST_DAMPING = 1.0


def solve(weight: Tensor, hessian: Tensor, encoding: IntegerEncoding, damping: float = DAMPING) -> IntegerCodes:
    """[rows, columns] in float32. Rows do not depend on each other, so a wide matrix takes no more memory than some of them."""
    diagonal = hessian.diagonal().clone()
    is_dead = diagonal <= 0
    importance = torch.where(is_dead, diagonal.mean().clamp(min=1e-12), diagonal)
    order = torch.argsort(diagonal, descending=True)
    upper = _inverse_factor(hessian, is_dead, order, damping)
    parts = []
    with _one_thread():
        for rows in weight.split(ROWS_ON_GPU if weight.is_cuda else ROWS_AT_ONCE):  # type: ignore[no-untyped-call]
            grid = encoding.grid(rows, importance)
            parts.append(IntegerCodes(_values(rows, grid, upper, order, is_dead, encoding.most), grid))
    scales, zeros = (torch.cat([getattr(part.grid, name) for part in parts]) for name in ("scales", "zeros"))
    grid = replace(parts[0].grid, scales=scales, zeros=zeros)
    return IntegerCodes(torch.cat([part.values for part in parts]), grid)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Columns are too small to be shared: where a CPU has other work, threads waiting for each other take ten times as long."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def _values(weight: Tensor, grid: Grid, upper: Tensor, order: Tensor, is_dead: Tensor, most: int) -> Tensor:
    """Column by column in `order`; what rounding one costs is spread over those after it."""
    scales, zeros = (each.t()[order] for each in grid.spread())
    columns = weight.t()[order]
    columns[is_dead[order]] = 0
    values = torch.empty_like(columns, dtype=torch.uint8)
    on_gpu = columns.is_cuda and len(columns) % BLOCK == 0
    rounded = _recorded(columns.shape[1], most, columns.device) if on_gpu else partial(_round_block, most=most)
    for start in range(0, len(columns), BLOCK):
        stop = min(start + BLOCK, len(columns))
        here = slice(start, stop)
        values[here], errors = rounded(columns[here], scales[here], zeros[here], upper[here, here])
        columns[stop:].addmm_(upper[here, stop:].t(), errors, alpha=-1)
    return values[torch.argsort(order)].t().contiguous()


def _round_block(block: Tensor, scales: Tensor, zeros: Tensor, factor: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Values of neighbouring columns, and what is to be spread over those behind them; `block` is written over."""
    values, errors = torch.empty_like(block), torch.empty_like(block)
    for place, (column, scale, zero) in enumerate(zip(block, scales, zeros)):
        torch.div(column, scale, out=values[place]).add_(zero).round_().clamp_(0, most)
        torch.sub(values[place], zero, out=errors[place]).mul_(scale).sub_(column).div_(-factor[place, place])
        block[place + 1 :].addr_(factor[place, place + 1 :], errors[place], alpha=-1)
    return values, errors


RoundBlock = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@lru_cache(maxsize=4)
def _recorded(num_rows: int, most: int, device: torch.device) -> RoundBlock:
    """`_round_block` of a GPU, as one launch instead of some hundred, which take longer to ask for than to compute."""
    block, scales, zeros = torch.ones((3, BLOCK, num_rows), device=device).unbind()
    factor = torch.eye(BLOCK, device=device)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        _round_block(
            block, scales, zeros, factor, most
        )  # libraries allocate what they need before a recording, not in it
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # another thread may read the next layer
        found = _round_block(block, scales, zeros, factor, most)

    def run(*given: Tensor) -> tuple[Tensor, Tensor]:
        for place, numbers in zip((block, scales, zeros, factor), given):
            place.copy_(numbers)
        graph.replay()
        return found

    return run


def _inverse_factor(hessian: Tensor, is_dead: Tensor, order: Tensor, damping: float) -> Tensor:
    """The upper Cholesky factor of the inverse, inputs in `order`."""
    while True:
        damped = hessian.clone()
        damped.diagonal()[is_dead] = 1.0
        damped.diagonal().add_(damping * damped.diagonal().mean())
        lower, fault = torch.linalg.cholesky_ex(damped[order][:, order])
        if not int(fault):
            inverse = torch.cholesky_inverse(lower)
            upper: Tensor
            upper, fault = torch.linalg.cholesky_ex(inverse, upper=True)
            if not int(fault):
                return upper
        if damping >= MOST_DAMPING:
            return torch.eye(len(order), device=hessian.device)
        damping *= 10
