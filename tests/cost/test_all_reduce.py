"""What was timed between ranks is what layouts of several are charged."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.runtime.core.batch import Batch, Chunk
from penstock.runtime.models.catalog import find as find_model
from penstock.tools.cost.hardware import find
from penstock.tools.cost.layout import Layout, all_reduce_s, measured_traffic
from penstock.tools.cost.measured.all_reduce import AllReduce, TimedSum, fitted_line, read_all_reduce
from penstock.tools.cost.measured.profile import read_profile
from penstock.tools.cost.measured.ramps import MeasuredCost, RankedCost
from penstock.tools.cost.roofline import roofline
from penstock.tools.measure.profiles import cost_of
from tests.cost.test_measured import BATCHES, FITTED
from tests.cost.test_profile import PROFILE

SIZES = (2048, 16384, 131072, 1 << 20, 8 << 20)
SHAPE = {"num_layers": 30, "hidden_size": 576}
BATCH = Batch(1, tuple(Chunk(0, start, length, (), (), True, None) for start, length in ((100, 1), (0, 40))))


def timed(latency_s: float, rate: float) -> AllReduce:
    return AllReduce("shared memory", tuple(TimedSum(size, 2 * latency_s + size / rate) for size in SIZES))


MEASURED = replace(
    PROFILE, shape=SHAPE, all_reduce=(timed(10e-6, 5e9),), machine={"processor": "one", "num_processors": 4}
)


@given(st.floats(1e-7, 1e-3), st.floats(1e8, 1e12))
def test_the_fit_finds_the_wait_and_the_rate(latency_s: float, rate: float) -> None:
    found = timed(latency_s, rate)
    link = found.link("socket")
    assert found.error < 1e-6
    for each in found.timed:
        assert all_reduce_s(each.size_bytes, 2, link) == pytest.approx(each.seconds)


@given(
    st.lists(st.tuples(st.integers(1, 1 << 24), st.floats(1e-7, 1.0)), min_size=2, max_size=6, unique_by=lambda x: x[0])
)
def test_no_fit_waits_less_than_nothing(rows: list[tuple[int, float]]) -> None:
    wait_s, byte_s = fitted_line([TimedSum(*row) for row in rows])
    assert wait_s >= 0.0
    assert byte_s > 0.0


@pytest.mark.parametrize(
    "rows", [[], [[1, 1.0]], [[1, 1.0], [1, 2.0]], [[1, 0.0], [2, 1.0]], [[1, float("nan")], [2, 1.0]]]
)
def test_what_tells_no_link_is_refused(rows: list[list[float]]) -> None:
    with pytest.raises(ValueError, match=r"size"):
        read_all_reduce({"through": "gloo", "timed": rows})


def test_a_profile_keeps_what_was_timed() -> None:
    assert read_profile(MEASURED.to_json(), "file") == MEASURED


def test_a_measured_link_is_what_the_roofline_charges_ranks() -> None:
    """Of the same processor in two parts: with half the rate of the link, traffic alone is slower, by what it says."""
    spec = find_model("llama-3.1-8b")
    machine, layout = find("xeon-8480"), Layout(2)

    def traffic_s(rate: float) -> float:
        half = replace(machine, measured_link=timed(10e-6, rate).link("socket")).part(2)
        cost = roofline(spec, half, layout=layout)
        work = cost.work(BATCH)
        return cost.parts(work).traffic

    size = BATCH.num_tokens * spec.hidden_size * 2
    for rate in (5e9, 2.5e9):
        assert traffic_s(rate) == pytest.approx(2 * spec.num_layers * (20e-6 + size / rate))


def test_parts_of_a_machine_are_the_machine() -> None:
    machine = replace(find("xeon-8480"), price_per_hour=2.0)
    part = machine.part(4)
    assert 4 * part.achievable.bandwidth_bytes_per_s == pytest.approx(machine.achievable.bandwidth_bytes_per_s)
    assert 4 * part.memory_bytes == machine.memory_bytes
    assert 4 * (part.price_per_hour or 0.0) == machine.price_per_hour
    assert part.link(4).kind == "socket", "ranks of one machine"


@given(BATCHES)
def test_ranks_of_a_measured_engine_take_what_it_takes_and_what_they_exchange(batch) -> None:
    layout = Layout(2, 2)
    cost = cost_of(MEASURED, layout)
    assert isinstance(cost, RankedCost)
    traffic = measured_traffic(SHAPE, layout, MEASURED.all_reduce[0].link("socket"))
    exchanged_s = traffic.seconds(batch.num_tokens) + traffic.hops_s(batch.num_tokens)
    assert cost.step_s(batch) == pytest.approx(MeasuredCost(FITTED).step_s(batch) + exchanged_s)
    assert cost.run_s(batch, 3)[0] == cost.step_s(batch)


@pytest.mark.parametrize(
    ("profile", "layout", "words"),
    [
        (PROFILE, Layout(2), "no all-reduce was measured"),
        (replace(MEASURED, machine={"gpus": ["H200"]}), Layout(2), "of one GPU"),
        (MEASURED, Layout(8), "4 processors"),
        (replace(MEASURED, config={"parallel": {"tensor": 1, "pipeline": 2, "expert": 1}}), Layout(2), "other ranks"),
    ],
)
def test_a_profile_that_says_nothing_of_ranks_is_refused(profile, layout: Layout, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        cost_of(profile, layout)


def test_a_profile_of_ranks_is_theirs() -> None:
    ranks = replace(PROFILE, config={"parallel": {"tensor": 2, "pipeline": 1, "expert": 1}})
    assert type(cost_of(ranks, Layout(2))) is MeasuredCost
