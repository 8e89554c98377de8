"""A step model that fits itself while a server runs: seconds a step by what is in it, and how far off it was lately.

Least squares over four terms that are not negative, with a memory of some hundred steps: a machine of another hour is another
machine. Each step moves one weight after the other to where the squares are least, so that a load which never changes, in
which terms cannot be told apart, leaves them where they are. Each step is predicted before it is learnt from, so the error is
of steps not fitted. Pure Python, some microseconds a step.
"""

from collections import deque
from typing import NamedTuple

TERMS = ("base", "sequence", "prompt_token", "kv_token")
SCALES = (1.0, 8.0, 128.0, 4096.0)
"""Of the terms, so that numbers of one size are fitted."""
FORGET = 0.99
LEAST_STEPS = 32
"""Before anything is said."""
NUM_ERRORS = 256
MOST_FACTOR = 4.0
"""Times the prediction beyond which a step was an accident: it counts as so much."""
LEAST_SEEN = 1e-9
"""Of a term, below which its weight stays what it was: such steps were forgotten."""


class StepErrors(NamedTuple):
    """Of predictions of the last steps, as shares of the measured time."""

    median: float
    p90: float
    bias: float
    """Sum of predictions over sum of measurements, less one."""


class OnlineStepModel:
    def __init__(self) -> None:
        self.num_steps = 0
        self._weights = [0.0] * len(TERMS)
        self._products = [[0.0] * len(TERMS) for _ in TERMS]
        self._targets = [0.0] * len(TERMS)
        self._errors: deque[tuple[float, float]] = deque(maxlen=NUM_ERRORS)

    def predict(self, num_sequences: float, num_prompt_tokens: float, num_kv_tokens: float) -> float:
        terms = _terms(num_sequences, num_prompt_tokens, num_kv_tokens)
        return max(sum(weight * term for weight, term in zip(self._weights, terms)), 0.0)

    def take(self, seconds: float, num_sequences: float, num_prompt_tokens: float, num_kv_tokens: float) -> None:
        """A step took so long."""
        if not seconds > 0.0:
            return
        predicted = self.predict(num_sequences, num_prompt_tokens, num_kv_tokens)
        if self.num_steps >= LEAST_STEPS:
            self._errors.append((predicted, seconds))
            if predicted > 0.0:
                seconds = min(seconds, MOST_FACTOR * predicted)
        self.num_steps += 1
        expected = max(predicted, seconds / MOST_FACTOR)
        self._learn(_terms(num_sequences, num_prompt_tokens, num_kv_tokens), seconds, expected)

    @property
    def seconds(self) -> dict[str, float]:
        """By term, for one of it."""
        return {name: weight / scale for name, weight, scale in zip(TERMS, self._weights, SCALES)}

    @property
    def errors(self) -> StepErrors | None:
        if len(self._errors) < LEAST_STEPS:
            return None
        off = sorted(abs(predicted / seconds - 1.0) for predicted, seconds in self._errors)
        bias = sum(one for one, _ in self._errors) / sum(seconds for _, seconds in self._errors) - 1.0
        return StepErrors(off[len(off) // 2], off[int(0.9 * len(off))], bias)

    def _learn(self, terms: list[float], seconds: float, expected_s: float) -> None:
        """Each step counts as a share of what it was expected to take, so that short ones are met as well as long ones, and
        those that took half their time weigh no more than others."""
        scale = 1.0 / max(expected_s, 1e-6)
        row = [scale * term for term in terms]
        for place, value in enumerate(row):
            products = self._products[place]
            products[:] = [FORGET * product + value * other for product, other in zip(products, row)]
            self._targets[place] = FORGET * self._targets[place] + value * scale * seconds
        weights = self._weights
        for place, products in enumerate(self._products):
            if (own := products[place]) > LEAST_SEEN:
                rest = self._targets[place] - sum(weight * product for weight, product in zip(weights, products))
                weights[place] = max(weights[place] + rest / own, 0.0)


def _terms(num_sequences: float, num_prompt_tokens: float, num_kv_tokens: float) -> list[float]:
    values = (1.0, num_sequences, num_prompt_tokens, num_kv_tokens)
    return [value / scale for value, scale in zip(values, SCALES)]
