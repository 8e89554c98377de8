"""How time grows with a text."""

import math
import time
from collections.abc import Callable

NUM_TURNS = 3


def assert_proportional(read: Callable[[str], None], text: str) -> None:
    """Eight times the text takes eight times as long, and not sixty-four times. Each by turns, and its best counts: a machine
    that is slow for a moment is slow for one of them."""
    parts = (text[: len(text) // 8], text)
    best = [math.inf, math.inf]
    for _ in range(NUM_TURNS):
        for index, part in enumerate(parts):
            began = time.thread_time()
            read(part)
            best[index] = min(best[index], time.thread_time() - began)
    assert best[1] < 24.0 * best[0] + 0.005
