"""Where a parameter's rows go in a file: recipes read backwards.

A recipe says how tensors become one parameter; `PlacedRows` say which of its rows one tensor gets, so that whole rows,
also coded ones, can be handed out without knowing what they hold.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from penstock.errors import ConfigError
from penstock.runtime.models import weights as recipes
from penstock.runtime.models.spec import GQA, ModelSpec

Splits = Sequence[Sequence[int]]
"""Ways to share a parameter's rows among the parts of a recipe; the one with as many parts is it."""


@dataclass(frozen=True, slots=True)
class PlacedRows:
    name: str
    """The tensor in the file."""
    rows: Tensor
    """Numbers of the parameter's rows, in the tensor's order."""
    item: int | None = None
    """The expert, where each has tensors of its own."""
    minus: float = 0.0
    swapped: bool = False

    def of(self, values: Tensor) -> Tensor:
        """The tensor's numbers, from the parameter's."""
        if self.item is not None:
            values = values[self.item]
        axis = 1 if self.item is None and values.ndim == 3 else 0
        taken = values.index_select(axis, self.rows.to(values.device)) - self.minus
        return taken.t() if self.swapped else taken


def leaves(recipe: recipes.Recipe, num_rows: int, splits: Splits) -> list[PlacedRows]:
    return list(_leaves(recipe, PlacedRows("", torch.arange(num_rows)), splits))


def _leaves(recipe: recipes.Recipe, leaf: PlacedRows, splits: Splits) -> Iterator[PlacedRows]:
    match recipe:
        case recipes.Tensor(name):
            yield replace(leaf, name=name)
        case recipes.Concat(parts):
            shares = next((each for each in splits if len(each) == len(parts)), [1] * len(parts))
            unit = len(leaf.rows) // sum(shares)
            for part, rows in zip(parts, leaf.rows.split([share * unit for share in shares])):  # type: ignore[no-untyped-call]
                yield from _leaves(part, replace(leaf, rows=rows), splits)
        case recipes.Stack(parts):
            for item, part in enumerate(parts):
                yield from _leaves(part, replace(leaf, item=item), splits)
        case recipes.Swap(part):
            yield from _leaves(part, replace(leaf, swapped=not leaf.swapped), splits)
        case recipes.Plus(part, constant):
            yield from _leaves(part, replace(leaf, minus=leaf.minus + constant), splits)
        case recipes.HalvesPaired(part, num_heads):
            paired = leaf.rows.view(num_heads, 2, -1).transpose(1, 2).flatten()
            yield from _leaves(part, replace(leaf, rows=paired), splits)
        case _:
            raise ConfigError(
                "this architecture keeps some matrices in an order that is not written; choose another format with --to"
            )


def splits_of(spec: ModelSpec, parameter: str) -> Splits:
    """How rows of q, k and v share the first projection; halves are equal everywhere else."""
    words = parameter.split(".")
    if words[0] != "layers" or ".attention.qkv." not in parameter:
        return ()
    attention = spec.layers[int(words[1])].attention
    if not isinstance(attention, GQA):
        return ()
    share = attention.num_heads // attention.num_kv_heads
    return ((share, 1, 1),)
