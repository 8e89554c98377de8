"""Does it fit: where the memory of the fullest device goes, and how many requests what is left can hold."""

from dataclasses import dataclass

from penstock.runtime.models.spec import GQA, MLA, ModelSpec, MoE
from penstock.tools.cost.memory import kv_fraction
from penstock.tools.cost.precision import Precision
from penstock.tools.planner.candidate import Candidate
from penstock.tools.planner.demand import Sizes
from penstock.tools.planner.figures import sequences_that_fit


@dataclass(frozen=True, slots=True)
class Fit:
    """Bytes are of one device, tokens and users of one copy of the model."""

    memory_bytes: int
    margin_bytes: int
    """What --memory-fraction leaves alone."""
    weight_bytes: dict[str, int]
    """By part: experts, layers, embedding and output."""
    activation_bytes: int
    reserve_bytes: int
    """Recorded steps and slack."""
    adapter_bytes: int
    """Of all adapters on the device at once."""
    kv_bytes: int
    kv_bytes_per_token: int
    """On one device."""
    kv_by_attention: dict[str, int]
    """Of a whole token, by kind of attention."""
    state_bytes: int
    """Of one state; a sequence has one, whatever its length, and the cache keeps others for beginnings that are shared."""
    num_tokens: int
    """Tokens that the cache of a copy holds."""
    users_mean: int
    """Requests of mean length, held to their end."""
    users_p95: int
    users_in_sight: int
    """Of mean length, if layers with a window kept no more than it: more than fit where windows are kept whole."""

    @property
    def total_weight_bytes(self) -> int:
        return sum(self.weight_bytes.values())


def fit_of(candidate: Candidate, sizes: Sizes) -> Fit:
    """Raises ConfigError, with the ledger, if nothing is left for the cache."""
    spec, sizing = candidate.spec, candidate.sizing
    per_token = round(spec.kv_bytes_per_token(candidate.precision.kv_bytes) * kv_fraction(spec, candidate.layout))
    fraction = candidate.engine.cache.memory_fraction
    users_mean = users_in_sight = sizing.num_sequences(sizes.mean_total)
    if not sizing.groups.num_states:
        in_sight = spec.kv_bytes_in_sight(round(sizes.mean_total), candidate.precision.kv_bytes)
        users_in_sight = sequences_that_fit(sizing.kv_bytes, kv_fraction(spec, candidate.layout), max(in_sight, 1))
    return Fit(
        memory_bytes=sizing.free_bytes,
        margin_bytes=sizing.free_bytes - int(sizing.free_bytes * fraction),
        weight_bytes=_shares(spec, candidate.precision, sizing.weight_bytes),
        activation_bytes=candidate.activation_bytes if candidate.measured is None else sizing.workspace_bytes,
        reserve_bytes=candidate.reserve_bytes if candidate.measured is None else 0,
        adapter_bytes=candidate.adapter_bytes,
        kv_bytes=sizing.kv_bytes,
        kv_bytes_per_token=per_token,
        kv_by_attention=kv_by_attention(spec, candidate.precision.kv_bytes),
        state_bytes=sizing.state_bytes,
        num_tokens=sizing.num_cached_tokens,
        users_mean=users_mean,
        users_p95=sizing.num_sequences(sizes.p95_total),
        users_in_sight=users_in_sight,
    )


def kv_by_attention(spec: ModelSpec, bytes_per_value: float) -> dict[str, int]:
    """Bytes of a token, over all layers of a kind."""
    found: dict[str, float] = {}
    for layer in spec.layers:
        attention = layer.attention
        if isinstance(attention, MLA):
            kind = "latent"
        elif not isinstance(attention, GQA):
            continue  # a state is of a sequence, not of a token
        else:
            kind = "multi-head" if attention.num_kv_heads == attention.num_heads else "grouped heads"
        if attention.window:
            kind += f", {attention.window:,} tokens back"
        found[kind] = found.get(kind, 0.0) + attention.kv_values_per_token * bytes_per_value
    return {kind: round(size) for kind, size in found.items()}


def _shares(spec: ModelSpec, precision: Precision, total_bytes: int) -> dict[str, int]:
    """A device's weights by part, in proportion to the model's own parts."""
    parts = spec.parameters_by_part
    experts = sum(
        layer.mlp.num_experts * layer.mlp.expert.num_parameters(spec.hidden_size)
        for layer in spec.layers
        if isinstance(layer.mlp, MoE)
    )
    counts = {
        "experts": experts,
        "layers": parts["attention"] + parts["mlp"] + parts["norms"] - experts,
        "embedding and output": parts["embedding"] + parts["output"],
    }
    sizes = {part: count * precision.weight_bytes for part, count in counts.items() if count}
    sizes["embedding and output"] *= precision.bytes_of_vocabulary / precision.weight_bytes
    whole = sum(sizes.values())
    shares = {part: round(total_bytes * size / whole) for part, size in sizes.items()}
    shares["layers"] += total_bytes - sum(shares.values())
    return shares
