"""DoRA's magnitudes as factors of rows: each over the length that its row has with the change added.

A rank that has some columns of a matrix knows a part of those lengths' squares; ranks add them up, once for each adapter.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from penstock.errors import ModelFileError
from penstock.runtime.execution.load.adapters import Adapter
from penstock.runtime.execution.load.low_rank import LowRank

CUT_BY_COLUMNS = ("attention.out", "mlp.down")
"""Matrices of which tensor ranks have some columns each; of all others they have whole rows."""

AddUp = Callable[[Tensor], Tensor]
"""What all ranks of a layer have, added up."""


def with_factors(
    adapter: Adapter, squares: Callable[[str, LowRank], Tensor], *, is_cut: bool, add_up: AddUp | None
) -> Adapter:
    """An adapter whose changes have factors of rows in place of magnitudes, and count times them.

    `squares` finds the squared lengths of a matrix's rows with a change added, or what this rank has of them.
    """
    found = {
        (name, number): squares(name, part).cpu()
        for name, parts in adapter.changes.items()
        for number, part in enumerate(parts)
        if part is not None and part.scales is not None
    }
    parts = [key for key in found if is_cut and key[0].endswith(CUT_BY_COLUMNS)]
    if parts:
        if add_up is None:
            raise ModelFileError(f"the adapter {adapter.path} is a DoRA, whose lengths all ranks have to find together")
        sizes = [len(found[key]) for key in parts]
        found |= zip(parts, torch.split(add_up(torch.cat([found[key] for key in parts])), sizes), strict=True)
    changes = {
        name: tuple(
            part if part is None else _scaled(part, found.get((name, number))) for number, part in enumerate(each)
        )
        for name, each in adapter.changes.items()
    }
    return replace(adapter, changes=changes)


def _scaled(change: LowRank, squares: Tensor | None) -> LowRank:
    if change.scales is None or squares is None:
        return change
    factors = change.scales / squares.clamp(min=1e-12).sqrt()
    return LowRank(change.left * factors[:, None], change.right, change.first, factors)
