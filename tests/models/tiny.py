"""Tiny random models of `transformers`, one for each thing an architecture can do: the oracle of this folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

VOCABULARY = 96
LONG_FACTORS = {"short_factor": [1.0 + 0.05 * i for i in range(6)], "long_factor": [1.5 + 0.4 * i for i in range(6)]}
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LLAMA_3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LATENT_YARN = YARN | {"rope_theta": 500.0, "mscale": 1.0, "mscale_all_dim": 0.7}
DEEPSEEK = SMALL | {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "first_k_dense_replace": 1,
}
MAMBA = {
    "layer_types": ["mamba", "attention", "mamba"],
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 12,
    "mamba_n_groups": 1,
    "shared_intermediate_size": 48,
    "position_embedding_type": "nope",
}
FALCON = {
    "mamba_d_ssm": 96,
    "mamba_n_heads": 6,
    "mamba_d_state": 12,
    "lm_head_multiplier": 0.7,
    "embedding_multiplier": 1.5,
    "mlp_multipliers": [0.8, 1.2],
    "key_multiplier": 0.6,
    "attention_out_multiplier": 0.9,
    "attention_in_multiplier": 1.1,
    "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7],
    "ssm_in_multiplier": 1.3,
    "ssm_out_multiplier": 0.6,
}
DELTA = SMALL | {
    "head_dim": 16,
    "num_hidden_layers": 4,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 16,
    "shared_expert_intermediate_size": 40,
}
NEMOTRON = {
    "head_dim": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 12,
    "n_groups": 2,
    "layers_block_type": ["linear_attention", "mlp", "linear_attention", "full_attention", "mlp", "linear_attention"],
}
GEMMA = {"head_dim": 16, "sliding_window": 8, "num_hidden_layers": 4}


def rope(kind: str, **rest: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **rest}}


@dataclass(frozen=True)
class Variant:
    family: str
    """Stem of the class names in `transformers`, such as Llama."""
    settings: dict[str, Any]
    context: int = 256
    """To serve: decides which factors long RoPE uses."""
    model_class: str = ""
    prompt_lengths: tuple[int, ...] = (3, 16, 45)

    def config(self) -> dict[str, Any]:
        """As `config.json` would hold it."""
        config: dict[str, Any] = self._transformers_config().to_dict()
        return config | {"architectures": [self._class_name]}

    @property
    def _class_name(self) -> str:
        return self.model_class or f"{self.family}ForCausalLM"

    def _transformers_config(self) -> Any:
        name = self.family + ("TextConfig" if self.family == "Gemma3" and not self.model_class else "Config")
        return getattr(transformers, name)(**self.settings)

    def model(self) -> PreTrainedModel:
        """Every parameter is random, norms and biases too, so that one left out or misplaced shows."""
        torch.manual_seed(7)
        options = {"add_pooling_layer": False} if self.family == "Bert" else {}
        model: PreTrainedModel = getattr(transformers, self._class_name)(self._transformers_config(), **options)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                is_norm = (parameter.dim() == 1 and "norm" in name.lower()) or ".ln_" in name
                is_from_one = "Gemma" in self.family or (self.family == "Qwen3Next" and "linear_attn" not in name)
                center = 1.0 if is_norm and name.endswith("weight") and not is_from_one else 0.0
                parameter.normal_(center, 0.2 if parameter.dim() == 1 else 0.15)
        return model.eval()

    def save(self, folder: Path) -> PreTrainedModel:
        model = self.model()
        model.save_pretrained(folder)
        return model


def llama(**rest: Any) -> Variant:
    return Variant("Llama", SMALL | rest)


def gpt2(**rest: Any) -> Variant:
    sizes = {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256}
    return Variant("GPT2", sizes | rest, model_class="GPT2LMHeadModel")


def qwen3_moe(**rest: Any) -> Variant:
    mixture = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
    return Variant("Qwen3Moe", SMALL | mixture | rest)


def phi3(context: int = 256, prompt_lengths: tuple[int, ...] = (3, 45), **rest: Any) -> Variant:
    settings = SMALL | {"pad_token_id": 0, "num_hidden_layers": 2} | rest
    return Variant("Phi3", settings, context, prompt_lengths=prompt_lengths)


def gemma3_with_vision() -> Variant:
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = SMALL | GEMMA | {"query_pre_attn_scalar": 20, "layer_types": None}
    settings = {"text_config": text, "vision_config": vision | {"image_size": 28, "patch_size": 14}}
    return Variant("Gemma3", settings, model_class="Gemma3ForConditionalGeneration")


VARIANTS: dict[str, Variant] = {
    "llama": llama(),
    "llama-multi-head": llama(num_key_value_heads=4),
    "llama-multi-query": llama(num_key_value_heads=1),
    "llama-tied": llama(tie_word_embeddings=True),
    "llama-wide-heads": llama(head_dim=24),
    "llama-biases": llama(attention_bias=True, mlp_bias=True),
    "llama-gelu": llama(hidden_act="gelu"),
    "llama-linear": llama(**rope("linear", factor=3.0)),
    "llama-dynamic": llama(**rope("dynamic", factor=2.0)),
    "llama-yarn": llama(rope_parameters=YARN | {"rope_theta": 500.0}),
    "llama-yarn-mscale": llama(
        **rope("yarn", factor=4.0, original_max_position_embeddings=64, mscale=0.7, mscale_all_dim=0.4, beta_fast=4.0)
    ),
    "llama-llama3": llama(**rope("llama3", **LLAMA_3)),
    "mistral": Variant("Mistral", SMALL | {"sliding_window": None}),
    "mistral-window": Variant("Mistral", SMALL | {"sliding_window": 7}),
    "mixtral": Variant("Mixtral", SMALL | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral-window": Variant(
        "Mixtral", SMALL | {"num_local_experts": 5, "num_experts_per_tok": 1, "sliding_window": 9}
    ),
    "qwen2": Variant("Qwen2", SMALL),
    "qwen2-tied": Variant("Qwen2", SMALL | {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "qwen2-window": Variant("Qwen2", SMALL | {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen2-yarn": Variant("Qwen2", SMALL | {"rope_parameters": YARN}),
    "qwen3": Variant("Qwen3", SMALL | {"head_dim": 24}),
    "qwen3-window": Variant(
        "Qwen3",
        SMALL | {"head_dim": 16, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2},
    ),
    "qwen3-biases": Variant("Qwen3", SMALL | {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}),
    "qwen3-moe": qwen3_moe(norm_topk_prob=True),
    "qwen3-moe-unscaled": qwen3_moe(norm_topk_prob=False, num_experts_per_tok=3),
    "qwen3-moe-dense-layers": qwen3_moe(mlp_only_layers=[0], num_hidden_layers=4, decoder_sparse_step=2),
    "gemma2": Variant("Gemma2", SMALL | GEMMA | {"query_pre_attn_scalar": 20}),
    "gemma2-uncapped": Variant(
        "Gemma2", SMALL | GEMMA | {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    ),
    "gemma3": Variant("Gemma3", SMALL | GEMMA | {"query_pre_attn_scalar": 20, "num_hidden_layers": 7}),
    "gemma3-scaled": Variant(
        "Gemma3",
        SMALL
        | GEMMA
        | {
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
            },
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma3-vision": gemma3_with_vision(),
    "phi3": phi3(),
    "phi3-window": phi3(sliding_window=11, tie_word_embeddings=True),
    "phi3-partial": phi3(partial_rotary_factor=0.75),
    "phi3-short": phi3(
        context=32,
        prompt_lengths=(3, 14),
        partial_rotary_factor=0.75,
        original_max_position_embeddings=64,
        rope_parameters={"rope_type": "longrope", "rope_theta": 10_000.0, "partial_rotary_factor": 0.75} | LONG_FACTORS,
    ),
    "phi3-long": phi3(
        prompt_lengths=(25, 45),
        partial_rotary_factor=0.75,
        original_max_position_embeddings=24,
        rope_parameters={"rope_type": "longrope", "rope_theta": 10_000.0, "partial_rotary_factor": 0.75} | LONG_FACTORS,
    ),
    "gpt2": gpt2(),
    "gpt2-variants": gpt2(n_inner=80, scale_attn_by_inverse_layer_idx=True, activation_function="gelu"),
    "olmo2": Variant("Olmo2", SMALL | {"pad_token_id": 0}),
    "olmo2-multi-head": Variant("Olmo2", SMALL | {"pad_token_id": 0, "num_key_value_heads": 4}),
    "lfm2": Variant(
        "Lfm2", SMALL | {"layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False}
    ),
    "lfm2-biases": Variant("Lfm2", SMALL | {"layer_types": ["conv", "conv", "full_attention"], "conv_bias": True}),
    "granite4": Variant("GraniteMoeHybrid", SMALL | MAMBA | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "granite4-dense": Variant(
        "GraniteMoeHybrid",
        SMALL
        | MAMBA
        | {"num_local_experts": 0, "mamba_n_groups": 2, "embedding_multiplier": 3.0, "residual_multiplier": 0.4}
        | {"logits_scaling": 2.0, "attention_multiplier": 0.2, "position_embedding_type": "rope"},
    ),
    "granite4-attention": Variant(
        "GraniteMoeHybrid",
        SMALL | MAMBA | {"layer_types": ["attention"] * 3, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "qwen3-next": Variant(
        "Qwen3Next", DELTA | {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    ),
    "qwen3-next-dense": Variant(
        "Qwen3Next",
        DELTA
        | {"num_experts": 0, "attention_bias": True, "linear_num_value_heads": 2, "num_hidden_layers": 2}
        | {"layer_types": ["full_attention", "linear_attention"]},
    ),
    "qwen3-next-attention": Variant(
        "Qwen3Next",
        DELTA
        | {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
        | {"layer_types": ["full_attention"] * 4},
    ),
    "nemotron-h": Variant("NemotronH", SMALL | NEMOTRON),
    "nemotron-h-biases": Variant(
        "NemotronH",
        SMALL | NEMOTRON | {"use_bias": True, "mlp_bias": True, "use_conv_bias": False, "time_step_min": 0.1},
    ),
    "falcon-h1": Variant("FalconH1", SMALL | FALCON),
    "falcon-h1-normed": Variant(
        "FalconH1",
        SMALL
        | FALCON
        | {"mamba_rms_norm": True, "mamba_n_groups": 2, "projectors_bias": True, "mamba_proj_bias": True}
        | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "deepseek-v2": Variant("DeepseekV2", DEEPSEEK | {"q_lora_rank": None, "topk_method": "greedy"}),
    "deepseek-v2-groups": Variant(
        "DeepseekV2",
        DEEPSEEK | {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5},
    ),
    "deepseek-v3": Variant("DeepseekV3", DEEPSEEK | {"n_group": 4, "topk_group": 2, "norm_topk_prob": True}),
    "deepseek-v3-yarn": Variant(
        "DeepseekV3", DEEPSEEK | {"n_group": 2, "topk_group": 1, "attention_bias": True, "rope_parameters": LATENT_YARN}
    ),
    "glm4-lite": Variant(
        "Glm4MoeLite",
        {name: value for name, value in DEEPSEEK.items() if name != "first_k_dense_replace"}
        | {"mlp_layer_types": ["dense", "sparse", "sparse"], "routed_scaling_factor": 1.8, "pad_token_id": 0},
    ),
    "gpt-oss": Variant(
        "GptOss",
        SMALL
        | {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8}
        | {"rope_parameters": YARN | {"rope_theta": 150_000.0, "truncate": False}},
    ),
    "bert": Variant("Bert", {k: v for k, v in SMALL.items() if k != "num_key_value_heads"}, model_class="BertModel"),
}
DECODERS = {name: variant for name, variant in VARIANTS.items() if variant.family != "Bert"}


def is_ignored(name: str) -> bool:
    """Tensors of a checkpoint that the text model does not need."""
    return "vision" in name or "multi_modal_projector" in name
