"""Seeded random requests that meet every path: shared beginnings, choices, stops, namespaces, tenants."""

from random import Random
from typing import Any

from penstock.runtime.core.request import Request
from tests.engine.answers import VOCAB_SIZE, make_request


def make_prompt(choose: Random, num_tokens: int) -> tuple[int, ...]:
    return tuple(choose.randrange(VOCAB_SIZE) for _ in range(num_tokens))


def make_workload(seed: int, num_requests: int = 8, *, max_prompt: int = 20, max_answer: int = 12) -> list[Request]:
    """Requests that all fit 8 blocks of 4."""
    choose = Random(seed)
    stems = [make_prompt(choose, max_prompt - 1) for _ in range(2)]
    return [_make_one(choose, number, choose.choice(stems), max_answer) for number in range(num_requests)]


def _make_one(choose: Random, number: int, stem: tuple[int, ...], max_answer: int) -> Request:
    own = make_prompt(choose, choose.randrange(1, 6))
    num_shared = choose.randrange(len(stem) - len(own) + 2)
    max_tokens = choose.randrange(1, max_answer + 1)
    options: dict[str, Any] = {}
    if choose.random() < 0.3:
        options["stop_token_ids"] = tuple(range(0, VOCAB_SIZE, 5))
        options["min_tokens"] = choose.randrange(max_tokens + 1)
        options["ignore_eos"] = choose.random() < 0.2
    return make_request(
        number,
        stem[:num_shared] + own,
        max_tokens=max_tokens,
        n=choose.choice((1, 1, 1, 2, 3)),
        seed=choose.randrange(3),
        temperature=choose.choice((0.0, 1.0)),
        priority=choose.randrange(3),
        deadline_s=choose.choice((None, 1e6, 2e6)),
        tenant=choose.choice("ab"),
        salt=choose.choice(("", "", "a")),
        adapter=choose.choice(("", "", "b")),
        **options,
    )
