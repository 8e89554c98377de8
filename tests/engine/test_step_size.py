"""A start in a busy moment is mended while serving: steps are as long as they may take, no longer and no shorter."""

import pytest

from penstock.runtime.core.batch import Batch
from penstock.runtime.core.limits import StepSize
from penstock.runtime.core.queue.order import ORDERS
from penstock.runtime.core.runner import Ticket
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.engine.engine import Engine
from penstock.runtime.engine.oracle import OracleRunner
from tests.engine.answers import LIMITS, VOCAB_SIZE, assert_right, drain, make_request

SIZE = 32
STEP_S = 1.0
ROOMY = LIMITS._replace(max_batch_tokens=SIZE, num_blocks=2048, max_context=2048)


class PacedRunner(OracleRunner):
    """A device that takes so long for each token of a step, on a clock of its own."""

    def __init__(self, seconds_per_token: float) -> None:
        super().__init__(ROOMY.num_blocks, ROOMY.block_size, vocab_size=VOCAB_SIZE)
        self.seconds_per_token = seconds_per_token
        self.now = 0.0
        self.sizes: list[int] = []

    def launch(self, batch: Batch, masks: object = None) -> Ticket:
        self.now += self.seconds_per_token * batch.num_tokens
        self.sizes.append(batch.num_tokens)
        return super().launch(batch)


def paced_engine(runner: PacedRunner) -> Engine:
    step_size = StepSize(step_s=STEP_S, least=SIZE // 2, most=4 * SIZE)
    return Engine(Scheduler(ROOMY, ORDERS["first-come"]()), runner, lambda: runner.now, step_size=step_size)


@pytest.mark.parametrize(
    ("step_s", "size"), [(STEP_S / 4, 2 * SIZE), (STEP_S / 1000, 4 * SIZE), (STEP_S, SIZE), (4 * STEP_S, SIZE // 2)]
)
def test_full_steps_take_about_the_time_they_may(step_s, size):
    runner = PacedRunner(step_s / SIZE)
    engine = paced_engine(runner)
    requests = [make_request(number, (number,) * 1000, max_tokens=2) for number in range(2)]
    for request in requests:
        engine.submit(request)
    assert_right(requests, drain(engine), ROOMY)
    assert engine.scheduler.limits.max_batch_tokens == size
    assert max(runner.sizes) == max(size, SIZE)


def test_steps_that_are_not_full_say_nothing():
    runner = PacedRunner(0.0)
    engine = paced_engine(runner)
    for number in range(20):
        engine.submit(make_request(number, range(SIZE // 2), max_tokens=1))
        drain(engine)
    assert engine.scheduler.limits.max_batch_tokens == SIZE


@pytest.mark.parametrize("num_answers", [3, 7])
def test_a_target_is_kept_beside_answers_and_prompts_advance_beside_any_number_of_them(num_answers):
    runner = PacedRunner(STEP_S / 8)  # eight tokens a step, which seven answers leave no room in
    step_size = StepSize(step_s=STEP_S / 2, least=4, most=4 * SIZE, is_target=True)
    engine = Engine(Scheduler(ROOMY, ORDERS["first-come"]()), runner, lambda: runner.now, step_size=step_size)
    requests = [make_request(number, (number,), max_tokens=120) for number in range(num_answers)]
    requests.append(make_request(99, (9,) * 200, max_tokens=1))
    for request in requests:
        engine.submit(request)
    assert_right(requests, drain(engine), ROOMY)
    assert max(runner.sizes) <= max(8, num_answers + 1 + step_size.least)
    assert sum(size > num_answers for size in runner.sizes) < 100, "the prompt has ended beside them"


def test_where_room_was_set_aside_at_start_steps_shrink_to_a_target_and_never_outgrow_it():
    for seconds, size in ((4 * STEP_S, SIZE // 2), (STEP_S / 1000, SIZE)):
        runner = PacedRunner(seconds / SIZE)
        step_size = StepSize(step_s=STEP_S, least=SIZE // 2, most=4 * SIZE, is_bounded_by_start=True)
        engine = Engine(Scheduler(ROOMY, ORDERS["first-come"]()), runner, lambda r=runner: r.now, step_size=step_size)
        requests = [make_request(number, (number,) * 1000, max_tokens=2) for number in range(2)]
        for request in requests:
            engine.submit(request)
        assert_right(requests, drain(engine), ROOMY)
        assert engine.scheduler.limits.max_batch_tokens == size
        assert max(runner.sizes) <= SIZE
