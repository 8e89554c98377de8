"""Beam search gives what its definition gives, and with a beam as wide as the world, the likeliest text there is."""

from collections.abc import Callable
from itertools import product

import pytest
import torch

from penstock.errors import RequestError
from penstock.runtime.text.beam import Beam, BeamRules, beam_search
from tests.offline import tiny_llm
from tests.runtime.driving import all_logits, tiny_model

VOCABULARY = 5
PROMPT = (3, 1, 4, 1)
Score = Callable[[tuple[int, ...]], torch.Tensor]


@pytest.fixture(scope="module")
def score() -> Score:
    """Log probabilities of the token after an answer, by the model alone."""
    model = tiny_model(VOCABULARY)
    known: dict[tuple[int, ...], torch.Tensor] = {}

    def of(answer: tuple[int, ...]) -> torch.Tensor:
        if answer not in known:
            known[answer] = torch.log_softmax(all_logits(model, (*PROMPT, *answer))[-1], dim=-1)
        return known[answer]

    return of


def by_definition(score: Score, rules: BeamRules) -> list[Beam]:
    """Everything ranked at every step, nothing left out and nothing decided early."""
    alive, ended = [Beam()], []
    for _ in range(rules.max_tokens):
        grown = [
            Beam((*beam.token_ids, token), beam.logprob + float(score(beam.token_ids)[token]), token in rules.ends)
            for beam in alive
            for token in range(VOCABULARY)
        ]
        alive = []
        for beam in sorted(grown, key=lambda beam: -beam.logprob):
            if len(alive) < rules.width:
                (ended if beam.is_ended else alive).append(beam)
    return sorted(ended + alive, key=lambda beam: -beam.score(rules.length_penalty))[: rules.width]


def ranked(score: Score) -> Callable[[list[tuple[int, ...]], int], list[list[tuple[int, float]]]]:
    def likeliest(answers: list[tuple[int, ...]], count: int) -> list[list[tuple[int, float]]]:
        tops = [score(answer).topk(min(count, VOCABULARY)) for answer in answers]
        return [list(zip(top.indices.tolist(), top.values.tolist())) for top in tops]

    return likeliest


def check_same(found: list[Beam], expected: list[Beam]) -> None:
    assert [beam.token_ids for beam in found] == [beam.token_ids for beam in expected]
    assert [beam.logprob for beam in found] == pytest.approx([beam.logprob for beam in expected], abs=1e-4)
    assert [beam.is_ended for beam in found] == [beam.is_ended for beam in expected]


@pytest.mark.parametrize("ends", [(), (2,), (0, 2)])
@pytest.mark.parametrize("length_penalty", [-0.5, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("width", [1, 2, 3, 7])
def test_the_search_is_its_definition(score: Score, width: int, length_penalty: float, ends: tuple[int, ...]) -> None:
    rules = BeamRules(width, 6, length_penalty, ends)
    check_same(beam_search(ranked(score), rules), by_definition(score, rules))


@pytest.mark.parametrize(("width", "max_tokens"), [(1, 8), (3, 6), (8, 5)])
def test_the_engine_searches_as_the_definition_does(score: Score, width: int, max_tokens: int) -> None:
    with tiny_llm(VOCABULARY) as llm:
        found = llm.beam_search(PROMPT, width, max_tokens, 0.8)
        llm.engine.scheduler.check()
    check_same(found, by_definition(score, BeamRules(width, max_tokens, 0.8)))


def test_a_beam_as_wide_as_the_world_finds_the_likeliest_of_all_texts(score: Score) -> None:
    every = {
        answer: sum(float(score(answer[:place])[token]) for place, token in enumerate(answer))
        for answer in product(range(VOCABULARY), repeat=3)
    }
    with tiny_llm(VOCABULARY) as llm:
        found = llm.beam_search(PROMPT, VOCABULARY**2, 3)
    best = sorted(every, key=lambda answer: -every[answer])
    assert [beam.token_ids for beam in found[:3]] == best[:3]


def test_a_beam_of_one_is_greedy() -> None:
    with tiny_llm() as llm:
        (beam,) = llm.beam_search(PROMPT, 1, 12)
        from penstock import SamplingParams

        (greedy,) = llm.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=12))
    assert list(beam.token_ids) == greedy.choices[0].token_ids


@pytest.mark.parametrize(
    ("width", "max_tokens", "length_penalty", "fault"),
    [
        (0, 5, 1.0, "width is 0"),
        (129, 5, 1.0, "width is 129"),
        (2, 0, 1.0, "max_tokens is 0"),
        (2, 5, float("nan"), "length_penalty is nan"),
        (2, 500, 1.0, "maximum context length is 160"),
    ],
)
def test_what_cannot_be_searched_is_refused(width: int, max_tokens: int, length_penalty: float, fault: str) -> None:
    with tiny_llm() as llm, pytest.raises(RequestError, match=fault):
        llm.beam_search(PROMPT, width, max_tokens, length_penalty)
