"""Laws of the roofline: figures anyone can check by hand, brute-force counts, and what more hardware must do."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.runtime.core.batch import Batch, Chunk
from penstock.runtime.models.spec import GQA, GatedMLP, Layer, ModelSpec, MoE, Norm
from penstock.tools.cost.cost import moved
from penstock.tools.cost.hardware import Ceilings, Flops, find
from penstock.tools.cost.precision import Precision
from penstock.tools.cost.roofline import NO_OVERHEAD, Overhead, Roofline, expected_experts


def make_spec(num_layers, hidden, heads, kv_heads, head_dim, mlp, vocab, windows=(None,), causal=True, tied=False):
    def layer(number):
        window = windows[number % len(windows)]
        return Layer(GQA(heads, kv_heads, head_dim, None, head_dim**-0.5, window=window, causal=causal), mlp)

    layers = tuple(layer(number) for number in range(num_layers))
    return ModelSpec("llama", hidden, vocab, layers, Norm(), max_context=131_072, tied_embedding=tied)


LLAMA_8B = make_spec(32, 4096, 32, 8, 128, GatedMLP(14336, "silu"), 128_256)
LLAMA_70B = make_spec(80, 8192, 64, 8, 128, GatedMLP(28672, "silu"), 128_256)
QWEN_06B = make_spec(28, 1024, 16, 8, 128, GatedMLP(3072, "silu"), 151_936, tied=True)
TINY = make_spec(2, 64, 4, 2, 16, GatedMLP(128, "silu"), 256)
H200 = find("h200").achievable


def chunk(start, length, samples=True, num_drafts=0):
    return Chunk(0, start, length, (), (), samples, None, num_drafts)


def decode(num_sequences, context):
    return Batch(0, tuple(chunk(context - 1, 1) for _ in range(num_sequences)))


def test_kv_bytes_per_token_of_llama_70b():
    assert LLAMA_70B.kv_bytes_per_token(2.0) == 327_680


def test_decode_floor_of_llama_70b_in_int8_on_an_h100():
    precision = Precision(weight_bytes=1.0, compute="int8")
    cost = Roofline(LLAMA_70B, find("h100-sxm").peak, precision, NO_OVERHEAD)
    assert cost.step_s(decode(1, 1)) == pytest.approx(0.021, rel=0.02)


def floor_s(cost, num_sequences):
    parts = cost.parts(cost.work(decode(num_sequences, 256)))
    return parts.linears + parts.attention + parts.output


def test_decode_floor_is_bytes_over_bandwidth():
    """Floors that were probed at 4.18 TB/s on the same machine: 3.60, 3.85 and 4.62 ms."""
    cost = Roofline(LLAMA_8B, Ceilings(4.18e12, H200.flops), overhead=NO_OVERHEAD)
    assert floor_s(cost, 1) == pytest.approx(3.60e-3, rel=0.01)
    assert floor_s(cost, 32) == pytest.approx(3.85e-3, rel=0.01)
    assert floor_s(cost, 128) == pytest.approx(4.62e-3, rel=0.01)


@pytest.mark.parametrize(
    ("spec", "batch", "measured_ms"),
    [
        (LLAMA_8B, decode(1, 256), 4.07),
        (LLAMA_8B, decode(8, 192), 4.29),
        (LLAMA_8B, decode(32, 192), 4.50),
        (LLAMA_8B, decode(128, 192), 6.05),
        (QWEN_06B, decode(1, 256), 0.80),
        (QWEN_06B, decode(8, 192), 1.07),
        (QWEN_06B, decode(32, 192), 1.25),
        (QWEN_06B, decode(128, 192), 2.05),
    ],
)
def test_steps_measured_on_an_h200_are_met_within_a_fifth(spec, batch, measured_ms):
    """Steps of the whole engine, host work overlapped: benchmarks/results/gpu-8b.json and gpu-0.6b.json."""
    cost = Roofline(spec, H200)
    assert cost.step_s(batch) * 1e3 == pytest.approx(measured_ms, rel=0.2)


def test_a_long_prompt_is_bound_by_compute():
    """4,000 tokens of an 8B model were measured at 94 ms end to end on the same machine."""
    batch = Batch(0, (chunk(0, 4000),))
    cost = Roofline(LLAMA_8B, H200)
    assert cost.step_s(batch) == pytest.approx(94.2e-3, rel=0.1)
    faster = Roofline(LLAMA_8B, Ceilings(2 * H200.bandwidth_bytes_per_s, H200.flops))
    assert cost.parts(cost.work(batch)).linears == faster.parts(faster.work(batch)).linears


chunk_shapes = st.tuples(st.integers(0, 70), st.integers(1, 70), st.booleans(), st.integers(0, 3))


@given(shapes=st.lists(chunk_shapes, min_size=1, max_size=6), window=st.integers(1, 80))
def test_work_equals_counting_every_pair(shapes, window):
    spec = make_spec(3, 64, 4, 2, 16, GatedMLP(128, "silu"), 256, windows=(None, window))
    batch = Batch(0, tuple(chunk(*shape) for shape in shapes))
    pairs, reach = [0, 0], [0, 0]
    for start, length, _, _ in shapes:
        for kind, width in enumerate((10**9, window)):
            keys = [set(range(max(0, p - width + 1), p + 1)) for p in range(start, start + length)]
            pairs[kind] += sum(map(len, keys))
            reach[kind] += len(set().union(*keys))
    work = Roofline(spec, H200).work(batch)
    assert work.pairs == tuple(pairs)
    assert work.reach == tuple(reach)
    assert work.num_tokens == batch.num_tokens
    assert work.num_drawn == sum(1 + drafts for _, _, samples, drafts in shapes if samples)


def test_an_encoder_scores_all_pairs():
    spec = make_spec(2, 64, 4, 2, 16, GatedMLP(128, "silu"), 256, causal=False)
    assert Roofline(spec, H200).work(Batch(0, (chunk(0, 10),))).pairs == (100,)


@given(
    shapes=st.lists(chunk_shapes, min_size=1, max_size=6),
    bandwidth=st.floats(1.0, 100.0),
    compute=st.floats(1.0, 100.0),
)
def test_better_hardware_is_never_slower(shapes, bandwidth, compute):
    batch = Batch(0, tuple(chunk(*shape) for shape in shapes))
    slow = Ceilings(1e9, Flops(bf16=1e11))
    fast = slow.scaled(compute, bandwidth)
    assert Roofline(TINY, fast).step_s(batch) <= Roofline(TINY, slow).step_s(batch)


@given(
    starts=st.lists(st.integers(0, 70), min_size=1, max_size=6), num_steps=st.integers(1, 20), overlaps=st.booleans()
)
@pytest.mark.parametrize("windows", [(None,), (None, 40)])
def test_a_run_costs_what_its_steps_cost_one_by_one(windows, starts, num_steps, overlaps):
    spec = make_spec(3, 64, 4, 2, 16, GatedMLP(128, "silu"), 256, windows=windows)
    cost = Roofline(spec, Ceilings(1e9, Flops(bf16=1e11)), overhead=Overhead(overlaps=overlaps))
    batch = Batch(0, tuple(chunk(start, 1) for start in starts))
    assert cost.run_s(batch, num_steps) == [cost.step_s(moved(batch, number)) for number in range(num_steps)]


@given(shapes=st.lists(chunk_shapes, min_size=1, max_size=6), overlaps=st.booleans())
def test_parts_add_up_to_the_step(shapes, overlaps):
    batch = Batch(0, tuple(chunk(*shape) for shape in shapes))
    cost = Roofline(TINY, Ceilings(1e9, Flops(bf16=1e11)), overhead=Overhead(overlaps=overlaps))
    assert sum(cost.parts(cost.work(batch))) == pytest.approx(cost.step_s(batch))


@given(shapes=st.lists(chunk_shapes, min_size=1, max_size=6), extra=chunk_shapes)
def test_more_work_is_never_faster(shapes, extra):
    cost = Roofline(TINY, Ceilings(1e9, Flops(bf16=1e11)))
    batch = Batch(0, tuple(chunk(*shape) for shape in shapes))
    larger = Batch(0, (*batch.chunks, chunk(*extra)))
    assert cost.step_s(batch) <= cost.step_s(larger) <= cost.step_s(batch) + cost.step_s(Batch(0, (chunk(*extra),)))


def test_the_output_matrix_is_read_only_when_something_is_drawn():
    cost = Roofline(LLAMA_8B, H200)
    assert cost.parts(cost.work(Batch(0, (chunk(0, 64, samples=False),)))).output == 0.0
    drawn = cost.parts(cost.work(Batch(0, (chunk(0, 64),)))).output
    assert drawn == pytest.approx(128_256 * 4096 * 2 / H200.bandwidth_bytes_per_s)


def test_a_window_caps_what_decode_reads():
    windowed = make_spec(32, 4096, 32, 8, 128, GatedMLP(14336, "silu"), 128_256, windows=(512,))
    cost = Roofline(windowed, H200)
    assert cost.step_s(decode(8, 600)) == cost.step_s(decode(8, 60_000))


def test_experts_touched_grow_from_the_active_to_all():
    assert expected_experts(128, 8, 1) == pytest.approx(8)
    counts = [expected_experts(128, 8, num_tokens) for num_tokens in range(1, 200)]
    assert counts == sorted(counts)
    assert counts[-1] == pytest.approx(128, rel=0.001)


def test_one_token_reads_the_active_experts_and_many_read_all():
    moe = MoE(128, 8, GatedMLP(768, "silu"), normalize=True)
    spec = make_spec(48, 2048, 32, 4, 128, moe, 151_936)
    cost = Roofline(spec, H200, overhead=NO_OVERHEAD)
    one = cost.parts(cost.work(decode(1, 256)))
    expert_bytes = 3 * 768 * 2048 * 2.0 * 48
    assert one.experts == pytest.approx(8 * expert_bytes / H200.bandwidth_bytes_per_s)
    many = cost.parts(cost.work(decode(256, 256)))
    assert many.experts == pytest.approx(128 * expert_bytes / H200.bandwidth_bytes_per_s, rel=0.001)
    read = (one.linears + one.experts + one.output) * H200.bandwidth_bytes_per_s
    assert read == pytest.approx(spec.num_active_parameters * 2.0)


def test_a_dense_decode_step_reads_every_active_parameter_once():
    cost = Roofline(LLAMA_8B, H200, overhead=NO_OVERHEAD)
    parts = cost.parts(cost.work(decode(1, 1)))
    read = (parts.linears + parts.output) * H200.bandwidth_bytes_per_s
    assert read == pytest.approx(LLAMA_8B.num_active_parameters * 2.0)


def test_the_host_is_hidden_only_when_it_overlaps():
    alone = Overhead(layer_s=0.0, sequence_s=0.0, host_s=1e-3, overlaps=False)
    batch = decode(1, 1)
    bare = Roofline(LLAMA_8B, H200, overhead=NO_OVERHEAD).step_s(batch)
    assert Roofline(LLAMA_8B, H200, overhead=alone).step_s(batch) == pytest.approx(bare + 1e-3)
    assert Roofline(LLAMA_8B, H200, overhead=replace(alone, overlaps=True)).step_s(batch) == pytest.approx(bare)
    slow_host = Overhead(layer_s=0.0, host_s=1.0)
    assert Roofline(LLAMA_8B, H200, overhead=slow_host).step_s(batch) == pytest.approx(1.0)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_impossible_settings_are_refused(value):
    with pytest.raises(ConfigError):
        Overhead(host_s=value)
    with pytest.raises(ConfigError):
        Overhead(layer_s=value)
