"""Laws of traces: equal ids are equal tokens, parts keep their rows, prompts cost nothing until they are asked for."""

import math
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.tools.workload.arrivals import Poisson
from penstock.tools.workload.lengths import Uniform
from penstock.tools.workload.trace import BLOCK_TOKENS, TraceRow, trace_of_rows
from penstock.tools.workload.workload import Recipe, SharedPrefix

ROWS = [
    TraceRow(3.5, 1030, 7, (1, 2, 3)),
    TraceRow(1.5, 700, 5, (1, 9)),
    TraceRow(2.0, 40, 1),
    TraceRow(9.0, 1200, 2, (1,)),
]
TRACE = trace_of_rows(ROWS)


def trace_of(workload):
    """What a workload's arrivals would leave behind: ids are numbered as they appear, equal where prompts begin alike."""
    numbers: dict[tuple[int, tuple[int, ...]], int] = {}
    rows = []
    for request in workload.requests:
        blocks: list[int] = []
        parent = -1
        for start in range(0, len(request.prompt), BLOCK_TOKENS):
            parent = numbers.setdefault((parent, request.prompt[start : start + BLOCK_TOKENS]), len(numbers))
            blocks.append(parent)
        rows.append(TraceRow(request.arrival_s, len(request.prompt), request.params.max_tokens or 1, blocks))
    return trace_of_rows(rows)


def test_rows_come_in_order_of_arrival_and_the_first_at_zero():
    assert list(TRACE.times_s) == [0.0, 0.5, 2.0, 7.5]
    assert list(TRACE.prompt_lengths) == [700, 40, 1030, 1200]
    assert [list(TRACE.blocks_of(row)) for row in range(4)] == [[1, 9], [], [1, 2, 3], [1]]
    assert TRACE.span_s == 7.5


def test_requests_have_the_lengths_and_times_of_their_rows():
    workload = TRACE.workload(1000)
    assert len(workload) == 4
    for request, row in zip(workload.requests, TRACE.rows(), strict=True):
        assert len(request.prompt) == row.prompt_length
        assert request.params.max_tokens == row.answer_length
        assert request.params.ignore_eos
        assert request.arrival_s == row.time_s
        assert all(0 <= token < 1000 for token in request.prompt)
    assert workload.num_prompt_tokens == sum(len(request.prompt) for request in workload.requests)
    assert workload.num_output_tokens == 15
    assert workload.span_s == 7.5
    assert workload.requests[-1] == workload.requests[3]
    assert workload.requests[1:3] == (workload.requests[1], workload.requests[2])
    with pytest.raises(IndexError):
        workload.requests[4]


def test_equal_ids_are_equal_tokens_and_nothing_else_is():
    first, second, third, fourth = (request.prompt for request in TRACE.workload(50_000).requests)
    assert first[:BLOCK_TOKENS] == third[:BLOCK_TOKENS] == fourth[:BLOCK_TOKENS]
    # Beyond what their ids share, prompts agree in no more places than chance allows.
    for left, right in ((first[512:], third[512:]), (third[512:], fourth[512:]), (second, first), (second, fourth)):
        assert sum(a == b for a, b in zip(left, right)) < 5


def test_a_workload_leaves_a_trace_that_shares_what_it_shared():
    recipe = Recipe(Poisson(3.0), Uniform(1, 900), Uniform(1, 9), 30, SharedPrefix(1024, 2, 0.7), vocab_size=500)
    workload = recipe.make(4)
    again = trace_of(workload).workload(500)
    start_s = workload.requests[0].arrival_s
    for one, other in zip(workload.requests, again.requests, strict=True):
        assert (len(one.prompt), one.params.max_tokens) == (len(other.prompt), other.params.max_tokens)
        assert one.arrival_s - start_s == pytest.approx(other.arrival_s)
    pairs = [(a, b) for a in range(30) for b in range(a)]
    for a, b in pairs:
        shared = workload.requests[a].prompt[:1024] == workload.requests[b].prompt[:1024]
        assert shared == (again.requests[a].prompt[:1024] == again.requests[b].prompt[:1024])
    assert trace_of(again) == trace_of(workload)


@given(
    times=st.lists(st.floats(0, 100), min_size=1, max_size=20),
    low=st.floats(0, 50),
    extra=st.floats(0.1, 60),
    data=st.data(),
)
def test_a_window_keeps_the_rows_that_came_in_it(times, low, extra, data):
    trace = trace_of_rows([TraceRow(time, number + 1, 1, (number,)) for number, time in enumerate(times)])
    inside = [row for row in trace.rows() if low <= row.time_s < low + extra]
    if not inside:
        with pytest.raises(ConfigError, match="no request"):
            trace.window(low, low + extra)
        return
    part = trace.window(low, low + extra)
    assert list(part.prompt_lengths) == [row.prompt_length for row in inside]
    assert [list(part.blocks_of(row)) for row in range(len(part))] == [list(row.blocks) for row in inside]
    assert part.times_s[0] == 0.0
    assert part.span_s == pytest.approx(inside[-1].time_s - inside[0].time_s)
    count = data.draw(st.integers(1, 25))
    assert list(part.first(count).prompt_lengths) == list(part.prompt_lengths[:count])


def test_twice_as_fast_takes_half_the_time():
    assert list(TRACE.faster(2.0).times_s) == [0.0, 0.25, 1.0, 3.75]


@pytest.mark.parametrize(
    "make",
    [
        lambda: TRACE.first(0),
        lambda: TRACE.window(5.0, 5.0),
        lambda: TRACE.window(-1.0),
        lambda: TRACE.window(math.nan),
        lambda: TRACE.faster(0.0),
        lambda: TRACE.faster(math.nan),
        lambda: TRACE.workload(0),
    ],
)
def test_impossible_parts_are_refused(make):
    with pytest.raises(ConfigError):
        make()


def test_prompts_are_made_only_when_asked_for():
    rows = [TraceRow(number / 10, 100_000, 10) for number in range(10_000)]
    tracemalloc.start()
    workload = trace_of_rows(rows).workload(32_000)
    assert workload.num_prompt_tokens == 10**9
    assert len(workload.requests[9_999].prompt) == 100_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 30 * 2**20
