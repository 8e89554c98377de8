"""Checkpoints of whole numbers (AWQ, GPTQ, compressed-tensors): which of a model's tensors they hold in place of floats.

An architecture's recipes are written for floats. Matrices that a `quantization_config` has replaced are found by name here,
and their recipes rewritten; a setting of a method that is not supported is refused by its name.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from penstock.errors import ModelFileError
from penstock.runtime.models.fields import Fields
from penstock.runtime.models.weights import (
    Awq,
    Gptq,
    HalvesPaired,
    Integers,
    PackQuantized,
    Plus,
    Recipe,
    Recipes,
    RowRange,
    Stack,
    Swap,
    Take,
    Tensor,
    sources,
)

Find = Callable[[str], Integers | None]
"""The matrix of whole numbers that stands for the float tensor `NAME.weight`, given NAME."""

GROUP_SIZES = (32, 64, 128)
WHOLE_ROW = -1


def replace_floats(config: Mapping[str, Any], recipes: Recipes, names: Collection[str]) -> Recipes:
    """Recipes that read whole numbers wherever the checkpoint holds them; `names` are all its tensors."""
    section = Fields(config).section("quantization_config")
    make_find = section.choice("quant_method", METHODS)
    read = {source for recipe in recipes.values() for source in sources(recipe)}
    find = make_find(section, names, read)
    replaced = {name: _replaced(recipe, find) for name, recipe in recipes.items()}
    if names and replaced == recipes:
        raise ModelFileError("config.json names a quantization, but the checkpoint holds no matrix of that kind")
    return replaced


def _replaced(recipe: Recipe, find: Find) -> Recipe:
    def inner(part: Recipe) -> Recipe:
        return _replaced(part, find)

    match recipe:
        case Tensor(name):
            return find(name.removesuffix(".weight")) or recipe if name.endswith(".weight") else recipe
        case Swap(Tensor() as part) if isinstance(inner(part), Integers):
            return inner(part)  # these are stored for a matrix [out, in], whatever the floats were
        case Swap(part):
            return Swap(inner(part))
        case RowRange(parts, axis):
            return RowRange(tuple(inner(part) for part in parts), axis)
        case Stack(parts):
            return Stack(tuple(inner(part) for part in parts))
        case Take(part, start, stop, step, axis):
            return Take(inner(part), start, stop, step, axis)
        case HalvesPaired(part, num_heads):
            return HalvesPaired(inner(part), num_heads)
        case Plus(part, constant):
            return Plus(inner(part), constant)
        case _:
            return recipe


def _awq(section: Fields, names: Collection[str], read: Collection[str]) -> Find:
    section.expect("version", "gemm", "GEMM")
    section.expect("zero_point", True)
    section.expect("bits", 4)
    group_size = _group_size(section)
    return lambda name: Awq(name, group_size) if f"{name}.qweight" in names else None


def _gptq(section: Fields, names: Collection[str], read: Collection[str]) -> Find:
    bits = _bits(section, "bits")
    group_size = _group_size(section)
    for flag in ("is_marlin_format", "use_marlin"):
        section.expect(flag, False)
    section.expect("dynamic", {})
    less_one = section.choice("checkpoint_format", {"gptq": True, "gptq_v2": False}, "gptq")

    def find(name: str) -> Gptq | None:
        if f"{name}.qweight" not in names:
            return None
        bias = f"{name}.bias"
        return Gptq(name, group_size, bits, less_one, f"{name}.g_idx" in names, bias in names and bias not in read)

    return find


def _compressed(section: Fields, names: Collection[str], read: Collection[str]) -> Find:
    section.expect("format", "pack-quantized")
    groups = section.section("config_groups")
    if not groups.has("group_0") or groups.has("group_1"):
        raise section.wrong("config_groups", "one group, group_0: several kinds of matrices in one file are not read")
    group = groups.section("group_0")
    for activations in ("input_activations", "output_activations"):
        if group.has(activations):
            raise group.wrong(activations, "null: activations are not quantized here")
    weights = group.section("weights")
    weights.expect("type", "int")
    weights.expect("actorder", "static", "weight")
    bits = _bits(weights, "num_bits")
    is_row = weights.choice("strategy", {"group": False, "channel": True})
    group_size = None if is_row else _group_size(weights)

    def find(name: str) -> PackQuantized | None:
        if f"{name}.weight_packed" not in names:
            return None
        return PackQuantized(name, group_size, bits, f"{name}.weight_zero_point" in names)

    return find


METHODS: dict[str, Callable[[Fields, Collection[str], Collection[str]], Find]] = {
    "awq": _awq,
    "gptq": _gptq,
    "compressed-tensors": _compressed,
}
"""By `quant_method`."""


def _bits(section: Fields, name: str) -> int:
    bits = section.whole(name, 1, 64)
    if bits not in (4, 8):
        raise section.wrong(name, "4 or 8")
    return bits


def _group_size(section: Fields) -> int | None:
    size = section.whole("group_size", WHOLE_ROW, 2**20)
    if size != WHOLE_ROW and size not in GROUP_SIZES:
        raise section.wrong("group_size", "one of " + ", ".join(str(size) for size in (WHOLE_ROW, *GROUP_SIZES)))
    return None if size == WHOLE_ROW else size
