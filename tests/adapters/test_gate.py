"""Slots for adapters: everybody enters in the end, nobody's adapter is taken away, and what is kept is bounded."""

import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ModelFileError
from penstock.runtime.core.batch import Delta, Finish, FinishReason
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.engine.adapters.gate import AdapterGate, AdapterOrder, AdapterRead, Entrance

END = Finish(FinishReason.STOP)


@dataclass
class Told:
    digest: str
    rank: int = 8
    num_bytes: int = 1 << 20
    base: str = ""


@dataclass
class Slots:
    """A device with room for so many adapters; `bad` ones cannot be read."""

    num_slots: int
    placed: set[str] = field(default_factory=set)
    num_read: int = 0

    def expect(self, path: str) -> None:
        pass

    def read(self, path: str) -> Told:
        self.num_read += 1
        if path.startswith("bad"):
            raise ModelFileError(f"{path} is refused")
        return Told(f"digest of {path}")

    def place(self, adapter: Any) -> None:
        self.placed.add(adapter.digest)
        assert len(self.placed) <= self.num_slots

    def remove(self, digest: str) -> None:
        self.placed.remove(digest)


class Driver:
    """Requests through a gate, with what is read taken in at once."""

    def __init__(self, num_slots: int) -> None:
        self.slots = Slots(num_slots)
        self.read: list[AdapterRead] = []
        self.gate = AdapterGate(self.slots, self.read.append)
        self.running: dict[int, str] = {}
        self.entered: list[int] = []
        self.refused: list[int] = []

    def ask(self, number: int, path: str) -> None:
        request = Request(request_id=number, prompt=(1,), params=SamplingParams(), adapter=path)
        self.take(self.gate.ask(request))
        while self.read:
            self.take(self.gate.take(self.read.pop()))

    def end(self, number: int) -> None:
        del self.running[number]
        self.take(self.gate.follow((Delta(number, 0, (), END),)))

    def take(self, entrance: Entrance) -> None:
        for request in entrance.entering:
            assert request.adapter in self.slots.placed
            self.running[request.request_id] = request.adapter
            self.entered.append(request.request_id)
        self.refused += [request.request_id for request, _, _ in entrance.refused]
        assert set(self.running.values()) <= self.slots.placed


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=60))
def test_everybody_enters_in_the_end_and_no_adapter_in_use_is_taken(
    num_slots: int, events: list[tuple[int, bool]]
) -> None:
    driver = Driver(num_slots)
    for number, (adapter, ends) in enumerate(events):
        driver.ask(number, f"a{adapter}" if adapter else "bad")
        if ends and driver.running:
            driver.end(min(driver.running))
    while driver.running:
        driver.end(min(driver.running))
    assert sorted(driver.entered + driver.refused) == list(range(len(events)))
    assert not driver.gate.counts.num_waiting
    assert all(events[number][0] == 0 for number in driver.refused)


def test_a_busy_adapter_does_not_keep_another_out() -> None:
    driver = Driver(1)
    for number in range(4):
        driver.ask(number, "busy")
    driver.ask(4, "other")
    driver.ask(5, "busy")  # comes after the one that waits
    for number in range(4):
        assert 4 not in driver.running
        driver.end(number)
    assert list(driver.running) == [4]
    driver.end(4)
    assert list(driver.running) == [5]


def test_a_thousand_adapters_over_sixteen_slots() -> None:
    driver, source = Driver(16), random.Random(1)
    for number in range(5000):
        driver.ask(number, f"a{min(int(source.paretovariate(0.7)), 1000)}")
        while len(driver.running) > 24:
            driver.end(source.choice(list(driver.running)))
    while driver.running:
        driver.end(source.choice(list(driver.running)))
    assert len(driver.entered) == 5000
    assert driver.slots.num_read <= 1000


def test_unloading_waits_for_who_uses_it() -> None:
    driver = Driver(2)
    driver.ask(1, "a")
    driver.gate.order(AdapterOrder(7, "a", is_unload=True))
    assert not driver.gate.answers()
    driver.end(1)
    assert [answer.order_id for answer in driver.gate.answers()] == [7]
    assert not driver.slots.placed


def test_a_request_that_waits_can_be_cancelled() -> None:
    driver = Driver(1)
    driver.ask(1, "a")
    driver.ask(2, "b")
    assert driver.gate.cancel(2) is not None
    assert driver.gate.cancel(2) is None
    driver.end(1)
    assert not driver.running
