"""Recipes of a model, written from its spec and from what files call its parameters.

Which parameters a model has follows from its spec, and is said here alone. What they are called is a table by our names, which
architectures change where their files differ; mixers that keep states stand in it under names of their own. A text of the
table names tensors without `.weight` and `.bias`:

    "a b"      rows of a, then rows of b
    "a | b"    the first that the checkpoint has, else the last
    "a.{}"     one tensor for each expert; without the mark one holds all of them

What a table leaves out is the architecture's own to write.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from penstock.runtime.models.kinds.recurrent import GatedDelta, Mamba2, ShortConv
from penstock.runtime.models.kinds.side_by_side import SideBySide
from penstock.runtime.models.spec import GQA, MLA, MLP, NO_MLP, NORM_NAMES, Attention, Layer, ModelSpec, MoE, PlainMLP
from penstock.runtime.models.weights import Concat, Plus, Recipe, Recipes, Stack, Tensor, on_tensors

HF: Mapping[str, str] = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "output": "lm_head",
    "layers": "model.layers.{}.",
    "attention_norm": "input_layernorm",
    "attention_post_norm": "post_attention_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
    "attention.qkv": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "attention.sinks": "self_attn.sinks",
    "attention.q": "self_attn.q_proj",
    "attention.q_a": "self_attn.q_a_proj",
    "attention.q_a_norm": "self_attn.q_a_layernorm",
    "attention.q_b": "self_attn.q_b_proj",
    "attention.kv_a": "self_attn.kv_a_proj_with_mqa",
    "attention.kv_a_norm": "self_attn.kv_a_layernorm",
    "attention.kv_b": "self_attn.kv_b_proj",
    "mamba.into": "mamba.in_proj",
    "mamba.conv": "mamba.conv1d.weight",
    "mamba.conv_bias": "mamba.conv1d.bias",
    "mamba.step_bias": "mamba.dt_bias",
    "mamba.decay_log": "mamba.A_log",
    "mamba.skip": "mamba.D",
    "mamba.norm": "mamba.norm",
    "mamba.out": "mamba.out_proj",
    "mlp.gate_up": "mlp.gate_proj mlp.up_proj",
    "mlp.down": "mlp.down_proj",
    "mlp.router": "mlp.gate",
    "mlp.offsets": "mlp.gate.e_score_correction_bias",
    "mlp.experts.gate_up": "mlp.experts.{}.gate_proj mlp.experts.{}.up_proj",
    "mlp.experts.down": "mlp.experts.{}.down_proj",
    "mlp.shared.gate_up": "mlp.shared_experts.gate_proj mlp.shared_experts.up_proj",
    "mlp.shared.down": "mlp.shared_experts.down_proj",
}
"""As decoders share them on the Hugging Face hub."""
HF_SANDWICH = {**HF, "mlp_norm": "pre_feedforward_layernorm"}

GGUF: Mapping[str, str] = {
    "embedding": "token_embd",
    "positions": "position_embd",
    "token_types": "token_types",
    "embedding_norm": "token_embd_norm",
    "norm": "output_norm",
    "output": "output",
    "layers": "blk.{}.",
    "attention_norm": "attn_norm",
    "attention_post_norm": "post_attention_norm",
    "mlp_norm": "ffn_norm",
    "mlp_post_norm": "post_ffw_norm",
    "attention.qkv": "attn_qkv | attn_q attn_k attn_v",
    "attention.out": "attn_output",
    "attention.q_norm": "attn_q_norm",
    "attention.k_norm": "attn_k_norm",
    "attention.sinks": "attn_sinks.weight",
    "mlp.gate_up": "ffn_gate ffn_up",
    "mlp.up": "ffn_up",
    "mlp.down": "ffn_down",
    "mlp.router": "ffn_gate_inp",
    "mlp.experts.gate_up": "ffn_gate_up_exps | ffn_gate.{} ffn_up.{} | ffn_gate_exps ffn_up_exps",
    "mlp.experts.down": "ffn_down.{} | ffn_down_exps",
}
"""The same for every architecture."""


def find_prefix(names: Collection[str], tensor: str, candidates: Iterable[str]) -> str:
    """The candidate that the checkpoint has; if it has none, the first: the loader then reports it as missing."""
    candidates = tuple(candidates)
    return next((prefix for prefix in candidates if prefix + tensor in names), candidates[0])


def prefixed(table: Mapping[str, str], prefix: str) -> dict[str, str]:
    """A table whose names begin otherwise than with `model.`"""
    return {mine: prefix + name[6:] if name.startswith("model.") else name for mine, name in table.items()}


def recipes_of(
    spec: ModelSpec, table: Mapping[str, str] = HF, names: Collection[str] = (), *, norm_plus: float = 0.0
) -> Recipes:
    """Of all parameters that the table has names for. `norm_plus` is added to the norms of the stream, and of heads."""
    found: Recipes = {}
    for name in _outside(spec):
        found |= _recipe(name, name, "", table, names)
    for number, layer in enumerate(spec.layers):
        found |= layer_recipes(spec, layer, f"layers.{number}.", table.get("layers", "").format(number), table, names)
    if norm_plus:
        norms = (name for name in found if name.endswith("norm.weight") and not name.endswith(".attention.norm.weight"))
        found |= {name: Plus(found[name], norm_plus) for name in norms}
    return found


def gguf_recipes(spec: ModelSpec, names: Collection[str] = ()) -> Recipes:
    """Of a GGUF file that calls everything as usual."""
    return recipes_of(spec, GGUF, names)


def layer_recipes(
    spec: ModelSpec, layer: Layer, ours: str, theirs: str, table: Mapping[str, str], names: Collection[str] = ()
) -> Recipes:
    found: Recipes = {}
    count = layer.mlp.num_experts if isinstance(layer.mlp, MoE) else 0
    for name, key in _inside(spec, layer):
        found |= _recipe(ours + name, key, theirs, table, names, count)
    return found


def on_all(recipes: Recipes, change: Callable[[Tensor], Recipe]) -> Recipes:
    """Recipes of which each tensor is read in another way."""
    return {name: on_tensors(recipe, change) for name, recipe in recipes.items()}


def _recipe(
    ours: str, name: str, prefix: str, table: Mapping[str, str], names: Collection[str], num_experts: int = 0
) -> Recipes:
    part, dot, kind = name.rpartition(".")
    if kind not in ("weight", "bias"):
        part, dot, kind = name, "", ""
    if part not in table:
        return {}
    ways = [[f"{prefix}{each}{dot}{kind}" for each in way.split()] for way in table[part].split(" | ")]
    theirs = next((way for way in ways if way[0].format(0) in names), ways[-1])

    def joined(parts: list[str], axis: int = 0) -> Recipe:
        return Concat(tuple(map(Tensor, parts)), axis) if len(parts) > 1 else Tensor(parts[0])

    if "{}" not in theirs[0]:
        return {ours: joined(theirs, int(".experts." in name))}
    return {ours: Stack(tuple(joined([each.format(number) for each in theirs]) for number in range(num_experts)))}


def _outside(spec: ModelSpec) -> Iterator[str]:
    """Parameters before the layers, and behind them."""
    is_biased = spec.norm.kind == "layer"
    yield "embedding.weight"
    yield from ["positions.weight"] if spec.learned_positions else []
    yield from ["token_types.weight"] if spec.token_types else []
    yield from _kinds("embedding_norm", is_biased) if spec.embedding_norm else []
    yield from _kinds("norm", is_biased) if spec.layers[-1].norms != "residual" else []
    yield from ["output.weight"] if spec.generates and not spec.tied_embedding else []


def _inside(spec: ModelSpec, layer: Layer) -> Iterator[tuple[str, str]]:
    """Parameters of a layer, and what tables call them."""
    for norm in NORM_NAMES[layer.norms]:
        if layer.mlp != NO_MLP or norm != "mlp_norm":
            yield from ((name, name) for name in _kinds(norm, spec.norm.kind == "layer"))
    yield from _of_mixer(layer.attention, "attention")
    yield from ((f"mlp.{name}", f"mlp.{name}") for name in _of_mlp(layer.mlp))


def _of_mixer(part: Attention, at: str) -> Iterator[tuple[str, str]]:
    names: list[str] = []
    key = "attention"
    match part:
        case GQA():
            names += _kinds("qkv", part.qkv_bias) + _kinds("out", part.out_bias)
            names += _kinds("gate", part.qkv_bias) if part.gated else []
            names += ["q_norm.weight", "k_norm.weight"] if part.qk_norm else []
            names += ["sinks"] if part.sinks else []
        case MLA():
            names += (
                ["q.weight"] if part.q_rank is None else [*_kinds("q_a", part.bias), "q_a_norm.weight", "q_b.weight"]
            )
            names += [*_kinds("kv_a", part.bias), "kv_a_norm.weight", "kv_b.weight", *_kinds("out", part.bias)]
        case Mamba2():
            key = "mamba"
            names += [*_kinds("into", part.bias), "conv", "step_bias", "decay_log", "skip"]
            names += ["conv_bias"] if part.conv_bias else []
            names += ["norm.weight"] if part.norm else []
            names += _kinds("out", part.out_bias)
        case ShortConv():
            key = "conv"
            names += [*_kinds("into", part.bias), "conv", *_kinds("out", part.bias)]
            names += ["conv_bias"] if part.bias else []
        case GatedDelta():
            key = "delta"
            names += ["into.weight", "conv", "step_bias", "decay_log", "norm.weight", "out.weight"]
        case SideBySide():
            yield from _of_mixer(part.attention, f"{at}.attention")
            yield from _of_mixer(part.state_space, f"{at}.state_space")
    yield from ((f"{at}.{name}", f"{key}.{name}") for name in names)


def _of_mlp(mlp: MLP) -> Iterator[str]:
    if isinstance(mlp, MoE):
        yield from _kinds("router", mlp.router_bias)
        yield from (f"experts.{name}" for name in _of_mlp(mlp.expert))
        yield from ["offsets"] if mlp.scores == "sigmoid" else []
        yield from (f"shared.{name}" for name in _of_mlp(mlp.shared)) if mlp.shared else []
        yield from ["shared_gate.weight"] if mlp.shared_gated else []
    elif mlp != NO_MLP:
        yield from _kinds("up" if isinstance(mlp, PlainMLP) else "gate_up", mlp.bias)
        yield from _kinds("down", mlp.bias)


def _kinds(name: str, is_biased: bool) -> list[str]:
    return [f"{name}.weight", f"{name}.bias"] if is_biased else [f"{name}.weight"]
