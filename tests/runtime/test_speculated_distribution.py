"""Drawn with drafts is drawn without: the joint distribution of two consecutive tokens, whoever guesses and however badly.

Chi-square over 16 cells at 1e-4. Two ways of getting it wrong that others shipped are seen to fail.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from penstock.runtime.core.batch import Chunk
from penstock.runtime.execution.eager.launched import accepted
from penstock.runtime.ops.sampling.whole import DrawKeys, draw_whole

VOCAB_SIZE = 4
START = 2
CRITICAL = 44.26
"""Of chi-square with 15 degrees of freedom, at 1e-4."""
NUM_SAMPLES = 20_000
TABLE = torch.randn((VOCAB_SIZE, VOCAB_SIZE), generator=torch.Generator().manual_seed(3)) * 1.3
"""Scores after each token: a model that remembers one."""

Accept = Callable[[int, list[int]], tuple[int, ...]]
DRAFTS: dict[str, Callable[[int], Tensor]] = {
    "likeliest": lambda count: TABLE[START].argmax().expand(count),
    "unlikeliest": lambda count: TABLE[START].argmin().expand(count),
    "random": lambda count: torch.randint(0, VOCAB_SIZE, (count,), generator=torch.Generator().manual_seed(5)),
}


def shares(temperature: float) -> Tensor:
    chances = (TABLE / temperature).softmax(-1)
    return chances[START][:, None] * chances


def draw(scores: Tensor, temperature: float, seeds: Tensor, position: int) -> Tensor:
    keys = DrawKeys(seeds, torch.zeros_like(seeds), torch.full_like(seeds, position))
    return draw_whole(scores, torch.full((len(seeds),), temperature), keys)


def speculate(drafts: Tensor, temperature: float, accept: Accept) -> Tensor:
    """Two tokens a sample: of one step where the draft is accepted, of two where it is not."""
    seeds = torch.arange(len(drafts))
    first = draw(TABLE[START].expand(len(drafts), -1), temperature, seeds, 7)
    after_draft = draw(TABLE[drafts], temperature, seeds, 8)
    kept = [
        accept(draft, list(drawn)) for draft, *drawn in zip(*(each.tolist() for each in (drafts, first, after_draft)))
    ]
    ours = torch.tensor([tokens[0] for tokens in kept])
    again = draw(TABLE[ours], temperature, seeds, 8)
    second = torch.tensor([tokens[1] if len(tokens) > 1 else int(token) for tokens, token in zip(kept, again)])
    return torch.stack((ours, second), dim=1)


def chi_square(pairs: Tensor, expected: Tensor) -> float:
    counts = torch.bincount(pairs[:, 0] * VOCAB_SIZE + pairs[:, 1], minlength=VOCAB_SIZE**2).double()
    wanted = expected.double().flatten() * len(pairs)
    return float(((counts - wanted) ** 2 / wanted).sum())


def ours(draft: int, drawn: list[int]) -> tuple[int, ...]:
    return accepted(Chunk(0, 7, 2, (draft,), (), True, None, 1), drawn, [], ()).tokens


def trusting(draft: int, drawn: list[int]) -> tuple[int, ...]:
    """A mutant: the draft is taken as drawn."""
    return draft, drawn[1]


def careless(draft: int, drawn: list[int]) -> tuple[int, ...]:
    """A mutant: what was drawn after a rejected draft is kept."""
    return tuple(drawn)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("guess", DRAFTS)
def test_two_tokens_are_distributed_as_without_drafts(guess: str, temperature: float) -> None:
    pairs = speculate(DRAFTS[guess](NUM_SAMPLES), temperature, ours)
    assert chi_square(pairs, shares(temperature)) < CRITICAL


@pytest.mark.parametrize("mutant", [trusting, careless])
@pytest.mark.parametrize("guess", DRAFTS)
def test_mistakes_are_noticed(guess: str, mutant: Accept) -> None:
    assert chi_square(speculate(DRAFTS[guess](NUM_SAMPLES), 1.0, mutant), shares(1.0)) > CRITICAL


def test_a_seed_gives_the_same_tokens_with_and_without() -> None:
    seeds = torch.arange(2000)
    first = draw(TABLE[START].expand(2000, -1), 1.0, seeds, 7)
    second = draw(TABLE[first], 1.0, seeds, 8)
    for guess in DRAFTS.values():
        assert torch.equal(speculate(guess(2000), 1.0, ours), torch.stack((first, second), dim=1))


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("guess", DRAFTS)
def test_two_hundred_thousand_samples_agree(guess: str, temperature: float) -> None:
    pairs = speculate(DRAFTS[guess](200_000), temperature, ours)
    assert chi_square(pairs, shares(temperature)) < CRITICAL
