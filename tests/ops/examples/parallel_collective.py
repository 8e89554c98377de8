"""Arguments of the operations of `ops.parallel.collective`."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from penstock.runtime.ops.parallel.collective import (
    Alone,
    all_gather_columns,
    all_reduce,
    all_reduce_likeliest,
)
from tests.ops.examples import examples_of


def _rows(device: torch.device) -> Tensor:
    generator = torch.Generator(device).manual_seed(31)
    return torch.randn((5, 24), generator=generator, device=device)


@examples_of(all_reduce)
def _sum_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    yield _rows(device), Alone()


@examples_of(all_gather_columns)
def _column_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    yield _rows(device), Alone(), (24,)


@examples_of(all_reduce_likeliest)
def _likeliest_examples(device: torch.device) -> Iterator[tuple[Any, ...]]:
    yield _rows(device), 100, Alone()
