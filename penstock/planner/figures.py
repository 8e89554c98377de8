"""The few formulas everything follows from, for one device or one round. Pure arithmetic: no model files, no simulation."""

import math

from penstock.cost.hardware import Ceilings
from penstock.errors import ConfigError


def decode_floor_s(weight_bytes: float, ceilings: Ceilings, kv_bytes: float = 0.0) -> float:
    """The least a decode step can take: every weight is read once, and the KV of every sequence in the batch."""
    return (weight_bytes + kv_bytes) / ceilings.bandwidth_bytes_per_s


def tokens_per_round(acceptance: float, num_drafts: int) -> float:
    """Tokens that one check of a draft gives: those accepted before the first rejection, and the one drawn in its place.

    1 + a + a^2 + ... + a^g = (1 - a^(g + 1)) / (1 - a)
    """
    if not 0.0 <= acceptance <= 1.0 or num_drafts < 0:
        raise ConfigError(f"acceptance {acceptance} of {num_drafts} drafts: choose 0 to 1, and 0 drafts or more")
    return math.fsum(acceptance**place for place in range(num_drafts + 1))


def speculation_gain(acceptance: float, num_drafts: int, draft_cost: float) -> float:
    """Times as many tokens a second; `draft_cost` is what drafting one token costs of a step of the model."""
    return tokens_per_round(acceptance, num_drafts) / (1.0 + num_drafts * draft_cost)


def sequences_that_fit(free_bytes: float, kv_bytes_per_token: float, tokens_per_sequence: float) -> int:
    return max(0, math.floor(free_bytes / (kv_bytes_per_token * tokens_per_sequence)))
