"""How a checkpoint's tensors become a model's parameters, as plain values.

An architecture names, for each of our parameters, a recipe over the checkpoint's tensor names. The loader in the torch
island evaluates recipes; nothing here touches a tensor. Recipes that only pick, join or permute whole rows also work on
quantized rows without unpacking them.

Our parameter names (`{i}` counts layers; a part absent from the spec is absent here; `.bias` beside `.weight` where the
spec has one). All matrices are [out, in].

    embedding.weight  positions.weight  token_types.weight  embedding_norm.weight
    layers.{i}.attention_norm.weight        layers.{i}.attention_post_norm.weight
    layers.{i}.attention.qkv.weight         rows q, then k, then v
    layers.{i}.attention.q_norm.weight      layers.{i}.attention.k_norm.weight
    layers.{i}.attention.sinks              one number per head
    layers.{i}.attention.out.weight
    layers.{i}.mlp_norm.weight              layers.{i}.mlp_post_norm.weight
    layers.{i}.mlp.gate_up.weight           rows gate, then up (PlainMLP: layers.{i}.mlp.up.weight)
    layers.{i}.mlp.down.weight
    layers.{i}.mlp.router.weight
    layers.{i}.mlp.experts.gate_up.weight   [experts, gate then up rows, hidden]
    layers.{i}.mlp.experts.down.weight      [experts, hidden, width]
    norm.weight  output.weight

`attention_norm` and `mlp_norm` hold the norm of the placements pre, sandwich and residual; `*_post_norm` that of post and
sandwich.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Tensor:
    """A checkpoint tensor as it stands."""

    name: str


@dataclass(frozen=True, slots=True)
class Concat:
    """Parts joined along the first axis, or along another."""

    parts: tuple["Recipe", ...]
    axis: int = 0


@dataclass(frozen=True, slots=True)
class Stack:
    """Parts joined along a new first axis."""

    parts: tuple["Recipe", ...]


@dataclass(frozen=True, slots=True)
class Take:
    """Rows `start`, `start + step`, ... before `stop`, counted on `axis`."""

    part: "Recipe"
    start: int
    stop: int
    step: int = 1
    axis: int = 0


@dataclass(frozen=True, slots=True)
class Swap:
    """The last two axes exchanged."""

    part: "Recipe"


@dataclass(frozen=True, slots=True)
class HalvesPaired:
    """Rows of each head brought from neighbours paired (2d, 2d + 1) to halves paired (d, d + dim/2)."""

    part: "Recipe"
    num_heads: int


@dataclass(frozen=True, slots=True)
class Plus:
    """A constant added: Gemma's norms store the distance from one."""

    part: "Recipe"
    constant: float


@dataclass(frozen=True, slots=True)
class Times:
    """Multiplied by a constant: what a model would multiply activations by."""

    part: "Recipe"
    factor: float


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """4-bit floats in blocks of 32 that share a power of two, as GPT-OSS stores its experts.

    Blocks are [..., blocks, 16] bytes, scales [..., blocks].
    """

    blocks: str
    scales: str


@dataclass(frozen=True, slots=True)
class Awq:
    """A matrix of 4-bit numbers as AutoAWQ's "gemm" stores it; `group_size` None is one group for a whole row.

    `{name}.qweight` [in, out / 8], `{name}.qzeros` [groups, out / 8], `{name}.scales` [groups, out]. The eight numbers of a
    32-bit word are neighbouring outputs in the order 0 2 4 6 1 3 5 7.
    """

    name: str
    group_size: int | None


@dataclass(frozen=True, slots=True)
class Gptq:
    """A matrix of 4-bit or 8-bit numbers as GPTQ stores it.

    `{name}.qweight` [in * bits / 32, out], `{name}.qzeros` [groups, out * bits / 32], `{name}.scales` [groups, out]. A word of
    weights is neighbouring inputs, a word of zeros neighbouring outputs, the first lowest. `{name}.g_idx` [in] is the group of
    each input.
    """

    name: str
    group_size: int | None
    bits: int
    zeros_less_one: bool
    """What is stored of a zero is one less."""
    has_order: bool
    """There is a `g_idx`."""
    has_spare_bias: bool
    """There is a `bias` that the architecture has no place for, as some writers leave: it must be zeros."""


@dataclass(frozen=True, slots=True)
class PackQuantized:
    """A matrix of 4-bit or 8-bit numbers as compressed-tensors' "pack-quantized" stores it.

    `{name}.weight_packed` [out, in * bits / 32], `{name}.weight_scale` [out, groups], `{name}.weight_zero_point`
    [out * bits / 32, groups], `{name}.weight_shape`. Half of a number's range is added to it and to its zero.
    """

    name: str
    group_size: int | None
    bits: int
    has_zeros: bool


@dataclass(frozen=True, slots=True)
class ScaledBytes:
    """A matrix of 8-bit numbers, floats (E4M3) or whole ones, and scales that multiply them.

    `{name}.weight` [out, in] and `{name}.{scales}`: one number, one a row, or one for each rectangle of `block` [rows,
    columns]. Scales of bytes are exponents of two, biased by 127.
    """

    name: str
    scales: str
    block: tuple[int, int] | None = None
    factor: float = 1.0
    """Multiplies the scales."""
    rounds: bool = False
    """Made for activations that are rounded to 8-bit whole numbers, each token by its own scale (W8A8)."""


@dataclass(frozen=True, slots=True)
class Nf4:
    """A matrix of 4-bit numbers that name the levels of a table, as bitsandbytes stores it.

    `{name}.weight` is bytes of two values, the first high; `{name}.weight.{part}` for each of `parts` says the rest: the table,
    the largest magnitude of every block (itself in 8 bits, with a table, where `is_nested`), and the shape, as JSON.
    """

    name: str
    state: str
    is_nested: bool


Integers = Awq | Gptq | PackQuantized
Coded = Integers | ScaledBytes | Nf4
"""A matrix in place of the float tensor `{name}.weight`."""
Recipe = Tensor | Concat | Stack | Take | Swap | HalvesPaired | Plus | Times | Mxfp4 | Coded
Recipes = dict[str, Recipe]


def sources(recipe: Recipe) -> Iterator[str]:
    """Names of the checkpoint's tensors that a recipe reads."""
    match recipe:
        case Tensor(name):
            yield name
        case Mxfp4(blocks, scales):
            yield from (blocks, scales)
        case Awq() | Gptq() | PackQuantized():
            yield from (f"{recipe.name}.{part}" for part in integer_parts(recipe))
        case ScaledBytes(name, scales):
            yield from (f"{name}.weight", f"{name}.{scales}")
        case Nf4():
            yield from (f"{recipe.name}.weight{part}" for part in nf4_parts(recipe))
        case Concat(parts) | Stack(parts):
            for part in parts:
                yield from sources(part)
        case Take(part) | Swap(part) | HalvesPaired(part) | Plus(part) | Times(part):
            yield from sources(part)


def on_tensors(recipe: Recipe, change: Callable[[Tensor], Recipe]) -> Recipe:
    """The same recipe over what `change` makes of each tensor. Matrices in few bits are stored [out, in], whatever the floats
    were."""
    match recipe:
        case Tensor():
            return change(recipe)
        case Swap(part):
            made = on_tensors(part, change)
            return made if isinstance(made, Coded | Mxfp4) else Swap(made)
        case Concat() | Stack():
            return replace(recipe, parts=tuple(on_tensors(part, change) for part in recipe.parts))
        case Take() | HalvesPaired() | Plus() | Times():
            return replace(recipe, part=on_tensors(recipe.part, change))
        case _:
            return recipe


def row_parts(recipe: Recipe) -> Iterator[Recipe]:
    """What a recipe is made of by picking, joining and permuting whole rows."""
    match recipe:
        case Concat(parts) | Stack(parts):
            for part in parts:
                yield from row_parts(part)
        case Take(part) | HalvesPaired(part):
            yield from row_parts(part)
        case _:
            yield recipe


def integer_parts(recipe: Integers) -> tuple[str, ...]:
    """Last names of a matrix's tensors: numbers, scales, zeros if there are any, then what else there is."""
    match recipe:
        case Awq():
            return ("qweight", "scales", "qzeros")
        case Gptq():
            order = ("g_idx",) if recipe.has_order else ()
            return ("qweight", "scales", "qzeros", *order, *(("bias",) if recipe.has_spare_bias else ()))
        case PackQuantized():
            zeros = ("weight_zero_point",) if recipe.has_zeros else ()
            return ("weight_packed", "weight_scale", *zeros, "weight_shape")


def nf4_parts(recipe: Nf4) -> tuple[str, ...]:
    """What follows `{name}.weight` in the names of a matrix's tensors."""
    nested = (".nested_absmax", ".nested_quant_map") if recipe.is_nested else ()
    return ("", ".absmax", ".quant_map", f".quant_state.{recipe.state}", *nested)
