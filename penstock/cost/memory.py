"""Bytes a model takes on a device that is not here to be asked."""

from penstock.cost.precision import Precision
from penstock.models.spec import ModelSpec, MoE

_ACTIVATION_BYTES = 2
_LOGIT_BYTES = 4


def weight_bytes(spec: ModelSpec, precision: Precision) -> int:
    return round(spec.num_parameters * precision.weight_bytes)


def workspace_bytes(spec: ModelSpec, max_batch_tokens: int, max_sequences: int) -> int:
    """The largest step: residual and normed input of every token beside the widest thing made of them, and the logits."""
    widest = 0
    for layer in spec.layers:
        mlp = layer.mlp
        width = mlp.num_active * mlp.expert.width if isinstance(mlp, MoE) else mlp.width
        widest = max(widest, 3 * width, 2 * layer.attention.q_size + layer.attention.kv_values_per_token)
    activations = max_batch_tokens * (2 * spec.hidden_size + widest) * _ACTIVATION_BYTES
    return activations + max_sequences * spec.vocab_size * _LOGIT_BYTES
