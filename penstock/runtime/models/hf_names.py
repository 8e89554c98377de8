"""Recipes over the tensor names that decoders share on the Hugging Face hub.

Which parts a layer has follows from its spec; architectures with names of their own replace entries.
"""

from collections.abc import Callable, Collection, Iterable

from penstock.runtime.models.kinds.recurrent import Mamba2
from penstock.runtime.models.spec import GQA, MLA, GatedMLP, ModelSpec, MoE, NormPlacement
from penstock.runtime.models.weights import Concat, Plus, Recipe, Recipes, Stack, Tensor

_NORMS: dict[NormPlacement, dict[str, str]] = {
    "pre": {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"},
    "post": {"attention_post_norm": "post_attention_layernorm", "mlp_post_norm": "post_feedforward_layernorm"},
    "sandwich": {
        "attention_norm": "input_layernorm",
        "attention_post_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_post_norm": "post_feedforward_layernorm",
    },
}


def find_prefix(names: Collection[str], tensor: str, candidates: Iterable[str]) -> str:
    """The candidate that the checkpoint has; if it has none, the first: the loader then reports it as missing."""
    candidates = tuple(candidates)
    return next((prefix for prefix in candidates if prefix + tensor in names), candidates[0])


def ends(spec: ModelSpec, embedding: str, norm: str, head: str = "lm_head.weight") -> Recipes:
    """What stands before the layers, and behind them."""
    found: Recipes = {"embedding.weight": Tensor(embedding), "norm.weight": Tensor(norm)}
    return found if spec.tied_embedding else found | {"output.weight": Tensor(head)}


def decoder(spec: ModelSpec, prefix: str = "model.", head: str = "lm_head.weight", norm_plus: float = 0.0) -> Recipes:
    """All but the experts of a mixture. `norm_plus` is added to every norm's weight."""

    def norm(name: str) -> Recipe:
        return Plus(Tensor(name), norm_plus) if norm_plus else Tensor(name)

    recipes = ends(spec, f"{prefix}embed_tokens.weight", f"{prefix}norm.weight", head)
    recipes["norm.weight"] = norm(f"{prefix}norm.weight")
    for index, layer in enumerate(spec.layers):
        ours, theirs = f"layers.{index}.", f"{prefix}layers.{index}."
        for mine, name in _NORMS[layer.norms].items():
            recipes[f"{ours}{mine}.weight"] = norm(f"{theirs}{name}.weight")
        match layer.attention:
            case GQA():
                recipes |= _attention(layer.attention, f"{ours}attention.", f"{theirs}self_attn.", norm)
            case MLA():
                recipes |= _latent(layer.attention, f"{ours}attention.", f"{theirs}self_attn.", norm)
        if isinstance(layer.mlp, GatedMLP):
            recipes |= gated_mlp(f"{ours}mlp.", f"{theirs}mlp.", bias=layer.mlp.bias)
    return recipes


def _attention(attention: GQA, ours: str, theirs: str, norm: Callable[[str], Recipe]) -> Recipes:
    recipes: Recipes = {}
    for kind in ("weight", "bias") if attention.qkv_bias else ("weight",):
        recipes[f"{ours}qkv.{kind}"] = Concat(tuple(Tensor(f"{theirs}{part}_proj.{kind}") for part in "qkv"))
    for kind in ("weight", "bias") if attention.out_bias else ("weight",):
        recipes[f"{ours}out.{kind}"] = Tensor(f"{theirs}o_proj.{kind}")
    if attention.qk_norm:
        for name in ("q_norm", "k_norm"):
            recipes[f"{ours}{name}.weight"] = norm(f"{theirs}{name}.weight")
    if attention.sinks:
        recipes[f"{ours}sinks"] = Tensor(f"{theirs}sinks")
    return recipes


def _latent(attention: MLA, ours: str, theirs: str, norm: Callable[[str], Recipe]) -> Recipes:
    names = {"kv_a": "kv_a_proj_with_mqa", "kv_b": "kv_b_proj", "out": "o_proj"}
    names |= {"q": "q_proj"} if attention.q_rank is None else {"q_a": "q_a_proj", "q_b": "q_b_proj"}
    recipes: Recipes = {f"{ours}{mine}.weight": Tensor(f"{theirs}{name}.weight") for mine, name in names.items()}
    for mine in ("kv_a", "out", "q_a") if attention.bias else ():
        if mine in names:
            recipes[f"{ours}{mine}.bias"] = Tensor(f"{theirs}{names[mine]}.bias")
    for mine in ("kv_a",) if attention.q_rank is None else ("kv_a", "q_a"):
        recipes[f"{ours}{mine}_norm.weight"] = norm(f"{theirs}{mine}_layernorm.weight")
    return recipes


def mamba(part: Mamba2, ours: str, theirs: str) -> Recipes:
    names = {
        "conv": "conv1d.weight",
        "step_bias": "dt_bias",
        "decay_log": "A_log",
        "skip": "D",
        "into.weight": "in_proj.weight",
        "out.weight": "out_proj.weight",
    }
    names |= {"norm.weight": "norm.weight"} if part.norm else {}
    names |= {"conv_bias": "conv1d.bias"} if part.conv_bias else {}
    names |= {"into.bias": "in_proj.bias"} if part.bias else {}
    names |= {"out.bias": "out_proj.bias"} if part.out_bias else {}
    return {ours + mine: Tensor(theirs + name) for mine, name in names.items()}


def gated_mlp(ours: str, theirs: str, *, bias: bool = False) -> Recipes:
    recipes: Recipes = {}
    for kind in ("weight", "bias") if bias else ("weight",):
        recipes[f"{ours}gate_up.{kind}"] = Concat(
            tuple(Tensor(f"{theirs}{part}_proj.{kind}") for part in ("gate", "up"))
        )
        recipes[f"{ours}down.{kind}"] = Tensor(f"{theirs}down_proj.{kind}")
    return recipes


def experts(
    spec: ModelSpec,
    folder: str = "mlp",
    *,
    gate: str = "gate_proj",
    up: str = "up_proj",
    down: str = "down_proj",
    shared: str = "shared_experts",
) -> Recipes:
    """Mixtures stored expert by expert: `gate` in a layer's folder is the router, `experts.{i}.{gate}` a matrix."""
    found: Recipes = {}
    for number, layer in enumerate(spec.layers):
        if isinstance(layer.mlp, MoE):
            ours, theirs = f"layers.{number}.mlp.", f"model.layers.{number}.{folder}."
            found |= _mixture(layer.mlp, ours, theirs, (gate, up, down))
            if layer.mlp.shared is not None:
                found |= gated_mlp(f"{ours}shared.", f"{theirs}{shared}.", bias=layer.mlp.shared.bias)
    return found


def _mixture(mlp: MoE, ours: str, theirs: str, names: tuple[str, str, str]) -> Recipes:
    gates, ups, downs = (
        [Tensor(f"{theirs}experts.{number}.{name}.weight") for number in range(mlp.num_experts)] for name in names
    )
    found: Recipes = {
        f"{ours}router.weight": Tensor(f"{theirs}gate.weight"),
        f"{ours}experts.gate_up.weight": Stack(tuple(Concat(pair) for pair in zip(gates, ups))),
        f"{ours}experts.down.weight": Stack(tuple(downs)),
    }
    if mlp.scores == "sigmoid":
        found[f"{ours}offsets"] = Tensor(f"{theirs}gate.e_score_correction_bias")
    return found
