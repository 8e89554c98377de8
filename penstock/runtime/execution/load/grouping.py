"""Weights of quantized files as groups of 32, without passing through floats where the file's own groups allow it.

exact         Q4_0 Q4_1 Q5_0 Q5_1 Q8_0
scale to 2^-11  Q4_K Q5_K: the product of a block's scale and a group's is rounded to half precision
the same      AWQ, GPTQ, compressed-tensors: see `integers`; 8-bit whole numbers with a scale a row: see `scaled`
to 1/254      all others: 8-bit values nearest to the file's numbers, relative to the largest of a group
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from penstock.errors import ModelFileError
from penstock.runtime.execution.load.audit import TensorAudit
from penstock.runtime.execution.load.copied import PLAIN
from penstock.runtime.execution.load.integers import IntegerMatrix
from penstock.runtime.execution.load.recipe import open_recipe
from penstock.runtime.execution.load.scaled import ScaledMatrix
from penstock.runtime.formats.checkpoint import Checkpoint, RawTensor, quoted
from penstock.runtime.formats.quants import dequantize_rows
from penstock.runtime.models import weights as recipes
from penstock.runtime.ops.quantized.packed import GROUP, Grouped, join_rows, quantize

Bytes = npt.NDArray[np.uint8]
SLICE_VALUES = 1 << 22


def group_recipe(recipe: recipes.Recipe, checkpoint: Checkpoint, audit: TensorAudit) -> Grouped:
    """A matrix made of whole rows of quantized tensors."""
    match recipe:
        case recipes.Tensor():
            return _group_tensor(audit.reached.setdefault(recipe.name, checkpoint.tensor(recipe.name)), audit)
        case recipes.Concat(axis=0):
            return join_rows([group_recipe(part, checkpoint, audit) for part in recipe.parts])
        case recipes.Take(recipes.Tensor(name), axis=0, step=1):
            raw = audit.reached.setdefault(name, checkpoint.tensor(name))
            start, stop, _ = slice(recipe.start, recipe.stop).indices(raw.num_rows)
            return _group_tensor(replace(raw, shape=(stop - start, raw.row_size), data=raw.rows[start:stop]), audit)
        case recipes.Take(axis=0):
            matrix = group_recipe(recipe.part, checkpoint, audit)
            wanted = range(*slice(recipe.start, recipe.stop, recipe.step).indices(matrix.num_rows))
            return matrix.take(torch.arange(wanted.start, wanted.stop, wanted.step))
        case recipes.Take(axis=1, step=1) if not has_order(recipe, checkpoint):
            matrix = group_recipe(recipe.part, checkpoint, audit)
            return matrix.take_columns(range(*slice(recipe.start, recipe.stop).indices(matrix.num_columns)))
        case recipes.HalvesPaired():
            matrix = group_recipe(recipe.part, checkpoint, audit)
            order = torch.arange(matrix.num_rows).view(recipe.num_heads, -1, 2).transpose(1, 2).flatten()
            return matrix.take(order)
        case _:
            source = open_recipe(recipe, checkpoint, audit)
            if isinstance(source, IntegerMatrix):
                _ = source.shape  # checked
                return source.grouped()
            if isinstance(source, ScaledMatrix) and source.is_rows_of_integers:
                return source.grouped()
            return quantize(source.read(0, source.shape[0]))


def is_quantized(recipe: recipes.Recipe, checkpoint: Checkpoint) -> bool:
    """All its numbers are stored in fewer bits than floats have."""
    return all(
        isinstance(part, recipes.Coded | recipes.Mxfp4)
        or all(checkpoint.tensor(name).dtype not in PLAIN for name in recipes.sources(part))
        for part in recipes.row_parts(recipe)
    )


def has_order(recipe: recipes.Recipe, checkpoint: Checkpoint) -> bool:
    """Some of its rows take their inputs in another order than they come."""
    ordered = (part for part in recipes.row_parts(recipe) if isinstance(part, recipes.Gptq))
    sources = (open_recipe(part, checkpoint, TensorAudit()) for part in ordered)
    return any(isinstance(source, IntegerMatrix) and source.order is not None for source in sources)


def rounds_inputs(recipe: recipes.Recipe) -> bool:
    """All of it was made to be multiplied with rows of 8 bits."""
    return all(isinstance(part, recipes.ScaledBytes) and part.rounds for part in recipes.row_parts(recipe))


def _group_tensor(raw: RawTensor, audit: TensorAudit) -> Grouped:
    if raw.row_size % GROUP:
        raise ModelFileError(f"tensor {quoted(raw.name)} has rows of {raw.row_size} values, which are not whole groups")
    reader = _READERS.get(raw.dtype)
    matrix = _requantized(raw) if reader is None else reader(raw)
    for numbers in (matrix.scales, matrix.minimums):
        if numbers is not None and not bool(torch.isfinite(numbers).all()):
            raise ModelFileError(
                f"tensor {quoted(raw.name)} holds numbers that are not finite; the file is damaged: fetch it again"
            )
    if any(numbers is not None and bool((numbers != 0).any()) for numbers in (matrix.scales, matrix.minimums)):
        audit.nonzero.add(raw.name)
    return matrix


def _requantized(raw: RawTensor) -> Grouped:
    step = max(1, SLICE_VALUES // raw.row_size)
    slices = [slice(start, start + step) for start in range(0, raw.num_rows, step)]
    return join_rows([quantize(torch.from_numpy(dequantize_rows(raw, rows))) for rows in slices])


def _blocks(raw: RawTensor, num_bytes: int) -> Bytes:
    return raw.data.reshape(raw.num_rows, -1, num_bytes)


def _bytes(part: Bytes) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(part))


def _half(part: Bytes) -> Tensor:
    """Half-precision numbers that stand alone in their blocks, [rows, blocks]."""
    return _bytes(part).view(torch.float16).squeeze(-1)


def _five_bits(blocks: Bytes, start: int) -> Tensor:
    low, high = _bytes(blocks[:, :, start + 4 :]), blocks[:, :, start : start + 4]
    fifth = torch.from_numpy(np.unpackbits(np.ascontiguousarray(high), axis=-1, bitorder="little"))
    return (torch.cat((low & 15, low >> 4), dim=-1) | (fifth << 4)).view(torch.int8)


def _simple(bits: int, has_minimum: bool, raw: RawTensor) -> Grouped:
    """Blocks of a scale, a minimum or none, and 32 numbers; without a minimum those of 4 and 5 bits count from the middle."""
    first = 4 if has_minimum else 2
    blocks = _blocks(raw, first + 4 * bits)
    scales, minimums = _half(blocks[:, :, :2]), _half(blocks[:, :, 2:4]) if has_minimum else None
    if bits == 4:
        return Grouped(_bytes(blocks[:, :, first:]), scales, scales * -8 if minimums is None else minimums)
    if bits == 8:
        return Grouped(_bytes(blocks[:, :, first:]).view(torch.int8), scales, minimums)
    values = _five_bits(blocks, first)
    return Grouped(values if has_minimum else values - 16, scales, minimums)


def _folded(blocks: Bytes) -> tuple[Tensor, Tensor]:
    """Scales and minimums of the eight groups of Q4_K and Q5_K blocks, [rows, 8 * blocks]."""
    first, second, last = _bytes(blocks[:, :, 4:16]).split(4, dim=-1)  # type: ignore[no-untyped-call]
    scales = torch.cat((first & 63, (last & 15) | (first >> 6 << 4)), dim=-1)
    leasts = torch.cat((second & 63, (last >> 4) | (second >> 6 << 4)), dim=-1)
    scale, least = (_half(blocks[:, :, at : at + 2]).float().unsqueeze(-1) for at in (0, 2))
    return (scale * scales).flatten(1).half(), (least * -leasts.float()).flatten(1).half()


def _wide_halves(part: Bytes) -> Tensor:
    """Four runs of 32 bytes a block, low halves one group and high halves the next: [rows, blocks, 8, 32]."""
    runs = _bytes(part).view(*part.shape[:2], 4, 32)
    return torch.stack((runs & 15, runs >> 4), dim=3).flatten(2, 3)


def _q4_k(raw: RawTensor) -> Grouped:
    blocks = _blocks(raw, 144)
    values = _wide_halves(blocks[:, :, 16:]).flatten(1, 2)
    return Grouped(values[..., :16] | (values[..., 16:] << 4), *_folded(blocks))


def _q5_k(raw: RawTensor) -> Grouped:
    blocks = _blocks(raw, 176)
    planes = torch.arange(8, dtype=torch.uint8)[:, None]
    fifth = (_bytes(blocks[:, :, 16:48]).unsqueeze(2) >> planes) & 1
    values = _wide_halves(blocks[:, :, 48:]) | (fifth << 4)
    return Grouped(values.flatten(1, 2).view(torch.int8), *_folded(blocks))


_READERS: dict[str, Callable[[RawTensor], Grouped]] = {
    "Q4_0": partial(_simple, 4, False),
    "Q4_1": partial(_simple, 4, True),
    "Q5_0": partial(_simple, 5, False),
    "Q5_1": partial(_simple, 5, True),
    "Q8_0": partial(_simple, 8, False),
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
}
