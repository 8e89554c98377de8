"""Bytes a model takes on a device that is not here to be asked: of a layout's devices, the fullest."""

from collections.abc import Sequence

from penstock.runtime.models.ranks import share
from penstock.runtime.models.sharding import ModelShard, shard_model
from penstock.runtime.models.spec import GQA, Layer, ModelSpec, MoE
from penstock.tools.cost.layout import SINGLE, Layout
from penstock.tools.cost.precision import Precision

_ACTIVATION_BYTES = 2
_LOGIT_BYTES = 4
GRAPH_SCORES = 8
"""Recorded steps that keep scores of their own."""
SLACK_BYTES = 1 << 30


def weight_bytes(spec: ModelSpec, precision: Precision, layout: Layout = SINGLE) -> int:
    """What the fullest rank loads. Of a model that the engine does not deal out, cut evenly: embedding rows lie on the first
    stage, the output matrix on the last; norms and routers on every device."""
    each, of_vocabulary = precision.weight_bytes, precision.bytes_of_vocabulary
    shards = _shards(spec, layout)
    if shards:
        words = [_vocabulary_parameters(shard) for shard in shards]
        return round(max((one.num_parameters - own) * each + own * of_vocabulary for one, own in zip(shards, words)))
    parts = spec.parameters_by_part
    stages = _stages(spec, layout)
    sizes = [sum(_layer_parameters(spec, layer, layout) for layer in stage) * each for stage in stages]
    output = parts["output"]
    if spec.tied_embedding and len(stages) > 1:
        output = parts["embedding"]
    sizes[0] += parts["embedding"] / layout.tensor * of_vocabulary
    sizes[-1] += output / layout.tensor * of_vocabulary
    return round(max(sizes) + parts["norms"] / len(stages) * each)


def _vocabulary_parameters(shard: ModelShard) -> int:
    parts = shard.spec.parameters_by_part
    return parts["output"] + (parts["embedding"] if shard.place.is_first_stage else 0)


def kv_fraction(spec: ModelSpec, layout: Layout = SINGLE) -> float:
    """Share of a token's keys and values that lies on one device; multiply a number's bytes with it to size that device."""
    total = _kv_values(spec.layers)
    shards = _shards(spec, layout)
    if shards:
        return max(_kv_values(shard.spec.layers) for shard in shards) / total
    stages: list[float] = [
        sum(layer.attention.kv_values_per_token / layout.kv_shards(layer.attention) for layer in stage)
        for stage in _stages(spec, layout)
    ]
    return max(stages) / total


def workspace_bytes(spec: ModelSpec, max_batch_tokens: int, max_sequences: int, layout: Layout = SINGLE) -> int:
    """What an engine sets aside on a GPU beside weights and cache; on a CPU it sets nothing aside."""
    return activation_bytes(spec, max_batch_tokens, layout) + reserve_bytes(spec, max_sequences)


def activation_bytes(spec: ModelSpec, max_batch_tokens: int, layout: Layout = SINGLE) -> int:
    """Of the largest step: its vectors, and the widest things made of them, before and after their gates."""
    widest = max(layer.mlp.inner_values for layer in spec.layers)
    values = 6 * widest / layout.tensor + 12 * spec.hidden_size
    return round(max_batch_tokens * values * _ACTIVATION_BYTES)


def reserve_bytes(spec: ModelSpec, max_sequences: int) -> int:
    """Scores of every sequence for each recorded batch size, and what allocators lose."""
    return GRAPH_SCORES * max_sequences * spec.vocab_size * _LOGIT_BYTES + SLACK_BYTES


def _shards(spec: ModelSpec, layout: Layout) -> tuple[ModelShard, ...]:
    """The first rank of each stage, which holds most of it; nothing of a model that the engine does not deal out."""
    if layout.tensor * layout.pipeline * layout.expert == 1 or not spec.generates:
        return ()
    if not all(isinstance(layer.attention, GQA) for layer in spec.layers):
        return ()
    ranks = layout.ranks
    return tuple(shard_model(spec, ranks, stage * ranks.per_stage) for stage in range(ranks.pipeline))


def _kv_values(layers: Sequence[Layer]) -> int:
    return sum(layer.attention.kv_values_per_token for layer in layers)


def _stages(spec: ModelSpec, layout: Layout) -> list[Sequence[Layer]]:
    """Layers cut as ranks cut them: into runs whose lengths differ by one at most, the longer first."""
    held = [share(spec.num_layers, layout.pipeline, stage) for stage in range(layout.pipeline)]
    return [spec.layers[each.start : each.stop] for each in held]


def _layer_parameters(spec: ModelSpec, layer: Layer, layout: Layout) -> float:
    """Of one device, norms apart."""
    hidden, mlp = spec.hidden_size, layer.mlp
    total = layout.attention_parameters(layer.attention, hidden) + layout.dense_parameters(mlp, hidden)
    if isinstance(mlp, MoE):
        total += mlp.num_experts * mlp.expert.num_parameters(hidden) / layout.expert_shards
    return total
