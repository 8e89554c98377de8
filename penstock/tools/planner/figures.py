"""The few formulas everything follows from, each written once. Pure arithmetic: no model files, no simulation.

Bytes, seconds and operations are plain numbers; GB is 1e9 bytes. Calculators, planner and pages all call these.
"""

import math

from penstock.errors import ConfigError
from penstock.runtime.draft import rule
from penstock.tools.cost.hardware import Ceilings


def decode_floor_s(weight_bytes: float, ceilings: Ceilings, kv_bytes: float = 0.0) -> float:
    """The least a decode step can take: every weight is read once, and the KV of every sequence in the batch."""
    return (weight_bytes + kv_bytes) / ceilings.bandwidth_bytes_per_s


def tokens_per_round(acceptance: float, num_drafts: int) -> float:
    """Tokens that one check of a draft gives: those accepted before the first rejection, and the one drawn in its place.

    1 + a + a^2 + ... + a^g = (1 - a^(g + 1)) / (1 - a)
    """
    if not 0.0 <= acceptance <= 1.0 or num_drafts < 0:
        raise ConfigError(f"acceptance {acceptance} of {num_drafts} drafts: choose 0 to 1, and 0 drafts or more")
    return rule.tokens_per_round(acceptance, num_drafts)


def speculation_gain(acceptance: float, num_drafts: int, draft_cost: float) -> float:
    """Times as many tokens a second; `draft_cost` is what drafting one token costs of a step of the model."""
    return tokens_per_round(acceptance, num_drafts) / (1.0 + num_drafts * draft_cost)


def sequences_that_fit(free_bytes: float, kv_bytes_per_token: float, tokens_per_sequence: float) -> int:
    return max(0, math.floor(free_bytes / (kv_bytes_per_token * tokens_per_sequence)))


def weight_bytes(num_parameters: float, bits: float) -> float:
    return num_parameters * bits / 8.0


def kv_bytes_per_token(num_layers: float, num_kv_heads: float, head_dim: float, bytes_per_value: float) -> float:
    """A key and a value of every head that has its own, in every layer."""
    return 2.0 * num_layers * num_kv_heads * head_dim * bytes_per_value


def forward_flops(num_parameters: float, num_tokens: float) -> float:
    """A multiplication and an addition for each parameter that a token meets."""
    return 2.0 * num_parameters * num_tokens


def activation_bytes(num_sequences: float, num_tokens: float, hidden_size: float) -> float:
    """The usual rule of thumb: four 16-bit vectors for each token of each sequence."""
    return 8.0 * num_sequences * num_tokens * hidden_size


def devices_by_size(total_bytes: float, memory_bytes: float) -> int:
    return max(1, math.ceil(total_bytes / memory_bytes))


def devices_by_layout(num_devices: int, num_heads: int) -> int | None:
    """The fewest devices, at least so many, that the heads can be dealt out to evenly; None if there are too few heads."""
    return next((count for count in range(num_devices, num_heads + 1) if not num_heads % count), None)


def compute_ceiling(ridge: float, bits: float) -> float:
    """Sequences from which on a decode step is bound by compute: each does 2 operations for every weight read."""
    return ridge * bits / 8.0 / 2.0


def roof_s(flops: float, moved_bytes: float, ceilings: Ceilings, flops_per_s: float) -> float:
    """The longer of the two: bytes over bandwidth, operations over peak."""
    return max(flops / flops_per_s, moved_bytes / ceilings.bandwidth_bytes_per_s)


def scores_bytes(num_tokens: int, num_heads: int, bytes_per_value: float = 2.0) -> float:
    """Attention that keeps the whole matrix: scores and probabilities are each written once and read once."""
    return 4.0 * num_tokens**2 * bytes_per_value * num_heads


def plain_attention_bytes(num_tokens: int, head_dim: int, bytes_per_value: float = 2.0) -> float:
    """Of one head: the matrices, and queries, keys, values and output."""
    return scores_bytes(num_tokens, 1, bytes_per_value) + 4.0 * num_tokens * head_dim * bytes_per_value


def tiled_attention_bytes(num_tokens: int, head_dim: int, tile: int, bytes_per_value: float = 2.0) -> float:
    """Of one head: queries and output once, keys and values once for every tile of queries."""
    num_tiles = math.ceil(num_tokens / tile)
    return (2.0 * num_tokens * head_dim + num_tiles * 2.0 * num_tokens * head_dim) * bytes_per_value


def attention_flops(num_tokens: int, head_dim: int) -> float:
    """Of one head: scores and their products with values, a multiplication and an addition each; no mask spared."""
    return 4.0 * num_tokens**2 * head_dim


def paged_tokens(num_tokens: int, block_size: int) -> int:
    """Places held for so many tokens: whole blocks."""
    return math.ceil(num_tokens / block_size) * block_size


def cached_tokens(num_common: int, block_size: int) -> int:
    """Of tokens two prompts have in common, those that lie in whole blocks."""
    return num_common // block_size * block_size


def mean_time_in_queue_s(arrival_rate: float, service_rate: float) -> float | None:
    """Of a queue with one server and independent arrivals (M/M/1), service included: 1 / (m - l). None if it has no end."""
    return 1.0 / (service_rate - arrival_rate) if arrival_rate < service_rate else None


def little(arrival_rate: float, time_s: float) -> float:
    """How many are inside at once: L = l W."""
    return arrival_rate * time_s


def rate_of_users(num_users: float, think_s: float, response_s: float) -> float:
    """Requests a second of people who ask, wait and think in turn: N = X (R + Z)."""
    return num_users / (think_s + response_s)


def shed_chance(queue_fraction: float, start: float = 0.8) -> float:
    """Share of requests to refuse: none up to `start` of the queue, all at its end, evenly between."""
    return min(1.0, max(0.0, (queue_fraction - start) / (1.0 - start)))


def dollars_per_million(hourly: float, tokens_per_s: float) -> float:
    return hourly / (3600.0 * tokens_per_s) * 1e6
