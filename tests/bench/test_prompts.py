"""Laws of prompts: they cost what was asked, equal names are equal words, another nonce is another text."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.tools.bench.client.prompts import WORDS, PromptWords, Segment
from penstock.tools.bench.plan import TrafficPlan, plan_of_recipe, plan_of_trace
from penstock.tools.workload.arrivals import Poisson
from penstock.tools.workload.lengths import Uniform
from penstock.tools.workload.trace import TraceRow, trace_of_rows
from penstock.tools.workload.workload import Conversation, Recipe, SharedPrefix

PLAIN = PromptWords(
    tuple(f" {word}" for word in WORDS), (1.0,) * len(WORDS), nonce="n", token_ids=tuple(range(100, 400))
)
BYTES = PromptWords(
    (*(f" {word}" for word in WORDS), ".", ","), (*(len(word) + 1.0 for word in WORDS), 1.0, 1.0), overhead=7, nonce="n"
)


def test_the_list_has_no_word_twice():
    assert len(set(WORDS)) == len(WORDS) > 100


@given(count=st.integers(1, 3000), name=st.text(max_size=5))
def test_a_text_costs_what_was_asked(count, name):
    assert len(PLAIN.text([Segment(name, count)]).split()) == count
    assert len(PLAIN.ids([Segment(name, count)])) == count
    if count > 40:
        # One a byte, all but one: a single letter and its space would be two.
        assert abs(len(BYTES.text([Segment(name, count)])) + 7 - count) <= 1


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=5), overhead=st.integers(0, 40))
def test_what_a_server_adds_is_taken_from_the_end(lengths, overhead):
    vocabulary = PromptWords(PLAIN.pieces, PLAIN.costs, overhead, PLAIN.token_ids, "n")
    segments = [Segment(str(number), length) for number, length in enumerate(lengths)]
    left = max(sum(lengths) - overhead, 1)
    assert len(vocabulary.text(segments).split()) == len(vocabulary.ids(segments)) == left
    # All but the last few words are those of the whole prompt: what prompts share, they still share.
    same = max(left - 3, 0) if overhead < lengths[-1] else max(lengths[0] - overhead - 3, 0)
    assert vocabulary.text(segments).split()[:same] == PLAIN.text(segments).split()[:same]
    assert vocabulary.ids(segments)[:same] == PLAIN.ids(segments)[:same]


def test_equal_names_are_equal_words_and_other_nonces_are_not():
    shared = Segment("shared", 50)
    one, two = (PLAIN.text([shared, Segment(name, 50)]) for name in "ab")
    assert one.split()[:50] == two.split()[:50]
    assert one.split()[50:] != two.split()[50:]
    other = PromptWords(PLAIN.pieces, PLAIN.costs, nonce="m")
    assert sum(a == b for a, b in zip(other.text([shared]).split(), one.split())) < 10


def test_a_list_that_cannot_be_measured_is_refused():
    with pytest.raises(ConfigError):
        PromptWords((), ())
    with pytest.raises(ConfigError):
        PromptWords((" a",), (float("nan"),))


RECIPE = Recipe(Poisson(2.0), Uniform(5, 90), Uniform(1, 9), 30, SharedPrefix(64, 2, 0.5))


def test_a_plan_has_the_arrivals_and_lengths_of_its_recipe():
    recipe = replace(RECIPE, conversation=Conversation(2, 0.5))
    plan = plan_of_recipe(recipe, 3, name="x ")
    for ask, request in zip(plan.asks, RECIPE.make(3).requests, strict=True):
        assert ask.arrival_s == request.arrival_s
        assert ask.turns[0].num_prompt == len(request.prompt)
        assert ask.turns[0].num_answer == request.params.max_tokens
        assert (len(ask.turns), ask.think_s) == (2, 0.5)
    assert plan.num_requests == 60
    assert plan == plan_of_recipe(recipe, 3, name="x ")
    names = {turn.segments[-1].name for ask in plan.asks for turn in ask.turns}
    assert len(names) == 60


def test_what_a_plan_repeats_is_counted():
    plan = plan_of_recipe(RECIPE, 3)
    shared = [ask.turns[0].segments[0].name for ask in plan.asks if len(ask.turns[0].segments) > 1]
    assert plan.num_repeated() == 64 * (len(shared) - len(set(shared)))
    turns = plan_of_recipe(Recipe(Poisson(2.0), Uniform(10, 10), Uniform(3, 3), 2, conversation=Conversation(3)), 0)
    assert turns.num_repeated() == 2 * (13 + 26)
    assert turns.num_prompt_tokens() == 2 * (10 + 23 + 36)
    assert TrafficPlan(()).num_repeated() == 0


def test_a_traces_blocks_become_segments_of_their_names():
    plan = plan_of_trace(
        trace_of_rows([TraceRow(0.0, 1000, 5, (1, 2)), TraceRow(1.0, 1200, 5, (1, 3)), TraceRow(2.0, 30, 5)])
    )
    first, second, third = (ask.turns[0] for ask in plan.asks)
    assert [turn.num_prompt for turn in (first, second, third)] == [1000, 1200, 30]
    assert first.segments[0] == second.segments[0]
    assert [segment.num_tokens for segment in first.segments] == [512, 488]
    assert [segment.num_tokens for segment in second.segments] == [512, 512, 176]
    assert plan.num_repeated() == 512
