"""Laws of the step log: it accounts for every moment of a busy loop, for none of a sleeping one, and disturbs neither."""

import itertools
import json
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.runtime.core.batch import StepOutput
from penstock.runtime.core.features import COLUMNS, STEPS_VERSION, Features, StepTime, features_of
from penstock.runtime.core.queue.order import ORDERS
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.engine.engine import Engine
from penstock.runtime.engine.step_log import StepFile
from penstock.tools.cost.measured.profile import read_steps
from tests.engine.answers import LIMITS, make_request

SECONDS = st.integers(1, 50).map(lambda number: number / 64)
"""Sums of these are exact."""


class World:
    """A clock that only work moves: the device's own, and the host's at every look."""

    def __init__(self, device_s, host_s, failing=()):
        self.now, self.batches = 0.0, []
        self._device_s, self._host_s, self._failing = device_s, host_s, failing
        self._free_s = 0.0

    def clock(self):
        self.now += self._host_s
        return self.now

    def launch(self, batch):
        number = len(self.batches)
        self.batches.append(batch)
        begin_s = max(self.now, self._free_s)
        self._free_s = begin_s + self._device_s[number % len(self._device_s)]
        return Ticket(self, batch, self._free_s, number in self._failing)


class Ticket:
    def __init__(self, world, batch, end_s, fails):
        self._world, self._batch, self._end_s, self._fails = world, batch, end_s, fails

    def result(self):
        self._world.now = max(self._world.now, self._end_s)
        if self._fails:
            raise RuntimeError("a step that fails")
        return StepOutput(tuple((0,) if chunk.samples else () for chunk in self._batch.chunks))


def serve(world, depth=1, num_requests=5, pauses=()):
    steps = []
    engine = Engine(Scheduler(LIMITS, ORDERS["first-come"]()), world, world.clock, depth=depth, on_step=steps.append)
    for number in range(num_requests):
        engine.submit(make_request(number, range(3 + 9 * number), max_tokens=3 + number, ignore_eos=True))
        if number in pauses:
            while engine.has_work:
                engine.step()
            engine.wait(0.0)
            world.now += 100.0
    turns = []
    while engine.has_work:
        turns.append(world.now)
        engine.step()
    return steps


@settings(max_examples=40)
@given(st.lists(SECONDS, min_size=1, max_size=7), SECONDS)
def test_device_and_host_of_a_busy_loop_add_up_to_its_time(device_s, host_s):
    world = World(device_s, host_s)
    steps = serve(world)
    assert [step.features for step in steps] == [features_of(batch) for batch in world.batches]
    assert all(step.is_busy for step in steps[:-1])
    assert not steps[-1].is_busy
    for step, after in itertools.pairwise(steps):
        assert step.device_s + step.host_s == pytest.approx(after.start_s - step.start_s)
    for number, step in enumerate(steps):
        assert step.device_s >= device_s[number % len(device_s)]


def test_with_steps_in_flight_the_longer_of_device_and_host_is_the_period():
    for device_s, host_s in ((5.0, 0.25), (0.25, 5.0)):
        steps = serve(World([device_s], host_s), depth=2)
        for step, after in itertools.pairwise(steps):
            period_s = after.start_s - step.start_s
            assert max(step.device_s, step.host_s) == pytest.approx(period_s, rel=0.25)


def test_sleep_is_nobodys_time():
    steps = serve(World([1.0], 0.125), pauses=(1, 3))
    assert sum(step.device_s + step.host_s for step in steps) < 100.0
    assert steps[-1].start_s > 200.0
    assert sum(not step.is_busy for step in steps) == 3
    rests = [step.rest_s for step in steps]
    assert [rest_s > 0.0 for rest_s in rests] == [False, *(not step.is_busy for step in steps[:-1])]
    for step, after in itertools.pairwise(steps):
        end_s = step.start_s + step.device_s + step.host_s
        assert after.rest_s == pytest.approx(after.start_s - end_s if not step.is_busy else 0.0)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_failed_step_is_left_out_and_those_after_it_are_logged(depth):
    world = World([1.0], 0.125, failing=(2,))
    whole = serve(World([1.0], 0.125), depth)
    steps = serve(world, depth)
    assert 0 < len(steps) < len(whole) + 1
    assert steps[-1].features == whole[-1].features
    assert all(step.device_s < 3.0 for step in steps)


def test_without_a_log_the_loop_looks_at_the_clock_no_more_often():
    looks = []

    def clock():
        looks.append(None)
        return float(len(looks))

    engine = Engine(Scheduler(LIMITS, ORDERS["first-come"]()), World([0.0], 0.0), clock)
    engine.submit(make_request(1, range(5), max_tokens=2, ignore_eos=True))
    looks.clear()
    engine.step()
    assert len(looks) == 2, "a turn and its commit"


STEP = StepTime(1.5, 0.25, 0.0625, True, 0.5, Features(2, 1, 30, 2, 400, 31, 400, 465, 16))


def test_a_file_gives_back_what_was_written(tmp_path):
    path = tmp_path / "steps.jsonl"
    file = StepFile(path, {"model": "some"})
    steps = [STEP._replace(start_s=float(number), is_busy=number % 2 == 0) for number in range(10)]
    for step in steps:
        file.write(step)
    header, found = read_steps(path.read_text(), "steps")
    assert header["model"] == "some"
    assert header["columns"] == list(COLUMNS)
    assert found == steps


def test_a_file_is_bounded_and_keeps_the_latest(tmp_path):
    path = tmp_path / "steps.jsonl"
    file = StepFile(path, {}, max_lines=10)
    for number in range(35):
        file.write(STEP._replace(start_s=float(number)))
    old = path.with_name("steps.jsonl.old")
    kept = [step.start_s for each in (old, path) for step in read_steps(each.read_text(), "steps")[1]]
    assert kept == list(range(20, 35))
    assert {each.name for each in tmp_path.iterdir()} == {path.name, old.name}


def test_a_file_that_cannot_be_begun_anew_loses_steps_and_says_so_once(tmp_path, caplog):
    path = tmp_path / "gone" / "steps.jsonl"
    path.parent.mkdir()
    file = StepFile(path, {}, max_lines=2)
    for number in range(8):
        if number == 2:
            shutil.rmtree(path.parent)
        if number == 6:
            path.parent.mkdir()
        file.write(STEP._replace(start_s=float(number)))
    assert [step.start_s for step in read_steps(path.read_text(), "steps")[1]] == [6.0, 7.0]
    assert caplog.text.count("steps are lost") == 1


def test_a_line_that_is_being_written_is_left_out(tmp_path):
    path = tmp_path / "steps.jsonl"
    file = StepFile(path, {})
    file.write(STEP)
    assert read_steps(path.read_text() + "[1.0, 0.2", "steps")[1] == [STEP]


@pytest.mark.parametrize("text", ["", "{}", "[]", "null\n", '{"penstock_steps": 9, "columns": []}\n', "\x00"])
def test_what_is_no_step_log_is_refused(text):
    with pytest.raises(ConfigError, match="step log"):
        read_steps(text, "file")


@pytest.mark.parametrize("row", [[1], ["a"] * 13, [float("nan")] * 13, [-1.0] * 13, [1e400] * 13, {}, None])
def test_rows_that_cannot_be_are_refused(row):
    header = json.dumps({"penstock_steps": STEPS_VERSION, "columns": list(COLUMNS)})
    with pytest.raises(ConfigError, match="no step log"):
        read_steps(f"{header}\n{json.dumps(row)}\n", "file")


def test_a_path_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(ConfigError, match="--step-log"):
        StepFile(tmp_path / "nowhere" / "steps", {})
