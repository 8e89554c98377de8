"""Laws of layouts: one device is as before, shares add up, links cost, and what cannot be cut is refused with a way out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.runtime.core.batch import Batch, Chunk
from penstock.runtime.models import catalog
from penstock.tools.cost.cost import moved
from penstock.tools.cost.hardware import HARDWARE, Link, find
from penstock.tools.cost.layout import Layout, all_reduce_s, spanning_all_reduce_s
from penstock.tools.cost.memory import kv_fraction, weight_bytes, workspace_bytes
from penstock.tools.cost.precision import Precision
from penstock.tools.cost.roofline import NO_OVERHEAD, Roofline, roofline

H100 = find("h100-sxm")
LLAMA_8B, LLAMA_70B = catalog.find("llama-3.1-8b"), catalog.find("llama-3.1-70b")
QWEN_MOE = catalog.find("qwen3-30b-a3b")


def decode(num_sequences, context=256):
    return Batch(0, tuple(Chunk(0, context - 1, 1, (), (), True, None) for _ in range(num_sequences)))


def prompt(length):
    return Batch(0, (Chunk(0, 0, length, (), (), True, None),))


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b", "gemma-3-4b", "gpt2"])
def test_one_device_costs_exactly_what_it_did_without_a_layout(name):
    spec = catalog.find(name)
    plain, laid = Roofline(spec, H100.achievable), roofline(spec, H100, layout=Layout())
    for batch in (decode(1), decode(64), prompt(1000)):
        assert laid.step_s(batch) == plain.step_s(batch)
        assert laid.run_s(batch, 5) == plain.run_s(batch, 5)
    assert laid.parts(laid.work(decode(3))).traffic == 0.0
    assert weight_bytes(spec, Precision()) == spec.num_parameters * 2
    assert kv_fraction(spec) == 1.0


def test_decode_floor_of_llama_70b_falls_with_the_devices():
    """70.6e9 bytes over 3.35e12 a second are 21 ms on one device, and an eighth of it on eight, but for the sums."""
    precision = Precision(weight_bytes=1.0, compute="int8")

    def floor_s(tensor):
        cost = roofline(LLAMA_70B, H100, precision, NO_OVERHEAD, Layout(tensor))
        parts = cost.parts(cost.work(decode(1, 1)))
        return (parts.linears + parts.output) * H100.achievable.bandwidth_bytes_per_s / 3.35e12

    assert floor_s(1) == pytest.approx(0.021, rel=0.02)
    assert floor_s(8) == pytest.approx(floor_s(1) / 8, rel=0.01)


def test_a_small_sum_waits_once_and_a_large_one_goes_round():
    link = Link("nvlink", 100e9, 5e-6)
    assert all_reduce_s(1e6, 1, link) == 0.0
    assert all_reduce_s(1000, 8, link) == pytest.approx(7 * 1000 / 100e9 + 2 * 5e-6)
    assert all_reduce_s(1e9, 8, link) == pytest.approx(14 * 1e9 / 8 / 100e9 + 4 * 5e-6)


def test_sums_over_two_machines_take_what_is_published() -> None:
    """16 kB in tens of microseconds, bandwidth of large arrays near that of the links inside."""

    def taken_s(size: float) -> float:
        return spanning_all_reduce_s(size, 16, H100.link(8), 8, H100.network)

    assert 25e-6 < taken_s(16e3) < 75e-6
    assert 300e9 < 2 * 15 / 16 * 1e9 / taken_s(1e9) < 480e9
    assert spanning_all_reduce_s(1e6, 8, H100.link(8), 8, H100.network) == all_reduce_s(1e6, 8, H100.link(8))


def test_tensor_parallel_across_machines_loses_where_much_is_summed() -> None:
    """Prompts and full batches: TP8 x PP2 before TP16; a few sequences alone may be quicker over sixteen."""
    spec = catalog.find("llama-3.1-405b")
    spanning, staged = roofline(spec, H100, layout=Layout(16)), roofline(spec, H100, layout=Layout(8, 2))
    prompts = Batch(0, tuple(Chunk(row, 0, 1024, (), (), True, None) for row in range(8)))
    many = Batch(0, tuple(Chunk(row, 600, 1, (), (), True, None) for row in range(256)))
    assert staged.step_s(prompts) < spanning.step_s(prompts)
    assert staged.step_s(many) < spanning.step_s(many)


def test_two_sums_a_layer_of_a_step():
    cost = roofline(LLAMA_70B, H100, layout=Layout(8))
    expected = 160 * all_reduce_s(32 * 8192 * 2, 8, H100.link(8))
    assert cost.parts(cost.work(decode(32))).traffic == pytest.approx(expected)


@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
@pytest.mark.parametrize("pipeline", [1, 2, 3, 4])
def test_devices_hold_their_shares(tensor, pipeline):
    layout = Layout(tensor, pipeline)
    count = layout.devices_per_copy
    whole = weight_bytes(LLAMA_70B, Precision())
    assert whole / count <= weight_bytes(LLAMA_70B, Precision(), layout) <= 1.06 * whole / count
    fraction = 1 / tensor * -(-80 // layout.pipeline) / 80
    assert kv_fraction(LLAMA_70B, layout) == pytest.approx(fraction)
    assert workspace_bytes(LLAMA_70B, 2048, 256, layout) <= workspace_bytes(LLAMA_70B, 2048, 256)


def test_fewer_kv_heads_than_devices_are_copied():
    assert kv_fraction(QWEN_MOE, Layout(8)) == kv_fraction(QWEN_MOE, Layout(4)) == 0.25
    assert weight_bytes(QWEN_MOE, Precision(), Layout(8)) > weight_bytes(QWEN_MOE, Precision()) / 8


def test_experts_are_dealt_out_over_copies():
    alone, dealt = Layout(1, 1, 8), Layout(1, 1, 8, expert=8)
    assert dealt.num_devices == 8
    assert dealt.num_sharing == 8
    assert weight_bytes(QWEN_MOE, Precision(), dealt) < weight_bytes(QWEN_MOE, Precision(), alone) / 4
    few, many = (roofline(QWEN_MOE, H100, layout=layout) for layout in (dealt, alone))
    work = few.work(decode(64))
    assert few.parts(work).traffic > 0.0 == many.parts(work).traffic
    assert few.parts(work).experts < many.parts(work).experts


def test_experts_inside_a_tensor_group_travel_nowhere():
    dealt, cut = (roofline(QWEN_MOE, H100, layout=Layout(4, expert=expert)) for expert in (4, 1))
    work = dealt.work(decode(64))
    assert dealt.parts(work) == cut.parts(work)


def test_stages_overlap_when_there_are_groups_enough():
    """One sequence passes the stages one by one; many keep them all busy, and the KV of each is read beside the others'."""
    one, four = roofline(LLAMA_70B, H100), roofline(LLAMA_70B, H100, layout=Layout(pipeline=4))
    hops_s = four.parts(four.work(decode(1))).traffic
    assert 0.0 < hops_s < 1e-3
    assert four.step_s(decode(1)) == pytest.approx(one.step_s(decode(1)) + hops_s)
    assert four.step_s(decode(256, 4000)) < 0.75 * one.step_s(decode(256, 4000))
    uneven = roofline(LLAMA_70B, H100, layout=Layout(pipeline=3))
    even = roofline(LLAMA_70B, H100, layout=Layout(pipeline=2))
    assert uneven.step_s(decode(256, 4000)) > 0.6 * even.step_s(decode(256, 4000))


layouts = st.builds(Layout, st.sampled_from([1, 2, 4, 8]), st.integers(1, 4))


@given(layout=layouts, count=st.integers(1, 40), num_steps=st.integers(1, 6))
def test_a_run_costs_what_its_steps_cost_in_every_layout(layout, count, num_steps):
    cost = roofline(LLAMA_8B, H100, layout=layout)
    batch = decode(count)
    assert cost.run_s(batch, num_steps) == [cost.step_s(moved(batch, number)) for number in range(num_steps)]


def test_a_slow_link_costs_and_a_network_costs_more():
    steps = [
        roofline(LLAMA_70B, find(name), Precision(1.0), layout=Layout(8)).parts for name in ("h100-sxm", "h100-pcie")
    ]
    work = Roofline(LLAMA_70B, H100.achievable).work(decode(64))
    assert steps[0](work).traffic < steps[1](work).traffic
    assert H100.link(16).kind == "network"
    assert H100.link(16).latency_s > H100.link(8).latency_s


@pytest.mark.parametrize("hardware", HARDWARE.values(), ids=HARDWARE)
def test_every_device_has_links_slower_than_its_memory(hardware):
    for link in (hardware.link(hardware.devices_per_machine), hardware.network):
        assert 0.0 < link.bandwidth_bytes_per_s < hardware.peak.bandwidth_bytes_per_s
        assert 0.0 < link.latency_s < 1e-3
    assert hardware.price_per_hour is None or 0.0 < hardware.price_per_hour < 100.0


@pytest.mark.parametrize(
    ("layout", "hint"),
    [
        (Layout(3), "32 attention heads; choose 2 or 4"),
        (Layout(pipeline=33), "choose at most 32"),
        (Layout(2, expert=2), "has no experts"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_a_way_out(layout, hint):
    with pytest.raises(ConfigError, match=hint):
        layout.check(LLAMA_8B)


def test_experts_that_do_not_divide_are_refused():
    with pytest.raises(ConfigError, match="128 experts; choose 2 or 4"):
        Layout(data=3, expert=3).check(QWEN_MOE)


@pytest.mark.parametrize(
    "sizes", [(0,), (-1,), (1.5,), (True,), (1, float("nan")), (1, 1, 0), (2, 1, 1, 3), (1, 1, 4, 8), (10**9,)]
)
def test_impossible_layouts_are_refused(sizes):
    with pytest.raises(ConfigError, match=r"choose|equal"):
        Layout(*sizes)


def test_layouts_read_as_people_write_them():
    assert str(Layout()) == "one device"
    assert str(Layout(8, 2, 4)) == "TP8 x PP2 x DP4"
