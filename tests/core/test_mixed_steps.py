"""Steps in which answers go on are as long as pays, and no longer: what they cost decides, not a constant."""

import pytest

from penstock.runtime.core.queue.batching import LONG_PROMPT, MAX_STEPS_WAITING, STRETCH, WAVE, MixedSteps
from penstock.runtime.core.queue.order import ORDERS
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.engine.engine import Engine
from penstock.runtime.engine.oracle import OracleRunner
from tests.core.steps import add, step
from tests.engine.answers import LIMITS, VOCAB_SIZE, assert_right, drain, make_request

MOST = 8192


def seen(answer_step_s: float, token_s: float) -> MixedSteps:
    steps = MixedSteps()
    for _ in range(50):
        steps.note(16, 16, answer_step_s)
        steps.note(16, 2048, 2048 * token_s)
    return steps


def test_nothing_is_known_before_both_kinds_of_step_were_seen():
    steps = MixedSteps()
    assert steps.size(16, 1000, MOST) == MOST
    steps.note(16, 16, 0.004)
    assert steps.size(16, 1000, MOST) == MOST
    steps.note(16, 2048, 0.05)
    assert steps.size(16, 1000, MOST) < MOST
    assert steps.size(0, 1000, MOST) == MOST, "nobody waits for the next token"


@pytest.mark.parametrize("answer_step_s", [0.002, 0.005, 0.02])
@pytest.mark.parametrize("token_s", [5e-6, 2.5e-5])
def test_a_step_takes_twice_as_long_as_one_of_answers_alone_and_is_whole_tiles(answer_step_s, token_s):
    size = seen(answer_step_s, token_s).size(16, 100, MOST)
    assert size % WAVE == 0 or size == 16 + WAVE
    assert abs(size * token_s - STRETCH * answer_step_s) <= WAVE * token_s


def test_what_waits_is_computed_in_few_steps():
    steps = seen(0.005, 2.5e-5)
    sizes = [steps.size(16, waiting, MOST) for waiting in (0, 3000, 10_000, 20_000, 100_000)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2] < sizes[-1] == MOST
    assert steps.size(16, MAX_STEPS_WAITING * sizes[0] // 2, MOST) == sizes[0]
    assert MAX_STEPS_WAITING * (sizes[3] + WAVE) >= 20_000


def test_a_long_prompt_has_a_step_for_itself():
    steps = seen(0.005, 2.5e-5)
    size = steps.size(16, 6000, MOST, num_first=3000)
    assert 3016 <= size < 3016 + WAVE
    assert steps.size(16, 9000, MOST, num_first=9000) == MOST
    assert steps.size(16, 3000, MOST, num_first=1000) < 1024, "a short one comes before a long one, in a short step"


@pytest.mark.parametrize(
    ("prompts", "sizes"),
    [
        ((3000,), [3001]),
        ((LONG_PROMPT + 1,), [LONG_PROMPT + 2]),
        ((LONG_PROMPT,), [3 * WAVE]),
        ((12_000,), [MOST, 12_002 - MOST]),
        ((12_000, 5), [MOST, 12_007 - MOST]),
    ],
    ids=["it waits", "it is just long enough", "it is not long", "it is begun", "it is begun and another waits"],
)
def test_the_first_prompt_in_order_is_the_one_whose_turn_it_is(prompts, sizes):
    limits = LIMITS._replace(max_batch_tokens=MOST, num_blocks=1 << 14, max_context=1 << 14, max_waiting_tokens=1 << 20)
    scheduler = Scheduler(limits, ORDERS["first-come"](), mixed=seen(0.005, 2.5e-5))
    add(scheduler, 1, num_prompt=3, max_tokens=100)
    step(scheduler)
    for number, num_prompt in enumerate(prompts, 2):
        add(scheduler, number, num_prompt=num_prompt, max_tokens=100)
    assert [step(scheduler)[0].num_tokens for _ in sizes] == sizes


def test_a_step_that_was_held_up_hardly_counts():
    steps = seen(0.005, 2.5e-5)
    before = steps.size(16, 100, MOST)
    steps.note(16, 16, 5.0)
    assert steps.size(16, 100, MOST) <= before + 2 * WAVE


def test_every_answer_has_its_place_and_prompts_go_on():
    steps = seen(1e-6, 1.0)
    assert steps.size(500, 100, MOST) == 500 + WAVE
    assert steps.size(500, 100, 512) == 512


def test_an_engine_s_steps_follow_what_they_cost():
    limits = LIMITS._replace(max_batch_tokens=1024, num_blocks=4096, max_context=4096, max_sequences=8)
    now = [0.0]

    class Timed(OracleRunner):
        def launch(self, batch, masks=None):
            sizes.append((sum(chunk.length == 1 for chunk in batch.chunks), batch.num_tokens))
            now[0] += max(0.004, 2e-5 * batch.num_tokens)
            return super().launch(batch)

    sizes: list[tuple[int, int]] = []
    runner = Timed(limits.num_blocks, limits.block_size, vocab_size=VOCAB_SIZE)
    scheduler = Scheduler(limits, ORDERS["first-come"](), mixed=MixedSteps())
    engine = Engine(scheduler, runner, lambda: now[0])
    requests = [make_request(number, (number,) * 1500, max_tokens=60) for number in range(6)]
    for request in requests:
        engine.submit(request)
    assert_right(requests, drain(engine), limits)
    late = make_request(10, range(200), max_tokens=100), make_request(11, (7,) * 900, max_tokens=5)
    engine.submit(late[0])
    for _ in range(30):
        engine.step()
    sizes.clear()
    engine.submit(late[1])
    drain(engine)
    beside = [tokens for answers, tokens in sizes if 0 < answers < tokens]
    assert beside, "the late prompt went beside an answer"
    assert max(beside) <= 3 * WAVE + 1, f"twice 4 ms at 20 us a token: {sizes}"
