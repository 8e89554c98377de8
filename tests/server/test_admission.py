"""Overload: some are refused by chance before all are, and nobody is let in for a cache that is asked for many times over."""

import random
import time

import pytest

from penstock.runtime.core.request import Request, SamplingParams
from penstock.service.edge.access import ROUTER
from penstock.service.server.http.admission import (
    CACHE_TURNS,
    EXPECTED_ANSWER,
    SHED_FROM,
    WINDOW_S,
    Admission,
    DrainRate,
)
from penstock.service.server.http.faults import ApiError
from tests.server.serving import idle_client

PLACES = 200


def filled(num_open: int, chance: float) -> Admission:
    admission = Admission(idle_client(max_waiting=PLACES - 8, max_sequences=8), num_tenants=0, chance=lambda: chance)
    for number in range(num_open):
        admission._open[str(number)] += 1
    return admission


@pytest.mark.parametrize(("share", "refused"), [(0.5, 0.0), (SHED_FROM, 0.0), (0.9, 0.5), (0.95, 0.75), (1.0, 1.0)])
def test_the_share_that_is_refused_grows_with_what_is_taken(share: float, refused: float) -> None:
    source = random.Random(3)
    count = 0
    for _ in range(400):
        try:
            filled(int(share * PLACES), source.random()).check("")
        except ApiError as error:
            count += int(dict(error.headers)[b"retry-after"]) >= 1
    assert abs(count / 400 - refused) < 0.08


def test_few_places_are_filled_to_the_last() -> None:
    admission = Admission(idle_client(max_waiting=4, max_sequences=4), num_tenants=0, chance=lambda: 0.0)
    for _ in range(8):
        admission.enter("")
    with pytest.raises(ApiError):
        admission.enter("")


def test_when_to_come_back_follows_from_how_many_leave_the_queue() -> None:
    admission = filled(0, 1.0)
    client = admission._client
    for number in range(40):
        client.submit(Request(request_id=number, prompt=(1,)))
    before = admission.retry_after_s()
    now = time.monotonic()
    for number in range(20):
        admission.drain.add(now - 2.0 + number / 10)
    assert before == 1, "nothing has moved: soon is the only guess"
    assert 3 <= admission.retry_after_s() <= 6, "40 wait and 10 a second leave"


@pytest.mark.parametrize(("cycle_s", "num_together"), [(0.5, 1), (2.0, 4), (12.0, 4), (12.0, 32)])
def test_answers_that_begin_together_are_counted_over_what_they_take(cycle_s: float, num_together: int) -> None:
    """Whenever a client asks, it is told about what two such batches take."""
    drain, told = DrainRate(), []
    for step in range(int(8 * cycle_s)):
        for _ in range(num_together if step % int(2 * cycle_s) == 0 else 0):
            drain.add(step / 2)
        told.append((drain.seconds_each(step / 2) or 0.0) * 2 * num_together)
    steady = told[len(told) // 2 :]
    assert 0.6 * 2 * cycle_s <= min(steady)
    assert max(steady) <= 1.1 * 2 * cycle_s


def test_a_queue_that_stands_calls_nobody_back_at_once() -> None:
    """Answers that all take longer than the window end together: meanwhile nothing leaves, and soon would be a lie."""
    admission = filled(0, 1.0)
    now = time.monotonic()
    admission.drain.rest(now - 3600.0)
    admission.enter("")
    for number in range(2):
        admission._client.submit(Request(request_id=number, prompt=(1,)))
    assert admission.retry_after_s() == 1, "an hour without clients is no hour of standing"
    admission.drain.add(now - WINDOW_S - 10.0)
    assert 80 <= admission.retry_after_s() <= 86, "two wait, none began for 40 s"


def test_a_router_with_one_key_fills_every_place_and_a_second_key_has_half() -> None:
    admission = Admission(idle_client(max_waiting=6, max_sequences=4), num_tenants=0, chance=lambda: 1.0)
    for _ in range(10):
        admission.enter("key-0")
    for _ in range(6):
        admission.leave("key-0")
    admission.enter(ROUTER)
    admission.enter("key-0")
    admission.enter("key-1")
    with pytest.raises(ApiError, match="this key has as many"):
        admission.enter("key-0")
    for _ in range(3):
        admission.enter("key-1")
    with pytest.raises(ApiError, match="10 requests are being served"):
        admission.enter("key-1")


def test_a_cache_that_is_asked_for_many_times_over_takes_no_more() -> None:
    client = idle_client(max_waiting=10_000, max_sequences=8)
    facts = client.facts
    assert facts
    admission = Admission(client, num_tenants=0)
    room = CACHE_TURNS * facts.num_blocks * facts.block_size
    number = 0
    while admission.num_asked_tokens + 1 + EXPECTED_ANSWER <= room:
        admission.reserve([(1,)], SamplingParams(), "")
        client.submit(Request(request_id=number, prompt=(1,)))
        number += 1
    assert number
    with pytest.raises(ApiError):
        admission.reserve([(1,)], SamplingParams(), "")
    if room - admission.num_asked_tokens >= 2:
        admission.reserve([(1,)], SamplingParams(max_tokens=1), "")
