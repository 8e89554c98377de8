"""Bits go where they help most, and never beyond the size that was asked for."""

import itertools
import random

import pytest

from penstock.errors import ConfigError
from penstock.tools.quantize.mixed import Offer, choose

pytestmark = pytest.mark.plain


def test_the_choice_is_near_the_best_of_all_choices() -> None:
    draw = random.Random(4)
    for _ in range(30):
        offers = {}
        for name in "abcde":
            size, harm = draw.choice([100, 200]), draw.uniform(0.1, 5)
            offers[name] = [Offer(4 * size, harm), Offer(5 * size, harm * 0.4), Offer(8 * size, harm * 0.05)]
        budget = sum(each[0].bits for each in offers.values()) * 1.3
        found = choose(offers, budget)
        bits = sum(offers[name][number].bits for name, number in found.items())
        harm = sum(offers[name][number].harm for name, number in found.items())
        best = min(
            sum(each[n].harm for each, n in zip(offers.values(), numbers))
            for numbers in itertools.product(range(3), repeat=5)
            if sum(each[n].bits for each, n in zip(offers.values(), numbers)) <= budget
        )
        assert bits <= budget
        uniform = sum(each[0].harm for each in offers.values())
        assert harm <= best + 0.35 * (uniform - best)


def test_an_offer_that_costs_more_and_helps_less_is_never_taken() -> None:
    offers = {"a": [Offer(4, 1.0), Offer(5, 1.5), Offer(8, 0.1)], "b": [Offer(4, 0.5), Offer(8, 0.5)]}
    assert choose(offers, 100) == {"a": 2, "b": 0}
    with pytest.raises(ConfigError, match="--bits-per-weight"):
        choose(offers, 7)
