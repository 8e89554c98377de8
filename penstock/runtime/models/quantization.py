"""Checkpoints in few bits (AWQ, GPTQ, compressed-tensors, FP8, bitsandbytes): which tensors they hold in place of floats.

An architecture's recipes are written for floats. Matrices that a `quantization_config` has replaced are found by name here,
and their recipes rewritten; a setting of a method that is not supported is refused by its name.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from penstock.errors import ModelFileError
from penstock.runtime.models.reading.fields import Fields
from penstock.runtime.models.weights import (
    Awq,
    Coded,
    Gptq,
    Mxfp4,
    Nf4,
    PackQuantized,
    Recipe,
    Recipes,
    ScaledBytes,
    Tensor,
    on_tensors,
    sources,
)

Find = Callable[[str], Coded | Mxfp4 | None]
"""The matrix in few bits that stands for the float tensor `NAME.weight`, given NAME."""

MAX_PATTERN = 256
PLAIN_PATTERN = re.compile(r"re:[\w.*|()$^\\-]*")
"""Patterns that cannot take long: nothing repeated is repeated again."""
GROUP_SIZES = (32, 64, 128)
WHOLE_ROW = -1


def replace_floats(config: Mapping[str, Any], recipes: Recipes, names: Collection[str]) -> Recipes:
    """Recipes that read whole numbers wherever the checkpoint holds them; `names` are all its tensors."""
    section = Fields(config).section("quantization_config")
    make_find = section.choice("quant_method", METHODS)
    read = {source for recipe in recipes.values() for source in sources(recipe)}
    find = make_find(section, names, read)

    def in_few_bits(tensor: Tensor) -> Recipe:
        return (tensor.name.endswith(".weight") and find(tensor.name.removesuffix(".weight"))) or tensor

    replaced = {name: on_tensors(recipe, in_few_bits) for name, recipe in recipes.items()}
    if names and replaced == recipes:
        raise ModelFileError("config.json names a quantization, but the checkpoint holds no matrix of that kind")
    return replaced


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
    """Several kinds of matrices in one file are told apart by their groups' targets."""
    groups = section.section("config_groups")
    kinds = [_compressed_group(section, groups.section(key)) for key in groups.names()]
    if not kinds:
        raise section.wrong("config_groups", "one group or more")

    def find(name: str) -> Coded | Mxfp4 | None:
        if f"{name}.weight_packed" not in names and f"{name}.weight_scale" not in names:
            return None
        return next((make(name, names) for aims, make in kinds if aims(name)), None)

    return find


Make = Callable[[str, Collection[str]], "Coded | Mxfp4"]


def _compressed_group(section: Fields, group: Fields) -> tuple[Callable[[str], bool], Make]:
    """Which matrices a group is about, and how one of them is read. Of what is said of activations, 8-bit whole
    numbers are heard; others are computed with more bits here."""
    formats = {name: name for name in _COMPRESSED_FORMATS}
    kind = (group if group.has("format") else section).choice("format", formats)
    make = _COMPRESSED_FORMATS[kind](group.section("weights"))
    rounds = kind == "int-quantized" and group.section("input_activations").whole("num_bits", 0, 64, 0) == 8

    def find(name: str, names: Collection[str]) -> Coded | Mxfp4:
        recipe = make(name, names)
        return replace(recipe, rounds=True) if rounds and isinstance(recipe, ScaledBytes) else recipe

    return target_matcher(group), find


def _packed(weights: Fields) -> Make:
    weights.expect("type", "int")
    weights.expect("actorder", "static", "weight")
    bits = _bits(weights, "num_bits")
    is_row = weights.choice("strategy", {"group": False, "channel": True})
    size = None if is_row else _group_size(weights)
    return lambda name, names: PackQuantized(name, size, bits, f"{name}.weight_zero_point" in names)


def _whole_bytes(weights: Fields) -> Make:
    """8-bit numbers that lie as they are."""
    weights.expect("num_bits", 8)
    weights.expect("symmetric", True)
    strategy = weights.choice("strategy", {name: name for name in ("tensor", "channel", "block", "group")})
    block: tuple[int, int] | None = None
    if strategy == "block":
        block = _block(weights, "block_structure")
    elif strategy == "group":
        block = (1, weights.whole("group_size", 1, 2**20))
    return lambda name, names: ScaledBytes(name, "weight_scale", block)


def _microscaled(weights: Fields) -> Make:
    weights.expect("num_bits", 4)
    weights.expect("group_size", 32)
    return lambda name, names: Mxfp4(f"{name}.weight_packed", f"{name}.weight_scale")


_COMPRESSED_FORMATS: dict[str, Callable[[Fields], Make]] = {
    "pack-quantized": _packed,
    "int-quantized": _whole_bytes,
    "float-quantized": _whole_bytes,
    "naive-quantized": _whole_bytes,
    "mxfp8-quantized": _whole_bytes,
    "mxfp4-pack-quantized": _microscaled,
}


def target_matcher(group: Fields) -> Callable[[str], bool]:
    """Whether a group is about a matrix: by class, by name, by the end of its name, or by a plain pattern."""
    targets = [str(target) for target in group.items("targets")] if group.has("targets") else ["Linear"]
    patterns = []
    for target in targets:
        if target.startswith("re:"):
            if len(target) > MAX_PATTERN or not PLAIN_PATTERN.fullmatch(target):
                raise group.wrong("targets", "names, or patterns of letters, dots, stars and bars alone")
            patterns.append(re.compile(target.removeprefix("re:")))
    plain = {target for target in targets if not target.startswith("re:")}

    def aims(name: str) -> bool:
        ends = any(name.endswith(f".{target}") for target in plain) if len(plain) < 64 else False
        return "Linear" in plain or name in plain or ends or any(pattern.match(name) for pattern in patterns)

    return aims


def _fp8(section: Fields, names: Collection[str], read: Collection[str]) -> Find:
    block = _block(section, "weight_block_size") if section.has("weight_block_size") else None

    def find(name: str) -> ScaledBytes | None:
        for scales in ("weight_scale_inv", "weight_scale"):
            if f"{name}.{scales}" in names:
                return ScaledBytes(name, scales, block)
        return None

    return find


def _bitsandbytes(section: Fields, names: Collection[str], read: Collection[str]) -> Find:
    def find(name: str) -> ScaledBytes | Nf4 | None:
        if f"{name}.SCB" in names:
            return ScaledBytes(name, "SCB", None, 1 / 127)
        for state in ("bitsandbytes__nf4", "bitsandbytes__fp4"):
            if f"{name}.weight.quant_state.{state}" in names:
                return Nf4(name, state, f"{name}.weight.nested_absmax" in names)
        return None

    return find


def _block(section: Fields, name: str) -> tuple[int, int]:
    sizes = section.items(name, 2)
    if not all(type(size) is int and 0 < size <= 2**20 for size in sizes):
        raise section.wrong(name, "rows and columns of a block")
    return sizes[0], sizes[1]


METHODS: dict[str, Callable[[Fields, Collection[str], Collection[str]], Find]] = {
    "awq": _awq,
    "gptq": _gptq,
    "compressed-tensors": _compressed,
    "fp8": _fp8,
    "bitsandbytes": _bitsandbytes,
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
