"""Laws of the backlog: a queue that could go on for ever is left alone, one that could not is noticed."""

from random import Random

import pytest

from penstock.tools.bench.report.backlog import Backlog


def queue(seed: int, rate: float, service_s: float, servers: int, end_s: float = 60.0) -> Backlog:
    """What a client would sample of a queue with so many servers, each taking a random time of this mean."""
    random = Random(seed)
    arrivals: list[float] = []
    ends: list[float] = []
    free = [0.0] * servers
    time_s = 0.0
    while (time_s := time_s + random.expovariate(rate)) < end_s:
        place = free.index(min(free))
        free[place] = max(time_s, free[place]) + random.expovariate(1 / service_s)
        arrivals.append(time_s)
        ends.append(free[place])
    backlog = Backlog()
    backlog.num_arrivals = len(arrivals)
    backlog.early_s = sorted(end - start for start, end in zip(arrivals[:10], ends[:10]))[5]
    for step in range(1, int(end_s / 0.2)):
        now_s = 0.2 * step
        backlog.add(now_s, sum(start <= now_s for start in arrivals) - sum(end <= now_s for end in ends))
    return backlog


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("rate", "service_s", "servers"), [(10.0, 0.06, 1), (10.0, 2.0, 30), (8.0, 0.5, 8)])
def test_a_queue_that_holds_is_left_alone(seed, rate, service_s, servers):
    assert not queue(seed, rate, service_s, servers).is_growing


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("rate", "service_s", "servers"), [(10.0, 0.2, 1), (10.0, 2.0, 10), (16.0, 0.5, 4)])
def test_a_queue_that_grows_is_noticed(seed, rate, service_s, servers):
    assert queue(seed, rate, service_s, servers).is_growing


def test_a_server_that_only_fills_up_is_not_judged_yet():
    backlog = Backlog(num_arrivals=300, early_s=10.0)
    for step in range(100):
        backlog.add(0.2 * step, 3 * step)
    assert not backlog.is_growing
    assert not Backlog().is_growing


def test_a_short_run_is_judged_by_what_it_leaves_behind():
    backlog = Backlog(num_arrivals=100, num_open=60, early_s=0.2, samples=[(1.0, 70)])
    assert not backlog.is_growing
    assert not backlog.is_left_over(1.9)
    assert backlog.is_left_over(2.1)
    assert not Backlog(num_arrivals=100, num_open=9, early_s=0.2, samples=[(1.0, 70)]).is_left_over(2.1)
    assert not Backlog(num_arrivals=100, num_open=60, early_s=5.0, samples=[(1.0, 70)]).is_left_over(2.1)
