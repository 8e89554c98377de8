"""A calibration visits every size it says, measures no prompt twice, rests, and leaves out what was disturbed."""

import time
from random import Random

import pytest

from benchmarks.accuracy import misses
from penstock.runtime.core.features import Features, StepTime
from penstock.runtime.engine.engine import Engine
from penstock.runtime.engine.scripted import ScriptedRunner
from penstock.runtime.sizing import make_scheduler
from penstock.tools.measure.calibration import (
    BATCHES,
    LONG_PROMPTS,
    NUM_RATES,
    RESTED_PROMPTS,
    SHORT_PROMPTS,
    TOGETHER,
    Calibration,
    CalibrationSample,
    StepRecorder,
)
from tests.sim.fleets import make_fleet


def calibrate(**settings):
    recorder = StepRecorder()
    runner = ScriptedRunner(batches=[])
    fleet = make_fleet(**settings)
    engine = Engine(make_scheduler(fleet.config, fleet.sizing), runner, time.monotonic, on_step=recorder.record)
    calibration = Calibration(engine, recorder, 1000, Random(4), rests_s=(0.005, 0.006))
    steps = calibration.run(1.0)
    assert not engine.has_work
    return recorder, runner, steps


def test_every_size_is_visited():
    recorder, runner, steps = calibrate()
    features = [step.features for step in recorder.steps]
    decodes = {one.num_singles for one in features if not one.num_long_tokens}
    assert {size for size in BATCHES if size <= 64} <= decodes
    alone = {one.num_tokens for one in features if one.num_chunks == 1}
    assert {*SHORT_PROMPTS, *LONG_PROMPTS} <= alone
    assert any(one.num_singles and one.num_long_tokens for one in features), "prompts join batches that generate"
    at_once = {one.num_chunks for one in features if one.num_singles == 0 and one.num_tokens <= 100 * one.num_chunks}
    assert set(TOGETHER) <= at_once, "short prompts that come together"
    assert any(one.long_kv > one.num_long_tokens + 500 for one in features), "prompts whose beginning is cached"
    assert max(one.max_kv for one in features) > 1500
    assert 0 < len(steps) <= len(recorder.steps)
    alone = [batch.chunks[0].token_ids for batch in runner.batches if len(batch.chunks) == 1]
    prompts = [token_ids for token_ids in alone if len(token_ids) > 30]
    assert len(set(prompts)) == len(prompts)
    rested = {step.features.num_tokens for step in recorder.steps if step.rest_s >= 0.005}
    assert set(RESTED_PROMPTS) <= rested
    served = [sample.steps for sample in recorder.samples if sample.stage == "as served"]
    assert len(served) >= NUM_RATES
    assert all(sum(step.features.num_long_tokens for step in steps) > 0 for steps in served)
    assert any(step.rest_s > 0.0 for steps in served for step in steps), "the clock brings them, not the step before"


def test_a_small_engine_is_measured_within_its_limits():
    recorder, _, _ = calibrate(num_blocks=40, max_sequences=4, max_batch_tokens=128)
    features = [step.features for step in recorder.steps]
    assert max(one.num_chunks for one in features) <= 4
    assert max(one.num_tokens for one in features) <= 128


STEP = StepTime(0.0, 0.01, 0.0, True, 0.0, Features(1, 1, 0, 1, 5, 0, 5, 0, 0))


@pytest.mark.parametrize(
    ("shares", "kept"),
    [([0.0, 0.05, 0.6, 0.0, 0.3], [0, 1, 3]), ([0.5, 0.9, 0.4, 0.6, 0.8], [0, 2, 3]), ([0.7], [0]), ([], [])],
)
def test_steps_that_others_disturbed_are_left_out_but_not_all(shares, kept):
    recorder = StepRecorder()
    recorder.samples += [
        CalibrationSample("one", [STEP._replace(start_s=number)], share) for number, share in enumerate(shares)
    ]
    recorder.samples.append(CalibrationSample("the only one of its kind", [STEP._replace(start_s=99)], 1.0))
    assert [step.start_s for step in recorder.quiet()] == [*kept, 99]


def test_steps_between_parts_are_not_the_calibrations():
    recorder = StepRecorder()
    recorder.record(STEP)
    with recorder.part("one"):
        recorder.record(STEP._replace(start_s=1))
    recorder.record(STEP._replace(start_s=2))
    with recorder.part("other"):
        recorder.record(STEP._replace(start_s=3))
    recorder.record(STEP._replace(start_s=4))
    assert [step.start_s for step in recorder.steps] == [1, 3]


def test_a_figure_further_off_than_its_target_is_a_miss() -> None:
    found = {"ttft_p50_s": {"error": 0.11}, "ttft_p95_s": {"error": -0.19}, "output_tokens_per_s": {"error": 0.01}}
    assert misses(found) == ["ttft_p50_s"]
