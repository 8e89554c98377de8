"""Sequences made by hand, for tests below the scheduler."""

from collections.abc import Iterable
from itertools import count
from typing import Any

from penstock.runtime.core.blocks import BlockPool
from penstock.runtime.core.sequence import Sequence
from tests.engine.answers import make_request

_numbers = count(1)


def make_sequence(
    prompt: Iterable[int] = (1,), *, choice: int = 0, number: int | None = None, **options: Any
) -> Sequence:
    number = next(_numbers) if number is None else number
    return Sequence(make_request(number, prompt, **options), choice, number, 1000)


def compute(pool: BlockPool, sequence: Sequence) -> Sequence:
    """Reserve and publish all of a sequence's tokens, starting from what is cached of them."""
    assert pool.reserve(sequence.holding, len(sequence.tokens), pool.match(sequence.holding))
    pool.publish(sequence.holding, len(sequence.tokens))
    return sequence
