"""Reads how a model turns positions into rotations: plain RoPE and each way of scaling it.

Both spellings of a config are read (`rope_theta` with `rope_scaling`, and the newer `rope_parameters`), and GGUF's keys
with the factor tensors that stand in for keys there.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from penstock.errors import ModelFileError
from penstock.runtime.models.reading.fields import MAX_CONTEXT, Fields
from penstock.runtime.models.spec import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
    RopeScaling,
    YarnScaling,
)

MAX_FACTOR = 1e6
FREQUENCY_FACTORS = "rope_freqs.weight"
SHORT_FACTORS = "rope_factors_short.weight"
LONG_FACTORS = "rope_factors_long.weight"
FACTOR_TENSORS = (FREQUENCY_FACTORS, SHORT_FACTORS, LONG_FACTORS)
"""Tensors of a GGUF file that are settings rather than weights: one number per rotated pair."""


def rope_from_config(
    fields: Fields, head_dim: int, context: int, *, theta: float = 10_000.0, partial: bool = False
) -> Rope:
    """`partial` says that the architecture may rotate only the first part of a head."""
    section = fields.section("rope_scaling" if fields.has("rope_scaling") else "rope_parameters")
    return _rope(section, fields, head_dim, context, theta, partial)


def rope_from_section(section: Fields, head_dim: int, context: int, theta: float) -> Rope:
    """From one entry of a `rope_parameters` that has an entry per kind of layer."""
    return _rope(section, section, head_dim, context, theta, partial=False)


def _rope(section: Fields, fields: Fields, head_dim: int, context: int, theta: float, partial: bool) -> Rope:
    theta_at = section if section.has("rope_theta") else fields
    theta = theta_at.number("rope_theta", 2.0, 1e12, theta)
    share_at = section if section.has("partial_rotary_factor") else fields
    if not partial:
        share_at.expect("partial_rotary_factor", 1, 1.0)
    dim = int(head_dim * share_at.number("partial_rotary_factor", 0.0, 1.0, 1.0))
    if dim < 2 or dim % 2:
        raise ModelFileError(f"{fields.source}: RoPE would turn {dim} of {head_dim} numbers; they must be pairs")
    kind = "rope_type" if section.has("rope_type") else "type"
    read = section.choice(kind, _SCALINGS, "default")
    return Rope(dim, theta, read(section, fields, dim, context))


def _no_scaling(section: Fields, fields: Fields, dim: int, context: int) -> None:
    return None


def _linear(section: Fields, fields: Fields, dim: int, context: int) -> LinearScaling:
    return LinearScaling(section.number("factor", 1.0, MAX_FACTOR))


def _dynamic(section: Fields, fields: Fields, dim: int, context: int) -> DynamicScaling:
    if dim < 4:
        raise ModelFileError(f"{fields.source}: dynamic RoPE needs heads of 4 numbers or more, not {dim}")
    return DynamicScaling(section.number("factor", 1.0, MAX_FACTOR), context)


def _yarn(section: Fields, fields: Fields, dim: int, context: int) -> YarnScaling:
    original = _original_context(section, fields, context)
    factor = section.number("factor", 1.0, MAX_FACTOR, max(1.0, context / original))
    fast = section.number("beta_fast", 1e-6, 1e6, 32.0)
    slow = section.number("beta_slow", 1e-6, 1e6, 1.0)
    if section.has("attention_factor"):
        attention_factor = section.number("attention_factor", 1e-6, 1e3)
    elif section.has("mscale") and section.has("mscale_all_dim"):
        shares = (section.number("mscale", 1e-6, 1e3), section.number("mscale_all_dim", 1e-6, 1e3))
        attention_factor = yarn_attention_factor(factor, shares[0]) / yarn_attention_factor(factor, shares[1])
    else:
        attention_factor = yarn_attention_factor(factor)
    return YarnScaling(factor, original, fast, slow, attention_factor, section.flag("truncate", True))


def yarn_attention_factor(factor: float, share: float = 1.0) -> float:
    return 0.1 * share * math.log(factor) + 1.0


def _llama3(section: Fields, fields: Fields, dim: int, context: int) -> Llama3Scaling:
    low = section.number("low_freq_factor", 1e-6, 1e6)
    high = section.number("high_freq_factor", 1e-6, 1e6)
    if not low < high:
        raise section.wrong("high_freq_factor", f"above low_freq_factor, which is {low:g}")
    original = _original_context(section, fields, context)
    return Llama3Scaling(section.number("factor", 1.0, MAX_FACTOR), low, high, original)


def _longrope(section: Fields, fields: Fields, dim: int, context: int) -> LongRopeScaling:
    original = _original_context(section, fields, context)
    factor = section.number("factor", 1.0, MAX_FACTOR, max(1.0, context / original))
    default = math.sqrt(1.0 + math.log(factor) / math.log(original)) if factor > 1.0 else 1.0
    return LongRopeScaling(
        section.numbers("short_factor", dim // 2, 1e-6, MAX_FACTOR),
        section.numbers("long_factor", dim // 2, 1e-6, MAX_FACTOR),
        original,
        section.number("attention_factor", 1e-6, 1e3, default),
    )


def _original_context(section: Fields, fields: Fields, context: int) -> int:
    name = "original_max_position_embeddings"
    return (fields if fields.has(name) else section).whole(name, 2, MAX_CONTEXT, context)


_SCALINGS: dict[str, Callable[[Fields, Fields, int, int], RopeScaling | None]] = {
    "default": _no_scaling,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
    "su": _longrope,
}


def scaled_context(context: int, scaling: RopeScaling | None) -> int:
    """The context a config promises: these scalings stretch the length it states, the others are included in it."""
    match scaling:
        case LinearScaling(factor) | DynamicScaling(factor):
            stretched = int(context * factor)
        case YarnScaling(factor, original):
            stretched = int(original * factor)
        case _:
            stretched = context
    if stretched > MAX_CONTEXT:
        raise ModelFileError(f"RoPE scaling would make a context of {stretched:,} tokens; at most {MAX_CONTEXT:,}")
    return stretched


def rope_from_gguf(
    fields: Fields, factors: Mapping[str, Sequence[float]], head_dim: int, context: int, *, truncate: bool = True
) -> Rope:
    """`factors` holds what the file's `FACTOR_TENSORS` contain; `truncate` is what YaRN does at this architecture."""
    dim = fields.whole("rope.dimension_count", 2, head_dim, head_dim)
    if dim % 2:
        raise fields.wrong("rope.dimension_count", "an even number")
    theta = fields.number("rope.freq_base", 2.0, 1e12, 10_000.0)
    if factors:
        return Rope(dim, theta, _factor_scaling(fields, factors, dim, context))
    return Rope(dim, theta, _gguf_scaling(fields, context, truncate))


def _gguf_scaling(fields: Fields, context: int, truncate: bool) -> RopeScaling | None:
    kind = fields.choice("rope.scaling.type", {name: name for name in ("none", "linear", "yarn")}, "none")
    if kind == "none":
        return None
    factor = fields.number("rope.scaling.factor", 1.0, MAX_FACTOR, 1.0)
    if kind == "linear":
        return LinearScaling(factor)
    for name in ("yarn_log_multiplier", "yarn_ext_factor", "yarn_attn_factor"):
        fields.expect(f"rope.scaling.{name}", *((1.0,) if name != "yarn_log_multiplier" else (0.0,)))
    return YarnScaling(
        factor,
        fields.whole("rope.scaling.original_context_length", 2, MAX_CONTEXT, context),
        fields.number("rope.scaling.yarn_beta_fast", 1e-6, 1e6, 32.0),
        fields.number("rope.scaling.yarn_beta_slow", 1e-6, 1e6, 1.0),
        yarn_attention_factor(factor) * fields.number("rope.scaling.attn_factor", 1e-6, 1e3, 1.0),
        truncate,
    )


def _factor_scaling(fields: Fields, factors: Mapping[str, Sequence[float]], dim: int, context: int) -> LongRopeScaling:
    """Llama 3's scaling has one set of factors (`rope_freqs`), long RoPE a short and a long one."""
    tensors = Fields(factors, "GGUF tensors")
    if tensors.has(FREQUENCY_FACTORS):
        values = tensors.numbers(FREQUENCY_FACTORS, dim // 2, 1e-6, MAX_FACTOR)
        return LongRopeScaling(values, values, context, 1.0)
    return LongRopeScaling(
        tensors.numbers(SHORT_FACTORS, dim // 2, 1e-6, MAX_FACTOR),
        tensors.numbers(LONG_FACTORS, dim // 2, 1e-6, MAX_FACTOR),
        fields.whole("rope.scaling.original_context_length", 2, MAX_CONTEXT, context),
        fields.number("rope.scaling.attn_factor", 1e-6, 1e3, 1.0),
    )
