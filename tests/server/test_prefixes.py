"""Laws of the prefix doctor: each planted cause is named, with the place and the tokens it cost, and no word is kept."""

import json
from random import Random

import pytest

from penstock.service.server.telemetry.prefixes import REMEDIES, PrefixWatch

BLOCK = 16
RULES = "You are a careful assistant of a hardware shop. Answer briefly and never promise a delivery date. " * 6
TOOLS = [f'{{"type": "function", "function": {{"name": "{name}", "description": "Looks up {name} for a customer"}}}}\n'
         for name in ("orders", "prices", "stock", "returns", "invoices")]  # fmt: skip
WORDS = [
    "bolt",
    "nut",
    "thread",
    "pitch",
    "washer",
    "steel",
    "brass",
    "norm",
    "price",
    "order",
    "stock",
    "metre",
    "inch",
    "torque",
    "wrench",
    "rust",
]
TURNS = [f"user: {' '.join(Random(number).choices(WORDS, k=14))}\nassistant: an answer to it\n" for number in range(30)]
DOCUMENTS = "".join(
    f"Document {number}: threads of bolts are cut to a norm that nobody remembers. " for number in range(9)
)


def tokens(text: str) -> list[int]:
    return list(text.encode())


PLANTED = {
    "a day": (f"Today is 2026-11-16. {RULES}", f"Today is 2026-11-17. {RULES}", "date or time"),
    "a clock": (f"Current time: 14:05:11. {RULES}", f"Current time: 14:09:42. {RULES}", "date or time"),
    "a request id": (f"Request id: 7f3a9c21. {RULES}", f"Request id: 01be44d0. {RULES}", "id"),
    "a counter": (f"Customers in the shop: 17. {RULES}", f"Customers in the shop: 93. {RULES}", "number"),
    "order of tools": ("".join(TOOLS) + RULES, "".join(reversed(TOOLS)) + RULES, "order"),
    "spacing": (f"Instructions:\n{RULES}", f"Instructions: \n{RULES}", "spacing or case"),
    "a name": (
        f"You are talking to the customer Ada. {RULES}",
        f"You are talking to the customer Grace. {RULES}",
        "name",
    ),
    "another system prompt": (f"Be kind and thorough. {RULES}", f"Be terse and exact. {RULES}", "system prompt"),
    "a cut history": (RULES + "".join(TURNS[:9]), RULES + "".join(TURNS[2:10]), "history cut"),
    "documents before the history": (RULES + "".join(TURNS[:6]), RULES + DOCUMENTS + "".join(TURNS[:6]), "inserted"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_cause_is_named_with_its_place_and_price(name: str) -> None:
    before, after, cause = PLANTED[name]
    watch = PrefixWatch(BLOCK, lambda ids: bytes(ids).decode("utf-8", "replace"))
    question = " What does a bolt cost?"
    assert watch.note(tokens(before + " How are you?"), "", 0) is None
    for number in range(3):  # other prompts of other kinds come between
        noise = Random(number).choices(range(97, 122), k=400)
        assert watch.note(noise, "", 0) is None
    place = next(number for number, (a, b) in enumerate(zip(before, after)) if a != b)
    found = watch.note(tokens(after + question), "", place // BLOCK * BLOCK)
    assert found is not None
    assert found.cause == cause
    assert found.cause in REMEDIES
    if cause in ("evicted", "history cut", "inserted"):
        assert found.num_lost > 100
    else:
        assert abs(found.position - place) <= 1
        assert found.num_lost > 0.5 * len(RULES)


def test_no_word_is_kept_unless_asked_for() -> None:
    before, after, _ = PLANTED["a name"]
    for keeps in (False, True):
        watch = PrefixWatch(BLOCK, lambda ids: bytes(ids).decode(), keeps_words=keeps)
        watch.note(tokens(before), "", 0)
        watch.note(tokens(after), "", 32)
        assert ("Grace" in json.dumps(watch.as_data())) is keeps


def test_what_was_computed_before_and_is_gone_was_evicted_and_other_namespaces_share_nothing() -> None:
    watch = PrefixWatch(BLOCK, lambda ids: bytes(ids).decode())
    watch.note(tokens(RULES + "one"), "", 0)
    hit = len(RULES) // BLOCK * BLOCK
    assert watch.note(tokens(RULES + "two"), "", hit) is None, "a hit is no miss"
    evicted, foreign = watch.note(tokens(RULES + "two"), "", 0), watch.note(tokens(RULES + "six"), "tenant b", 0)
    assert evicted is not None
    assert evicted.cause == "evicted"
    assert foreign is not None
    assert foreign.cause == "namespace"
    assert watch.as_data()["causes"][0]["num_lost"] > 0
