"""The controller by hand: time, placements and traffic are values that a test moves."""

import asyncio
import json
from dataclasses import dataclass, field, replace

import pytest

from penstock.assembly.fleet.cluster import CurveFile
from penstock.errors import ConfigError
from penstock.service.cluster.controller import Controller, ReplicaPhase
from penstock.service.cluster.replica import ServerReport
from penstock.service.cluster.scaling import ArrivalCurve, Scaler, Scaling, ServedRate
from penstock.service.router.fleet import LiveReplica

STARTING = ServerReport("http://127.0.0.1:1", False, None, 1.0, (), "127.0.0.1", "")
READY = STARTING._replace(is_ready=True, start_s=4.0, parts=(("begin the process", 1.0), ("load the model", 3.0)))


@dataclass
class Place:
    answer: ServerReport | None = STARTING
    is_removed: bool = False
    how_lost: str = "its node is gone"

    async def report(self) -> ServerReport | None:
        return self.answer

    async def remove(self, drain_s: float) -> None:
        self.is_removed = True


@dataclass
class Bench:
    """A controller, and all that it touches."""

    scaling: Scaling
    now: float = 0.0
    num_waiting: int = 0
    num_served: int = 0
    kv: float = 0.0
    pending: dict[str, int] = field(default_factory=dict)
    served: set[str] = field(default_factory=set)
    drained: set[str] = field(default_factory=set)
    places: dict[str, Place] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.controller = Controller(self.scaling, self.place, self, 30.0, lambda: self.now)

    async def place(self, name: str) -> Place:
        self.places[name] = Place()
        return self.places[name]

    def load(self, name: str) -> LiveReplica:
        count = self.pending.get(name, 0)
        return LiveReplica(name, "", num_pending=count, num_waiting=count, kv_usage_fraction=self.kv)

    def add(self, name: str, url: str) -> None:
        self.served.add(name)

    def drain(self, name: str) -> None:
        self.drained.add(name)

    def remove(self, name: str) -> None:
        self.served.discard(name)

    def look(self, seconds: float = 1.0) -> None:
        self.now += seconds
        asyncio.run(self.controller.look())

    def ready(self, *names: str) -> None:
        for name in names:
            self.places[name].answer = READY
        self.look()


def scaling(least: int, most: int) -> Scaling:
    return Scaling(least, most, 4.0, down_delay_s=10.0)


def test_a_full_cache_asks_for_a_replica_that_pending_requests_do_not() -> None:
    bench = Bench(replace(scaling(1, 3), kv_target=0.8))
    bench.look()
    bench.ready("replica-1")
    assert len(bench.places) == 1
    bench.kv = 0.95
    bench.look()
    assert len(bench.places) == 2


def test_waiting_requests_that_would_be_late_ask_for_replicas() -> None:
    """One replica serves four a second: of twelve that wait, in two seconds it begins eight."""
    bench = Bench(replace(scaling(1, 3), target=100.0, ttft_s=2.0))
    bench.look()
    bench.ready("replica-1")
    for _ in range(3):
        bench.num_served += 4
        bench.look()
    assert len(bench.places) == 1, "four a second come and are served"
    bench.pending["replica-1"] = 12
    bench.num_served += 4
    bench.look()
    assert len(bench.places) > 1


def test_a_replica_serves_once_it_is_ready() -> None:
    bench = Bench(scaling(1, 1))
    bench.look()
    assert bench.served == set()
    bench.ready("replica-1")
    assert bench.served == {"replica-1"}
    assert "load the model 3.0 s" in bench.controller.events[-1]


def test_load_orders_another_and_its_end_drains_one_before_it_goes() -> None:
    bench = Bench(scaling(1, 3))
    bench.look()
    bench.ready("replica-1")
    bench.pending = {"replica-1": 7}
    bench.look()
    bench.look()
    assert len(bench.controller.replicas) == 2, "one burst orders one"
    bench.ready("replica-2")
    bench.pending = {"replica-1": 1, "replica-2": 1}
    bench.look()
    bench.look(5.0)
    assert not bench.drained, "not at once"
    bench.look(6.0)
    assert bench.drained == {"replica-2"}
    bench.look()
    assert not bench.places["replica-2"].is_removed, "it still answers"
    bench.pending = {"replica-1": 1}
    bench.look()
    assert bench.places["replica-2"].is_removed
    assert bench.served == {"replica-1"}


def test_a_lost_replica_is_taken_from_the_router_and_replaced() -> None:
    bench = Bench(scaling(2, 2))
    bench.look()
    bench.ready("replica-1", "replica-2")
    bench.places["replica-1"].answer = None
    bench.look()
    assert bench.served == {"replica-2"}
    assert bench.places["replica-1"].is_removed
    assert bench.controller.replicas["replica-3"].phase is ReplicaPhase.STARTING


def test_a_service_may_rest_and_the_first_request_wakes_it() -> None:
    bench = Bench(scaling(0, 2))
    bench.look()
    assert not bench.controller.replicas
    bench.num_waiting = 1
    bench.look()
    assert len(bench.controller.replicas) == 1
    bench.ready("replica-1")
    bench.num_waiting = 0
    bench.look()
    bench.look(11.0)
    bench.look()
    assert not bench.controller.replicas


@pytest.mark.parametrize(("status", "num_tries"), [(2, 1), (1, 3)])
def test_replicas_that_never_start_end_the_service_with_their_own_words(status: int, num_tries: int) -> None:
    bench = Bench(scaling(1, 1))
    words = "loading\npenstock: error: /models/none does not exist"
    ended = STARTING._replace(status=status, words=words)

    def try_on() -> None:
        for _ in range(10):
            bench.look()
            for place in bench.places.values():
                place.answer = ended

    with pytest.raises(ConfigError, match="do not start: /models/none does not exist"):
        try_on()
    assert len(bench.places) == num_tries


def test_a_rush_doubles_the_fleet_once_a_window_and_orders_nothing_twice() -> None:
    """A thousand requests at once, to a service that had scaled to zero: the stampede guard."""
    bench = Bench(replace(scaling(0, 64), window_s=15.0))
    bench.num_waiting = 1000
    counts = []
    for _ in range(60):
        bench.look(1.0)
        counts.append(len(bench.places))
    assert counts[:15] == [4] * 15, "four are ordered at once, and no more in their window, however often is looked"
    assert [counts[second] for second in (15, 30, 45)] == [8, 16, 32]
    unbounded = Bench(scaling(0, 64))
    unbounded.num_waiting = 1000
    unbounded.look()
    assert len(unbounded.places) == 64
    assert Scaler(replace(scaling(2, 64), window_s=15.0)).wanted(2, 1000, 0.0, 0.0) == 6


def test_replicas_are_ready_when_the_load_of_yesterday_comes_again() -> None:
    """At nine each morning 2 requests a second become 20; a replica serves 4 and takes two minutes to start."""
    nine, cold_s = 9 * 3600.0, 120.0

    def rate(time_s: float) -> float:
        return 20.0 if nine <= time_s % 86_400 < nine + 3600 else 2.0

    curve = ArrivalCurve()
    total = 0.0
    for second in range(0, 86_400 + 600, 10):
        curve.note(round(total), second)
        total += 10 * rate(second)
    assert curve.at(nine + 1800) == pytest.approx(20.0, rel=0.01)
    assert curve.at(nine - 1800) == pytest.approx(2.0, rel=0.05)
    ordered = {}
    for name, known in (("curve", curve), ("none", None)):
        bench = Bench(Scaling(1, 8, 1e6, cold_start_s=cold_s))
        controller = bench.controller
        controller.curve, controller.served = known, ServedRate(4.0)
        controller.unix_clock = lambda bench=bench: 86_400.0 + nine - 1200.0 + bench.now
        while bench.now < 1200.0 and len(bench.places) < 6:
            bench.num_served += 2 * 10
            bench.look(10.0)
            for replica in controller.replicas.values():
                replica.since_s = bench.now - cold_s  # they start as expected
            bench.ready(*[place for place in bench.places if bench.places[place].answer is not READY])
        ordered[name] = (len(bench.places), bench.now)
    assert ordered["none"] == (1, pytest.approx(1200.0, abs=30.0)), "nothing has come yet"
    count, when = ordered["curve"]
    assert count == 6, "20 a second over 4 a second, nine tenths full"
    assert 1200.0 - cold_s - 310.0 <= when <= 1200.0 - cold_s + 150.0


def test_a_curve_is_kept_from_run_to_run_and_a_file_of_something_else_is_refused(tmp_path) -> None:
    path = tmp_path / "curve.json"
    first = CurveFile(path)
    for second in range(0, 1200, 60):
        first.curve.note(second * 3, second)
    first.save(ServedRate(2.5))
    second_run = CurveFile(path)
    assert second_run.curve.per_s == first.curve.per_s
    assert second_run.curve.at(450.0) == pytest.approx(3.0)
    assert second_run.curve.at(40_000.0) == 0.0, "nothing is known of noon"
    assert second_run.served_per_s == 2.5
    for wrong in ("{", "[1]", json.dumps({"per_s": [1.0]}), json.dumps({"per_s": [-1.0] * 288})):
        path.write_text(wrong)
        with pytest.raises(ConfigError, match="arrival-curve"):
            CurveFile(path)
