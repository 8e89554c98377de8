"""Draws follow their distribution, random numbers depend on their key alone, penalties are those of the books."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from penstock.runtime.core.request import SamplingParams
from penstock.runtime.ops.cpu.sampling import draw_by_buckets
from penstock.runtime.ops.sampling import draw as sampling
from penstock.runtime.ops.sampling.draw import Penalties, SamplingTensors, draw, invert, penalize, uniform
from tests.ops.statistics import distribution, is_plausible

NUM_DRAWS = 200_000
LOGITS = torch.tensor([2.1, -0.3, 0.4, 1.9, -2.0, 0.0, 1.1, -1.0, 0.9, -0.6, 1.5, -3.0, 0.2, 0.7, -1.6, 1.2])
SETTINGS = [
    SamplingParams(),
    SamplingParams(temperature=0.5),
    SamplingParams(temperature=1.5),
    SamplingParams(top_k=1),
    SamplingParams(top_k=5),
    SamplingParams(temperature=1.5, top_k=9),
    SamplingParams(top_p=0.3),
    SamplingParams(temperature=0.5, top_p=0.9),
    SamplingParams(temperature=1.5, top_p=0.95),
    SamplingParams(min_p=0.2),
    SamplingParams(temperature=1.5, top_k=8, top_p=0.8),
    SamplingParams(temperature=1.2, top_k=12, top_p=0.9, min_p=0.15),
]


def name(params: SamplingParams) -> str:
    return f"T={params.temperature} k={params.top_k} p={params.top_p} m={params.min_p}"


def keyed(count: int, seed: int = 0) -> torch.Tensor:
    zeros = torch.zeros(count, dtype=torch.int64)
    return uniform(zeros + seed, zeros, torch.arange(count))


def tensors(params: SamplingParams, uniforms: torch.Tensor) -> SamplingTensors:
    count = len(uniforms)
    columns = (params.temperature, params.top_k, params.top_p, params.min_p)
    return SamplingTensors(*(torch.full((count,), value) for value in columns), uniforms)


def counts(function: Callable[[torch.Tensor, SamplingTensors], torch.Tensor], params: SamplingParams) -> np.ndarray:
    logits = LOGITS.expand(NUM_DRAWS, -1).clone()
    drawn = function(logits, tensors(params, keyed(NUM_DRAWS)))
    return torch.bincount(drawn, minlength=len(LOGITS)).numpy()


@pytest.mark.parametrize("params", SETTINGS, ids=name)
def test_draws_follow_the_distribution(params: SamplingParams) -> None:
    assert is_plausible(counts(draw.definition, params), distribution(LOGITS.numpy(), params))


@pytest.mark.parametrize("params", SETTINGS, ids=name)
def test_the_kernel_draws_the_same_tokens(params: SamplingParams) -> None:
    """Over a vocabulary that is no multiple of anything, flat and peaked; ties and impossible tokens among it."""
    logits = torch.randn((300, 1237), generator=torch.Generator().manual_seed(1)) * torch.linspace(0.1, 8, 300)[:, None]
    logits[::7] = logits[::7].round()
    logits[::11, ::2] = -torch.inf
    asked = tensors(params, keyed(300, seed=4))
    assert torch.equal(draw_by_buckets(logits, asked), draw.definition(logits, asked))


def _temperature_ignored(logits: torch.Tensor, asked: SamplingTensors) -> torch.Tensor:
    return draw.definition(logits, asked._replace(temperature=torch.ones_like(asked.temperature)))


def _one_too_many(logits: torch.Tensor, asked: SamplingTensors) -> torch.Tensor:
    return draw.definition(logits, asked._replace(top_k=torch.where(asked.top_k > 0, asked.top_k + 1, 0)))


def _without_the_one_that_passes(logits: torch.Tensor, asked: SamplingTensors) -> torch.Tensor:
    scaled = sampling.scale(logits, asked.temperature)
    ordered = scaled.sort(-1, descending=True).values
    num_kept = (ordered.softmax(-1).cumsum(-1) <= asked.top_p[:, None]).sum(-1).clamp(min=1)
    return invert(scaled, ordered.gather(1, num_kept[:, None] - 1)[:, 0], asked.uniform)


def _share_of_one(logits: torch.Tensor, asked: SamplingTensors) -> torch.Tensor:
    scaled = sampling.scale(logits, asked.temperature)
    return invert(scaled, asked.min_p.log() + scaled.logsumexp(-1), asked.uniform)


def _mass_before_count(logits: torch.Tensor, asked: SamplingTensors) -> torch.Tensor:
    scaled = sampling.scale(logits, asked.temperature)
    ordered = scaled.sort(-1, descending=True).values
    by_mass = sampling.least_by_rank(ordered, asked._replace(top_k=torch.zeros_like(asked.top_k)))
    by_count = sampling.least_by_rank(ordered, asked._replace(top_p=torch.ones_like(asked.top_p)))
    return invert(scaled, torch.maximum(by_mass, by_count), asked.uniform)


def _last_never_drawn(logits: torch.Tensor, asked: SamplingTensors) -> torch.Tensor:
    drawn = draw.definition(logits, asked)
    return torch.where(drawn == len(LOGITS) - 1, drawn - 1, drawn)


def _coarse(logits: torch.Tensor, asked: SamplingTensors) -> torch.Tensor:
    return draw.definition(logits, asked._replace(uniform=(asked.uniform * 64).floor() / 64))


@pytest.mark.parametrize(
    ("mutant", "params"),
    [
        (_temperature_ignored, SamplingParams(temperature=0.5)),
        (_temperature_ignored, SamplingParams(temperature=1.5, top_p=0.95)),
        (_one_too_many, SamplingParams(top_k=5)),
        (_without_the_one_that_passes, SamplingParams(temperature=1.5, top_p=0.95)),
        (_share_of_one, SamplingParams(min_p=0.2)),
        (_mass_before_count, SamplingParams(temperature=1.5, top_k=8, top_p=0.8)),
        (_last_never_drawn, SamplingParams()),
        (_coarse, SamplingParams()),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_planted_bugs_are_caught(
    mutant: Callable[[torch.Tensor, SamplingTensors], torch.Tensor], params: SamplingParams
) -> None:
    assert not is_plausible(counts(mutant, params), distribution(LOGITS.numpy(), params))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_random_numbers_are_uniform_and_independent_along_every_part_of_the_key(axis: int) -> None:
    key = [torch.zeros(100_001, dtype=torch.int64) for _ in range(3)]
    key[axis] = torch.arange(100_001) - 50_000
    numbers = uniform(*key).numpy()
    assert numbers.min() >= 0
    assert numbers.max() < 1
    pairs, _, _ = np.histogram2d(numbers[:-1], numbers[1:], bins=16, range=((0, 1), (0, 1)))
    assert is_plausible(pairs, np.full((16, 16), 1 / 256))
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.015


def test_no_two_keys_share_their_numbers() -> None:
    seeds, choices, positions = (part.ravel() for part in torch.meshgrid(*[torch.arange(-20, 20)] * 3, indexing="ij"))
    assert len(uniform(seeds, choices, positions).unique()) == len(seeds)


def test_random_numbers_are_the_same_everywhere() -> None:
    """The mixer in plain integers: any device and any version must give these."""

    def mix(state: int) -> int:
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
        return state ^ (state >> 31)

    def number(*key: int) -> float:
        state = 0
        for part in key:
            state = mix(state ^ ((part + 0x9E3779B97F4A7C15) % 2**64))
        return (state >> 11) * 2.0**-53

    keys = [(0, 0, 0), (1, 0, 0), (2**63 - 1, 127, 131_071), (-(2**63), 0, 5), (-1, 3, 7)]
    assert uniform(*torch.tensor(keys).unbind(1)).tolist() == [number(*key) for key in keys]


def test_extreme_numbers_draw_a_token_that_may_be_drawn() -> None:
    logits = torch.tensor([[-torch.inf, 3.0, 3.0, -torch.inf, 2.9, -torch.inf]]).expand(9, -1)
    for edge in (0.0, 1 - 2.0**-53):
        for params in (SamplingParams(temperature=value) for value in (1e-45, 1e-7, 1.0, 100.0)):
            drawn = draw(logits, tensors(params, torch.full((9,), edge, dtype=torch.float64)))
            assert set(drawn.tolist()) <= {1, 2, 4}


@pytest.mark.parametrize("repetition", [0.5, 1.0, 1.7])
def test_penalties_are_those_of_the_books(repetition: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((5, 40), generator=generator) * 3
    history = torch.randint(0, 40, (5, 30), generator=generator)
    prompt_lengths, lengths = torch.tensor([30, 10, 4, 12, 1]), torch.tensor([30, 30, 17, 13, 2])
    presence, frequency = torch.tensor([0.5, 2.0, -2.0, 0.0, 1.0]), torch.tensor([1.0, 0.3, -0.5, 2.0, 0.0])
    mine = logits.clone()
    penalize(mine, history, prompt_lengths, lengths, Penalties(torch.full((5,), repetition), presence, frequency))
    for row in range(5):
        known = history[row : row + 1, : lengths[row]]
        theirs = RepetitionPenaltyLogitsProcessor(repetition)(known, logits[row : row + 1].clone())[0]
        drawn = torch.bincount(known[0, prompt_lengths[row] :], minlength=40)
        theirs = theirs - frequency[row] * drawn - presence[row] * (drawn > 0)
        torch.testing.assert_close(mine[row], theirs, atol=1e-5, rtol=1e-5)
