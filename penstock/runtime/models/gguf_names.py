"""Recipes over the tensor names of GGUF files, which are the same for every architecture.

Which parts a layer has follows from its spec; whether q, k and v or the experts come fused, from the names in the file.
"""

from collections.abc import Collection, Mapping

from penstock.runtime.models.spec import GQA, GatedMLP, ModelSpec, MoE, NormPlacement, PlainMLP, only_gqa
from penstock.runtime.models.weights import Concat, HalvesPaired, Recipe, Recipes, Stack, Tensor

_NORMS: dict[NormPlacement, dict[str, str]] = {
    "pre": {"attention_norm": "attn_norm", "mlp_norm": "ffn_norm"},
    "post": {"attention_post_norm": "post_attention_norm", "mlp_post_norm": "post_ffw_norm"},
    "sandwich": {
        "attention_norm": "attn_norm",
        "attention_post_norm": "post_attention_norm",
        "mlp_norm": "ffn_norm",
        "mlp_post_norm": "post_ffw_norm",
    },
    "residual": {"attention_norm": "attn_output_norm", "mlp_norm": "layer_output_norm"},
}


def model(
    spec: ModelSpec,
    names: Collection[str] = (),
    *,
    neighbours_paired: bool = False,
    norms: Mapping[str, str] | None = None,
) -> Recipes:
    """All of a model. `neighbours_paired` says that q and k rows are stored in pairs for interleaved RoPE; `norms`
    renames those of a layer.
    """
    kinds = ("weight", "bias") if spec.norm.kind == "layer" else ("weight",)
    recipes: Recipes = {"embedding.weight": Tensor("token_embd.weight")}
    if spec.learned_positions:
        recipes["positions.weight"] = Tensor("position_embd.weight")
    if spec.token_types:
        recipes["token_types.weight"] = Tensor("token_types.weight")
    if spec.generates and not spec.tied_embedding:
        recipes["output.weight"] = Tensor("output.weight")
    for kind in kinds:
        if spec.embedding_norm:
            recipes[f"embedding_norm.{kind}"] = Tensor(f"token_embd_norm.{kind}")
        if spec.layers[-1].norms != "residual":
            recipes[f"norm.{kind}"] = Tensor(f"output_norm.{kind}")
    for index, layer in enumerate(spec.layers):
        ours, theirs = f"layers.{index}.", f"blk.{index}."
        for mine, name in (norms or _NORMS[layer.norms]).items():
            recipes |= {f"{ours}{mine}.{kind}": Tensor(f"{theirs}{name}.{kind}") for kind in kinds}
        recipes |= _attention(
            only_gqa(layer.attention, "read from GGUF"), f"{ours}attention.", theirs, names, neighbours_paired
        )
        if isinstance(layer.mlp, MoE):
            recipes |= _experts(layer.mlp, f"{ours}mlp.", theirs, names)
        else:
            recipes |= _mlp(layer.mlp, f"{ours}mlp.", theirs)
    return recipes


def _attention(attention: GQA, ours: str, theirs: str, names: Collection[str], neighbours_paired: bool) -> Recipes:
    def part(letter: str, kind: str) -> Recipe:
        tensor = Tensor(f"{theirs}attn_{letter}.{kind}")
        if letter == "v" or not neighbours_paired:
            return tensor
        return HalvesPaired(tensor, attention.num_heads if letter == "q" else attention.num_kv_heads)

    recipes: Recipes = {}
    for kind in ("weight", "bias") if attention.qkv_bias else ("weight",):
        fused = f"{theirs}attn_qkv.{kind}"
        is_fused = fused in names and not neighbours_paired
        recipes[f"{ours}qkv.{kind}"] = (
            Tensor(fused) if is_fused else Concat(tuple(part(letter, kind) for letter in "qkv"))
        )
    for kind in ("weight", "bias") if attention.out_bias else ("weight",):
        recipes[f"{ours}out.{kind}"] = Tensor(f"{theirs}attn_output.{kind}")
    if attention.qk_norm:
        for letter in "qk":
            recipes[f"{ours}{letter}_norm.weight"] = Tensor(f"{theirs}attn_{letter}_norm.weight")
    if attention.sinks:
        recipes[f"{ours}sinks"] = Tensor(f"{theirs}attn_sinks.weight")
    return recipes


def _mlp(mlp: GatedMLP | PlainMLP, ours: str, theirs: str) -> Recipes:
    recipes: Recipes = {}
    for kind in ("weight", "bias") if mlp.bias else ("weight",):
        up = Tensor(f"{theirs}ffn_up.{kind}")
        if isinstance(mlp, PlainMLP):
            recipes[f"{ours}up.{kind}"] = up
        else:
            recipes[f"{ours}gate_up.{kind}"] = Concat((Tensor(f"{theirs}ffn_gate.{kind}"), up))
        recipes[f"{ours}down.{kind}"] = Tensor(f"{theirs}ffn_down.{kind}")
    return recipes


def _experts(mlp: MoE, ours: str, theirs: str, names: Collection[str]) -> Recipes:
    recipes: Recipes = {}
    for kind in ("weight", "bias") if mlp.router_bias else ("weight",):
        recipes[f"{ours}router.{kind}"] = Tensor(f"{theirs}ffn_gate_inp.{kind}")
    for kind in ("weight", "bias") if mlp.expert.bias else ("weight",):
        fused = Tensor(f"{theirs}ffn_gate_up_exps.{kind}")
        gate, up, down = (_expert_part(mlp, theirs, part, kind, names) for part in ("gate", "up", "down"))
        recipes[f"{ours}experts.gate_up.{kind}"] = fused if fused.name in names else Concat((gate, up), axis=1)
        recipes[f"{ours}experts.down.{kind}"] = down
    return recipes


def _expert_part(mlp: MoE, theirs: str, part: str, kind: str, names: Collection[str]) -> Recipe:
    """One tensor for all experts, or, in older files, one for each."""
    if f"{theirs}ffn_{part}.0.{kind}" in names:
        return Stack(tuple(Tensor(f"{theirs}ffn_{part}.{index}.{kind}") for index in range(mlp.num_experts)))
    return Tensor(f"{theirs}ffn_{part}_exps.{kind}")
