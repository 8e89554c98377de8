"""What fits: the cache gets what weights and workspace leave, and what does not fit says what would."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config import configure
from penstock.errors import ConfigError
from penstock.runtime.core.queue.batching import CONTINUOUS, STATIC, dynamic
from penstock.runtime.models.spec import GQA, GatedMLP, Layer, ModelSpec, Norm
from penstock.runtime.sizing import (
    MAX_BATCH_TOKENS,
    MIN_BATCH_TOKENS,
    Memory,
    Pace,
    Sizing,
    make_scheduler,
    pace_of,
    paced_tokens,
    size_engine,
)

LAYER = Layer(GQA(4, 2, 8, None, 0.35), GatedMLP(64, "silu"))
SPEC = ModelSpec("tiny", 32, 100, (LAYER,) * 3, Norm(), max_context=2048)
TOKEN_BYTES = 3 * 2 * 2 * 8 * 2  # layers, keys and values, heads, head size, bytes a value


def size(memory=None, **settings) -> Sizing:
    memory = memory or Memory(free_bytes=2**24, weight_bytes=2**20)
    return size_engine(configure(**settings), SPEC, memory)


@given(
    free=st.integers(0, 2**24),
    weights=st.integers(0, 2**22),
    workspace=st.integers(0, 2**20),
    fraction=st.floats(0.01, 1.0),
    block_size=st.sampled_from([8, 16, 32, 64, 128]),
)
def test_the_cache_takes_what_is_left_and_no_more(free, weights, workspace, fraction, block_size):
    memory = Memory(free_bytes=free, weight_bytes=weights, workspace_bytes=workspace)
    settings = {"memory_fraction": fraction, "block_size": block_size}
    left = int(free * fraction) - weights - workspace
    if left < TOKEN_BYTES * block_size:
        with pytest.raises(ConfigError, match="no memory is left for the KV cache"):
            size(memory, **settings)
        return
    sizing = size(memory, **settings)
    assert sizing.block_bytes == TOKEN_BYTES * block_size
    assert (
        sizing.kv_bytes <= left < sizing.kv_bytes + sizing.block_bytes or sizing.num_blocks == 256 * 2048 // block_size
    )
    assert sizing.num_cached_tokens == sizing.num_blocks * block_size
    assert (sizing.free_bytes, sizing.weight_bytes, sizing.workspace_bytes) == (free, weights, workspace)


def test_asked_blocks_are_given_if_they_fit():
    assert size(num_blocks=100).num_blocks == 100
    num_fitting = size().num_blocks
    assert size(num_blocks=num_fitting).num_blocks == num_fitting
    with pytest.raises(
        ConfigError, match=rf"--num-blocks {num_fitting + 1:,} needs .* only {num_fitting:,} blocks fit"
    ):
        size(num_blocks=num_fitting + 1)


def test_what_does_not_fit_names_the_way_out():
    memory = Memory(free_bytes=3 * 2**30, weight_bytes=4 * 2**30, workspace_bytes=2**29)
    with pytest.raises(ConfigError) as caught:
        size(memory)
    assert "free 3.00 GiB x --memory-fraction 0.9 - weights 4.00 GiB - workspace 512.00 MiB" in str(caught.value)
    assert "use a smaller model, a smaller dtype or more memory" in str(caught.value)


def test_more_blocks_than_could_ever_be_used_are_not_taken():
    sizing = size(Memory(free_bytes=2**40, weight_bytes=0), max_sequences=4, max_context=100, block_size=16)
    assert sizing.num_blocks == 4 * 7


def test_enough_is_enough_unless_more_is_asked():
    memory = Memory(free_bytes=2**24, weight_bytes=0, enough_kv_bytes=10 * TOKEN_BYTES * 16 - 1)
    assert size(memory).num_blocks == 10
    assert size(memory, num_blocks=50).num_blocks == 50
    scarce = Memory(free_bytes=5 * TOKEN_BYTES * 16, weight_bytes=0, enough_kv_bytes=2**30)
    assert size(scarce, memory_fraction=1.0).num_blocks == 5


def test_prefixes_are_kept_up_to_a_bound_unless_blocks_are_asked_for():
    memory = Memory(free_bytes=2**24, weight_bytes=0, kept_kv_bytes=3 * TOKEN_BYTES * 16)
    assert size(memory).num_kept_blocks == 3
    assert size(memory, num_blocks=50).num_kept_blocks is None
    assert size(Memory(free_bytes=2**24, weight_bytes=0)).num_kept_blocks is None


def test_a_context_is_at_most_the_models():
    assert size().max_context == 2048
    assert size(max_context=100).max_context == 100
    with pytest.raises(
        ConfigError, match="--max-context is 2,049 but the model was made for 2,048 tokens; choose at most that"
    ):
        size(max_context=2049)


def test_smaller_values_make_more_blocks():
    whole = Memory(free_bytes=2**22, weight_bytes=0)
    half = Memory(free_bytes=2**22, weight_bytes=0, bytes_per_kv_value=1.0)
    assert size(half).num_blocks == pytest.approx(2 * size(whole).num_blocks, abs=1)


def test_a_scheduler_is_made_as_asked():
    config = configure(
        order="fair", batching="dynamic", gather_s=0.5, max_batch_tokens=9, max_sequences=3, max_waiting=4,
        max_waiting_tokens=5, prefix_caching=False, num_blocks=7, block_size=8, max_context=50,
    )  # fmt: skip
    sizing = size_engine(config, SPEC, Memory(free_bytes=2**24, weight_bytes=0))
    scheduler = make_scheduler(config, sizing)
    assert scheduler.limits[:10] == (7, 8, 50, 9, 3, 4, 5, False, None, 128)
    assert scheduler.roster.order.counts_service, "as the fair order alone does"
    assert scheduler.roster.batching == dynamic(0.5)
    for name, batching in (("continuous", CONTINUOUS), ("static", STATIC)):
        assert make_scheduler(configure(config, batching=name), sizing).roster.batching == batching


@given(st.floats(0.0, 1e18), st.floats(1.0, 1e6), st.floats(1e-3, 1.0), st.sampled_from((2048, 8192)))
def test_a_faster_device_and_a_longer_time_take_no_shorter_steps(flops, factor, step_s, most):
    pace = Pace(flops, step_s, most)
    counts = [paced_tokens(SPEC, pace) for pace in (pace, pace._replace(flops=flops * factor))]
    counts.append(paced_tokens(SPEC, pace._replace(flops=flops * factor, step_s=2 * step_s)))
    assert MIN_BATCH_TOKENS <= counts[0] <= counts[1] <= counts[2] <= most
    assert all(count.bit_count() == 1 for count in counts)


def test_steps_are_as_long_as_asked_else_as_found_else_as_usual():
    memory = Memory(free_bytes=2**24, weight_bytes=2**20)
    per_token = 2 * sum(SPEC.parameters_by_part[part] for part in ("attention", "mlp", "norms"))
    for pace, settings, expected in (
        (None, {}, MAX_BATCH_TOKENS),
        (None, {"max_sequences": 3000}, 3000),
        (pace_of("cpu", 1e18), {}, 1024),
        (pace_of("gpu", 1e18), {}, 8192),
        (pace_of("cpu", 600.0 * per_token), {}, 512),
        (pace_of("gpu", 10_000.0 * per_token), {}, 1024),
        (pace_of("gpu", 10_000.0 * per_token, 0.25), {}, 2048),
        (pace_of("cpu", 600.0 * per_token), {"max_batch_tokens": 300}, 300),
        (pace_of("cpu", 600.0 * per_token), {"max_sequences": 600}, 600),
    ):
        config = configure(**{"max_sequences": 8} | settings)
        scheduler = make_scheduler(config, size_engine(config, SPEC, memory, pace))
        assert scheduler.limits.max_batch_tokens == expected
