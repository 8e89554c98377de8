"""Sequences laid out in memory: in reservations one after the other, first fit, by a real `BlockPool`, and as a rectangle."""

from typing import Any

from penstock.errors import ConfigError
from penstock.runtime.core.batch import Batch
from penstock.runtime.core.blocks import BlockPool
from penstock.runtime.core.inspection import pool_state
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.core.sequence import Sequence
from penstock.tools.cost.cost import plain_chunk
from penstock.tools.sim.padding import padded

NUM_TOKENS = 32_768
"""Blocks that the memory holds."""
SHARED = 256
"""Tokens that sequences begin with, if they share."""


def lay_out(sequences: int, reserve: int, block: int, share: bool, finish: int) -> dict[str, Any]:
    """`finish` of them, every second one first, have ended."""
    if not (1 <= sequences <= 64 and 16 <= reserve <= NUM_TOKENS and 1 <= block <= 1024 and 0 <= finish <= sequences):
        raise ConfigError("choose 1 to 64 sequences, 16 to 32768 reserved tokens and blocks of 1 to 1024")
    lengths = [max(min(SHARED + 64 + 97 * number % 700, reserve), 1) for number in range(sequences)]
    ended = [*range(1, sequences, 2), *range(0, sequences, 2)][:finish]
    strips = _contiguous(lengths, reserve, ended)
    pool, live = _paged(lengths, block, share, ended)
    used = sum(lengths[number] for number in live)
    held = sum(1 for count in pool.books[0] if count) * block
    alone = used - sum(max(count - 1, 0) for count in pool.books[0]) * block
    mean = used / max(len(live), 1)
    computed = _padded([lengths[number] for number in live])
    return {
        "num_blocks": pool.num_blocks,
        "block_size": block,
        "states": list(pool_state(pool).states),
        "sequences": [{"length": lengths[number], "blocks": one.blocks} for number, one in live.items()],
        "contiguous": strips,
        "contiguous_waste": 1.0 - sum(one["used"] for one in strips) / max(sum(one["reserved"] for one in strips), 1),
        "paged_waste": 1.0 - min(alone / held, 1.0) if held else 0.0,
        "padded": computed,
        "padded_waste": 1.0 - used / sum(computed) if computed else 0.0,
        "num_shared_tokens": sum(max(count - 1, 0) for count in pool.books[0]) * block,
        "contiguous_fit": NUM_TOKENS // reserve,
        "paged_fit": int(NUM_TOKENS // (-(-mean // block) * block)) if mean else 0,
    }


def _contiguous(lengths: list[int], reserve: int, ended: list[int]) -> list[dict[str, int]]:
    """One after the other from the start; who does not fit is not there."""
    fitting = range(min(len(lengths), NUM_TOKENS // reserve))
    return [
        {"start": number * reserve, "used": lengths[number], "reserved": reserve}
        for number in fitting
        if number not in ended
    ]


def _padded(lengths: list[int]) -> list[int]:
    """Tokens computed of each prompt in one step of all, by the simulator's own baseline."""
    chunks = tuple(plain_chunk(row, 0, length) for row, length in enumerate(lengths))
    return [chunk.length for chunk in padded(Batch(0, chunks)).chunks]


def _paged(lengths: list[int], block: int, share: bool, ended: list[int]) -> tuple[BlockPool, dict[int, Sequence]]:
    pool = BlockPool(NUM_TOKENS // block, block)
    live: dict[int, Sequence] = {}
    for number, length in enumerate(lengths):
        first = tuple(range(1, SHARED + 1)) if share else tuple(range(1000 * number + 1, 1000 * number + SHARED + 1))
        own = tuple(range(100_000 + 1000 * number, 100_000 + 1000 * number + max(length - SHARED, 0)))
        request = Request(
            request_id=number, prompt=(first + own)[:length], params=SamplingParams(max_tokens=1), arrival_s=0.0
        )
        sequence = Sequence(request, 0, number, length + 1)
        if pool.reserve(sequence.holding, length, pool.match(sequence.holding)):
            pool.publish(sequence.holding, length)
            live[number] = sequence
    for number in ended:
        if number in live:
            pool.release(live.pop(number).holding)
    return pool, live
