"""Laws of workloads: determinism, independence of what is drawn, shared prefixes."""

from dataclasses import replace

import pytest

from penstock.errors import ConfigError
from penstock.runtime.core.request import Request
from penstock.tools.workload.arrivals import Constant, Poisson
from penstock.tools.workload.lengths import Fixed, Uniform
from penstock.tools.workload.workload import Recipe, SharedPrefix, Workload

RECIPE = Recipe(Poisson(5.0), Uniform(5, 50), Uniform(1, 40), num_requests=200, vocab_size=1000)


def test_the_same_seed_gives_the_same_workload_and_another_a_different_one():
    assert RECIPE.make(3) == RECIPE.make(3)
    assert RECIPE.make(3) != RECIPE.make(4)


def test_changing_one_choice_leaves_the_other_draws():
    plain, slower = RECIPE.make(1), replace(RECIPE, arrivals=Constant(1.0)).make(1)
    longer = replace(RECIPE, answers=Fixed(9)).make(1)
    assert (
        [r.prompt for r in plain.requests] == [r.prompt for r in slower.requests] == [r.prompt for r in longer.requests]
    )
    assert [r.params for r in plain.requests] == [r.params for r in slower.requests]
    assert [r.arrival_s for r in plain.requests] == [r.arrival_s for r in longer.requests]


def test_totals_add_up():
    workload = RECIPE.make(0)
    assert len(workload) == 200
    assert workload.num_prompt_tokens == sum(len(r.prompt) for r in workload.requests)
    assert workload.num_output_tokens == sum(r.params.max_tokens for r in workload.requests)
    assert workload.span_s == pytest.approx(200 / 5.0, rel=0.3)
    assert all(0 <= token < 1000 for r in workload.requests for token in r.prompt)


def test_shared_prefixes_come_before_the_own_part():
    recipe = replace(RECIPE, prefix=SharedPrefix(num_tokens=64, num_prefixes=3, fraction=0.5))
    workload, plain = recipe.make(2), RECIPE.make(2)
    starts = [r.prompt[: -len(p.prompt)] for r, p in zip(workload.requests, plain.requests)]
    assert all(r.prompt[-len(p.prompt) :] == p.prompt for r, p in zip(workload.requests, plain.requests))
    shared = [start for start in starts if start]
    assert {len(start) for start in shared} == {64}
    assert len(set(shared)) == 3
    assert len(shared) / len(starts) == pytest.approx(0.5, abs=0.12)


def test_unordered_or_ambiguous_requests_are_refused():
    early, late = (Request(request_id=1, prompt=(1,), arrival_s=1.0), Request(request_id=2, prompt=(1,), arrival_s=2.0))
    with pytest.raises(ConfigError, match="order of arrival"):
        Workload((late, early))
    with pytest.raises(ConfigError, match="same request_id"):
        Workload((early, replace(late, request_id=1)))
    assert Workload(()).span_s == 0.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: replace(RECIPE, num_requests=0),
        lambda: replace(RECIPE, vocab_size=0),
        lambda: SharedPrefix(0),
        lambda: SharedPrefix(5, 0),
        lambda: SharedPrefix(5, fraction=float("nan")),
    ],
)
def test_impossible_recipes_are_refused(make):
    with pytest.raises(ConfigError):
        make()


def test_drafts_are_the_requests_before_their_tokens():
    recipe = replace(RECIPE, prefix=SharedPrefix(num_tokens=64, num_prefixes=3, fraction=0.5))
    by_prefix = {}
    for outline, request in zip(recipe.outlines(2), recipe.make(2).requests, strict=True):
        num_shared = 0 if outline.prefix is None else 64
        assert (outline.arrival_s, outline.num_answer) == (request.arrival_s, request.params.max_tokens)
        assert num_shared + outline.num_own == len(request.prompt)
        if outline.prefix is not None:
            assert by_prefix.setdefault(outline.prefix, request.prompt[:64]) == request.prompt[:64]
    assert len(set(by_prefix.values())) == 3


def test_a_seed_means_the_same_on_every_machine():
    workload = replace(RECIPE, prefix=SharedPrefix(2, 3, 0.5), num_requests=3).make(2)
    assert [request.prompt[:3] for request in workload.requests] == [(864, 458, 118), (470, 430, 552), (215, 506, 545)]


def test_fresh_tokens_keep_times_and_lengths():
    recipe = replace(RECIPE, prefix=SharedPrefix(num_tokens=64, num_prefixes=2))
    fresh, other, plain = recipe.make_fresh(3, "a"), recipe.make_fresh(3, "b"), recipe.make(3)
    assert fresh == recipe.make_fresh(3, "a")
    for one, two, three in zip(fresh.requests, other.requests, plain.requests, strict=True):
        assert len({one.prompt[:64], two.prompt[:64], three.prompt[:64]}) == 3
        assert len({one.prompt[64:], two.prompt[64:], three.prompt[64:]}) == 3
        assert len(one.prompt) == len(two.prompt) == len(three.prompt)
        assert (one.arrival_s, one.params) == (two.arrival_s, two.params) == (three.arrival_s, three.params)
