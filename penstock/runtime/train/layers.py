"""Which layers a model can skip when it drafts for itself: each is left out alone, and those that matter least are left out
together.

A set is judged by how often its likeliest token is the true one, and by the share of the weights it reads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.runtime.execution.heads.target import Chooser
from penstock.runtime.models.spec import ModelSpec
from penstock.runtime.train.examples import Example

SHARES = (0.2, 0.35, 0.5, 0.65, 0.8)
"""Shares of the layers that are left out together."""
MOST_DRAFTS = 8


@dataclass(frozen=True, slots=True)
class ChosenLayers:
    layers: tuple[int, ...]
    agreement: float
    gain: float
    """Speed-up, if the time of a step is that of reading its weights."""


def choose(
    spec: ModelSpec, agree: Callable[[Sequence[int]], float], progress: Callable[[int, int], None]
) -> ChosenLayers:
    every = range(spec.num_layers)
    total = spec.num_layers + len(SHARES)
    alone: list[tuple[float, int]] = []
    for number in every:
        alone.append((agree([other for other in every if other != number]), number))
        progress(number + 1, total)
    by_harm = [number for _, number in sorted(alone, reverse=True)]
    best: ChosenLayers | None = None
    for tried, share in enumerate(SHARES, 1):
        dropped = set(by_harm[: max(round(share * spec.num_layers), 1)])
        layers = tuple(number for number in every if number not in dropped)
        if layers:
            rate = agree(layers)
            found = ChosenLayers(layers, rate, expected_gain(rate, _weights_read(spec, len(layers))))
            best = found if best is None or found.gain > best.gain else best
        progress(spec.num_layers + tried, total)
    return best or ChosenLayers(tuple(every), 1.0, 0.5)


def agreement(examples: Sequence[Example], choose_tokens: Chooser) -> float:
    """How often the likeliest token is the true one, over all answers."""
    hits = trials = 0
    for example in examples:
        begin = example.num_prompt
        likeliest = choose_tokens(example.states[begin - 1 : -1].float())
        came = example.tokens[begin:].tolist()
        hits += sum(guess == token for guess, token in zip(likeliest, came))
        trials += len(came)
    return hits / max(trials, 1)


def expected_gain(rate: float, cost: float) -> float:
    """Tokens per round over its time in plain steps, for the best draft length; checking is free."""
    return max(
        sum(rate**place for place in range(count + 1)) / (1 + count * cost) for count in range(1, MOST_DRAFTS + 1)
    )


def _weights_read(spec: ModelSpec, num_layers: int) -> float:
    output = spec.hidden_size * spec.vocab_size
    body = spec.num_parameters - output * (1 if spec.tied_embedding else 2)
    return (body * num_layers / spec.num_layers + output) / (body + output)
