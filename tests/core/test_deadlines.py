"""Whoever is late is told once, in order; those who have ended are forgotten, seldom and without harm to the others."""

from heapq import heapify
from random import Random

from penstock.runtime.core.queue import deadlines as deadlines_module
from penstock.runtime.core.queue.deadlines import MAX_IDLE_DEADLINES, Deadlines


def test_who_is_late_is_told_once_and_in_order():
    pending = {1: None, 2: None, 3: None, 4: None}
    deadlines = Deadlines(pending)
    assert deadlines.next_s is None
    for number, deadline_s in ((1, 9.0), (2, 3.0), (3, 7.0), (4, 20.0)):
        deadlines.add(deadline_s, number)
    assert deadlines.next_s == 3.0
    assert list(deadlines.missed(2.9)) == []
    del pending[3]
    assert list(deadlines.missed(10.0)) == [2, 1]
    assert list(deadlines.missed(10.0)) == []
    assert deadlines.next_s == 20.0
    del pending[4]
    assert list(deadlines.missed(10.0)) == []
    assert not deadlines


def test_those_of_ended_requests_are_forgotten(monkeypatch):
    """Seldom, since it costs as much as there are, and without losing or mixing up the others."""
    closed = []
    monkeypatch.setattr(deadlines_module, "heapify", lambda heap: closed.append(len(heap)) or heapify(heap))
    choose = Random(3)
    numbers = list(range(1, 501))
    times = {number: 1000.0 + choose.randrange(500) for number in numbers}
    pending = dict.fromkeys(numbers)
    deadlines = Deadlines(pending)
    for number in numbers:
        deadlines.add(times[number], number)
    assert closed == []
    choose.shuffle(numbers)
    for number in numbers[:400]:
        del pending[number]
    pending[600] = None
    deadlines.add(1e9, 600)
    assert closed == [101]
    for number in range(700, 900):
        pending[number] = None
        deadlines.add(2e9, number)
        del pending[number]
        assert len(deadlines) <= 2 * len(pending) + MAX_IDLE_DEADLINES + 2
    assert len(closed) == 2
    late = list(deadlines.missed(1e6))
    assert sorted(late) == sorted(numbers[400:])
    assert [times[number] for number in late] == sorted(times[number] for number in late)
    assert list(deadlines.missed(1e10)) == [600]
    assert not deadlines
