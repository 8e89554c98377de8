"""A calibration visits every size it says, measures no prompt twice, rests, and leaves out what was disturbed."""

import time
from random import Random

from penstock.cli.calibration import BATCHES, LONG_PROMPTS, RESTED_PROMPTS, SHORT_PROMPTS, Calibration, Recorder, Sample
from penstock.core.features import Features, StepTime
from penstock.engine.engine import Engine
from penstock.engine.scripted import ScriptedRunner
from penstock.sizing import make_scheduler
from tests.sim.fleets import make_fleet


def calibrate(**settings):
    recorder = Recorder()
    runner = ScriptedRunner(batches=[])
    fleet = make_fleet(**settings)
    engine = Engine(make_scheduler(fleet.config, fleet.sizing), runner, time.monotonic, on_step=recorder.hear)
    calibration = Calibration(engine, recorder, 1000, Random(4), rests_s=(0.005, 0.006))
    steps = calibration.run(1.0)
    assert not engine.has_work
    return recorder, runner, steps


def test_every_size_is_visited():
    recorder, runner, steps = calibrate()
    features = [sample.step.features for sample in recorder.samples]
    decodes = {one.num_singles for one in features if not one.num_long_tokens}
    assert {size for size in BATCHES if size <= 64} <= decodes
    alone = {one.num_tokens for one in features if one.num_chunks == 1}
    assert {*SHORT_PROMPTS, *LONG_PROMPTS} <= alone
    assert any(one.num_singles and one.num_long_tokens for one in features), "prompts join batches that generate"
    assert any(one.long_kv > one.num_long_tokens + 500 for one in features), "prompts whose beginning is cached"
    assert max(one.max_kv for one in features) > 1500
    assert 0 < len(steps) <= len(recorder.samples)
    alone = [batch.chunks[0].token_ids for batch in runner.batches if len(batch.chunks) == 1]
    prompts = [token_ids for token_ids in alone if len(token_ids) > 30]
    assert len(set(prompts)) == len(prompts)
    rested = {sample.step.features.num_tokens for sample in recorder.samples if sample.step.rest_s >= 0.005}
    assert set(RESTED_PROMPTS) <= rested
    assert {step for step in steps if step.rest_s >= 0.005}, "sleep takes no processor, and disturbs nobody"


def test_a_small_engine_is_measured_within_its_limits():
    recorder, _, _ = calibrate(num_blocks=40, max_sequences=4, max_batch_tokens=128)
    features = [sample.step.features for sample in recorder.samples]
    assert max(one.num_chunks for one in features) <= 4
    assert max(one.num_tokens for one in features) <= 128


def test_steps_that_others_disturbed_are_left_out():
    """Two processors' worth of work a second, but for a stretch in which others had one of them."""
    recorder, cpu_s = Recorder(), 0.0
    for number in range(1000):
        cpu_s += 0.01 if 400 <= number < 600 else 0.02
        step = StepTime(0.01 * number, 0.01, 0.0, True, 0.0, Features(1, 1, 0, 1, 5, 0, 5, 0))
        recorder.samples.append(Sample("some", step, 0.01 * number, cpu_s))
    kept = {round(step.start_s * 100) for step in recorder.quiet()}
    assert not kept & set(range(405, 595))
    assert kept >= set(range(380)) | set(range(620, 1000))
