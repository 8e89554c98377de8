"""Guessed tokens change no distribution: the joint of two tokens drawn around guesses is that of the model."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from penstock.runtime.core.batch import Arrival, Batch, Chunk
from penstock.runtime.core.request import SamplingParams
from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.execution.eager import launched
from penstock.runtime.execution.eager.launched import ChunkOutcome
from penstock.runtime.execution.eager.runner import ModelRunner
from penstock.runtime.execution.eager.sampler import Sampler
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.ops.sampling.sample import Draws, Needs
from tests.ops.statistics import distribution, is_plausible
from tests.runtime.driving import BLOCK_SIZE, all_logits, tiny_model

VOCABULARY = 4
PROMPT = (2, 0, 3)
ROWS = 500

Guess = Callable[[np.ndarray, np.random.Generator], np.ndarray]


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny_model(VOCABULARY, seed=1)


def joint(model: Decoder, params: SamplingParams) -> np.ndarray:
    """Probabilities of the next two tokens, by the book."""
    first = distribution(all_logits(model, PROMPT)[-1].numpy(), params)
    rows = [distribution(all_logits(model, (*PROMPT, token))[-1].numpy(), params) for token in range(VOCABULARY)]
    return first[:, None] * np.array(rows)


def random_guess(probabilities: np.ndarray, source: np.random.Generator) -> np.ndarray:
    return source.integers(0, VOCABULARY, (ROWS, 2))


def likeliest_guess(probabilities: np.ndarray, source: np.random.Generator) -> np.ndarray:
    return np.tile(np.unravel_index(probabilities.argmax(), probabilities.shape), (ROWS, 1))


def unlikeliest_guess(probabilities: np.ndarray, source: np.random.Generator) -> np.ndarray:
    return np.tile(np.unravel_index(probabilities.argmin(), probabilities.shape), (ROWS, 1))


def draw_pairs(model: Decoder, params: SamplingParams, guess: Guess, num_draws: int) -> np.ndarray:
    """Counts of the two tokens after the prompt, drawn with two guesses in the step, each pair under its own choice."""
    counts = np.zeros((VOCABULARY, VOCABULARY))
    runner = ModelRunner(model, RunnerShape(ROWS, BLOCK_SIZE, ROWS, BLOCK_SIZE))
    guesses = guess(joint(model, params), np.random.default_rng(5)).tolist()
    for first_choice in range(0, num_draws, ROWS):
        chunks = tuple(
            Chunk(row, 0, 5, (*PROMPT, *guesses[row]), (row,), True, Arrival(params, choice, 3, (), ""), 2)
            for row, choice in enumerate(range(first_choice, first_choice + ROWS))
        )
        pairs = [list(tokens) for tokens in runner.launch(Batch(0, chunks)).result().tokens]
        short = [row for row, tokens in enumerate(pairs) if len(tokens) == 1]
        chunks = tuple(Chunk(row, 3, 1, (), (), True, None) for row in short)
        for row, tokens in zip(short, runner.launch(Batch(1, chunks)).result().tokens):
            pairs[row].extend(tokens)
        for first, second, *_ in pairs:
            counts[first, second] += 1
    return counts


SETTINGS = [
    SamplingParams(temperature=0.5),
    SamplingParams(),
    SamplingParams(temperature=1.5),
    SamplingParams(top_k=3),
    SamplingParams(temperature=1.5, top_p=0.8),
    SamplingParams(temperature=0.5, top_k=3, top_p=0.9),
]
GUESSES = [random_guess, likeliest_guess, unlikeliest_guess]


def test_two_settings_in_short(model: Decoder) -> None:
    for params, guess in ((SETTINGS[2], random_guess), (SETTINGS[4], likeliest_guess)):
        assert is_plausible(draw_pairs(model, params, guess, 6_000), joint(model, params))


@pytest.mark.slow
@pytest.mark.parametrize(
    "params", SETTINGS, ids=lambda params: f"T={params.temperature} k={params.top_k} p={params.top_p}"
)
@pytest.mark.parametrize("guess", GUESSES)
def test_guesses_change_no_distribution(model: Decoder, params: SamplingParams, guess: Guess) -> None:
    assert is_plausible(draw_pairs(model, params, guess, 200_000), joint(model, params))


def _accepted_unseen(chunk: Chunk, drawn: list[int], *reported: object) -> ChunkOutcome:
    """The guess is taken for the token."""
    drafts = chunk.token_ids[-2:] if chunk.num_drafts else ()
    return ChunkOutcome(tuple(drafts) + tuple(drawn[-1:]))


def _kept_after_a_mismatch(chunk: Chunk, drawn: list[int], *reported: object) -> ChunkOutcome:
    """What was drawn behind a guess that was refused is kept."""
    return ChunkOutcome(tuple(drawn))


def _refused_then_drawn_from_all(chunk: Chunk, drawn: list[int], *reported: object) -> ChunkOutcome:
    """After a refusal the guess may be drawn again: a token of another key stands in for the second draw."""
    outcome = _plainly_accepted(chunk, drawn, *reported)
    if chunk.num_drafts and len(outcome.tokens) == 1:
        return ChunkOutcome((_refused_then_drawn_from_all.spare.pop(),))
    return outcome


_plainly_accepted = launched.accepted
MUTANTS = [_accepted_unseen, _kept_after_a_mismatch, _refused_then_drawn_from_all]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_planted_bugs_are_caught(
    model: Decoder, mutant: Callable[..., ChunkOutcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(temperature=1.5)
    first = distribution(all_logits(model, PROMPT)[-1].numpy(), params)
    spare = np.random.default_rng(1).choice(VOCABULARY, 20_000, p=first).tolist()
    monkeypatch.setattr(_refused_then_drawn_from_all, "spare", spare, raising=False)
    monkeypatch.setattr(launched, "accepted", mutant)
    assert not is_plausible(draw_pairs(model, params, likeliest_guess, 4_000), joint(model, params))


def test_a_temperature_left_out_where_guesses_are_judged_is_caught(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(temperature=1.5)
    plain = Sampler.draw

    def judged_greedily(sampler: Sampler, scores: torch.Tensor, draws: Draws, needs: Needs) -> torch.Tensor:
        drawn = plain(sampler, scores, draws, needs)
        if len(scores) == 3 * ROWS:
            is_judged = torch.arange(len(scores)) % 3 != 2
            return torch.where(is_judged, scores.argmax(-1), drawn)
        return drawn

    monkeypatch.setattr(Sampler, "draw", judged_greedily)
    assert not is_plausible(draw_pairs(model, params, random_guess, 6_000), joint(model, params))
