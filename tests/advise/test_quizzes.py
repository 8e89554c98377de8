"""Laws of quizzes: one right answer, a reason for each, drawn anew by the seed and the same for the same seed."""

import json
from dataclasses import asdict

import pytest

from penstock.errors import ConfigError
from penstock.tools.advise.quizzes import AREAS, ITEMS, questions


@pytest.mark.parametrize("item", ITEMS.values(), ids=lambda item: item.id)
def test_a_question_has_one_right_answer_and_a_reason_for_each(item) -> None:
    for seed in range(20):
        question = item.question(seed)
        assert sum(option.is_right for option in question.options) == 1
        assert len({option.text for option in question.options}) == len(question.options) >= 3 or item.id == "goodput"
        assert all(option.reason for option in question.options)
        assert question == item.question(seed)


def test_numbers_and_order_are_drawn_anew() -> None:
    for id in ("bytes-read", "ridge", "tpot", "static", "tau", "size"):
        assert len({ITEMS[id].question(seed).text for seed in range(20)}) > 1
    orders = [[option.is_right for option in ITEMS["cores"].question(seed).options] for seed in range(20)]
    assert any(order != orders[0] for order in orders)


def test_answers_are_those_of_the_calculators() -> None:
    texts = {ITEMS["bytes-read"].question(seed) for seed in range(40)}
    asked = next(one for one in texts if "70B" in one.text and "200 tokens" in one.text)
    assert [option.text for option in asked.options if option.is_right] == ["28.0 TB"]


def test_all_areas_are_plain_data() -> None:
    assert len(AREAS) == 13
    for area in AREAS:
        assert json.loads(json.dumps([asdict(one) for one in questions(area, 3)]))
    with pytest.raises(ConfigError, match="choose one of"):
        questions("poetry")
