"""Whether counts could have come from a distribution, and a short reference for the distribution of a draw."""

import math

import numpy as np

from penstock.runtime.core.request import SamplingParams

Z = 3.719
"""One-sided normal quantile of 1 - 1e-4."""


def is_plausible(counts: np.ndarray, probabilities: np.ndarray) -> bool:
    """Pearson's chi-square test at 1e-4. Cells that cannot occur must be empty; rare ones are taken together."""
    counts, probabilities = counts.ravel().astype(float), probabilities.ravel().astype(float)
    if counts[probabilities == 0].any():
        return False
    expected = probabilities * counts.sum()
    is_rare = expected < 10
    observed, expected = (
        np.append(cells[~is_rare], cells[is_rare].sum()) if is_rare.any() else cells for cells in (counts, expected)
    )
    observed, expected = observed[expected > 0], expected[expected > 0]
    if len(expected) == 1:
        return observed[0] == counts.sum()
    statistic = ((observed - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    # Wilson and Hilferty: the cube root of chi-square is nearly normal.
    critical = freedom * (1 - 2 / (9 * freedom) + Z * math.sqrt(2 / (9 * freedom))) ** 3
    return bool(statistic <= critical)


def distribution(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """What a token is drawn from, step by step as the parameters are commonly described."""
    if params.temperature == 0:
        return np.eye(len(logits))[np.argmax(logits)]
    shares = _softmax(logits.astype(np.float64) / params.temperature)
    if params.top_k:
        least = np.sort(shares)[::-1][min(params.top_k, len(shares)) - 1]
        shares = _normalized(np.where(shares >= least, shares, 0))
    if params.top_p < 1:
        order = np.argsort(-shares)
        num_kept = np.searchsorted(np.cumsum(shares[order]), params.top_p) + 1
        kept = np.zeros(len(shares), dtype=bool)
        kept[order[:num_kept]] = True
        shares = _normalized(np.where(kept, shares, 0))
    shares = np.where(shares >= params.min_p * shares.max(), shares, 0)
    return _normalized(shares)


def _softmax(numbers: np.ndarray) -> np.ndarray:
    return _normalized(np.exp(numbers - numbers.max()))


def _normalized(shares: np.ndarray) -> np.ndarray:
    return shares / shares.sum()
