"""Windows that free: as many users fit as the plan says, and each holds the bytes that the formula says."""

import pytest

from penstock.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from penstock.runtime.core.blocks import BlockPool
from penstock.runtime.core.kinds.groups import MARGIN_BLOCKS
from penstock.runtime.core.prefix import Holding, Namespace
from penstock.runtime.models.catalog import find
from penstock.runtime.sizing import Memory, Sizing, make_scheduler, size_engine

CONTEXT, CHUNK, USERS = 32_768, 2048, 300
GIB = 2**30


def sized(model: str, *, frees: bool = True) -> tuple[BlockPool, Sizing]:
    """The pool of an engine with memory for about so many users of the whole context."""
    spec = find(model)
    config = EngineConfig(
        ModelConfig(max_context=CONTEXT), CacheConfig(), SchedulerConfig(max_sequences=512, max_batch_tokens=CHUNK)
    )
    kv_bytes = USERS * spec.kv_bytes_in_sight(CONTEXT, 2.0)
    memory = Memory(free_bytes=round((GIB + kv_bytes) / config.cache.memory_fraction), weight_bytes=GIB)
    sizing = size_engine(config, spec, memory, frees=frees)
    return make_scheduler(config, sizing).pool, sizing


def grown(pool: BlockPool) -> Holding | None:
    """A user whose prompt came chunk by chunk and who has generated up to the whole context; None if there is no room."""
    holding = Holding([0] * CONTEXT, Namespace("", ""))
    for end in (*range(CHUNK, CONTEXT, CHUNK), CONTEXT - 1, CONTEXT):
        if not pool.reserve(holding, end, computed=max(end - CHUNK, 0)):
            pool.release(holding)
            return None
    pool.reserve(holding, CONTEXT, computed=CONTEXT - 1)
    return holding


@pytest.mark.parametrize("model", ["gemma-3-270m", "gemma-3-1b", "gemma-3-4b"])
def test_the_users_that_were_planned_fit(model: str) -> None:
    pool, sizing = sized(model)
    users = []
    while (user := grown(pool)) is not None:
        users.append(user)
    pool.check(users)
    assert len(users) == pytest.approx(sizing.num_sequences(CONTEXT), rel=0.01)
    whole = sized(model, frees=False)[1].num_sequences(CONTEXT)
    assert len(users) > 3.5 * whole


def test_a_user_holds_what_the_formula_says() -> None:
    """Bytes of all that a position at the end still reads, and no more than a margin of blocks of every window."""
    spec = find("gemma-3-270m")
    pool, sizing = sized("gemma-3-270m")
    assert grown(pool) is not None
    held = pool.num_held * sizing.block_bytes
    formula = spec.kv_bytes_in_sight(CONTEXT, 2.0)
    per_block = 16 * 15 * 1024  # fifteen layers with a window, 1 KiB a token each
    assert formula == 1024 * (3 * CONTEXT + 15 * 512)
    assert formula <= held <= formula + MARGIN_BLOCKS * per_block
