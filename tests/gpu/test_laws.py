"""What a sequence is given never depends on how steps are made up: every law of the plain runner, over the CUDA runner."""

import dataclasses
from collections import deque

import torch

from penstock.runtime.core.request import SamplingParams
from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.execution.eager.runner import ModelRunner
from tests.gpu.machine import (
    BLOCK_SIZE,
    EVERY_PARAMETER,
    MAX_CONTEXT,
    MAX_SEQUENCES,
    NUM_BLOCKS,
    NUM_TOKENS,
    GpuDriver,
    assert_same,
    cpu_model,
    cuda_runner,
    finish,
    model,
    prompts,
)
from tests.runtime.driving import GREEDY, Text

LENGTHS = (3, 17, 40, 90, 33, 16, 5, 120, 64, 1, 28, 75)


def texts(params: list[SamplingParams] | None = None, **how: object) -> list[Text]:
    asked = params or [GREEDY] * len(LENGTHS)
    made = prompts(*(LENGTHS[number % len(LENGTHS)] for number in range(len(asked))))
    return [Text(prompt, each, **how) for prompt, each in zip(made, asked)]  # type: ignore[arg-type]


def alone(params: list[SamplingParams] | None = None) -> list[list[int]]:
    return [finish([text])[0] for text in texts(params)]


def test_a_batch_of_many_gives_what_batches_of_one_give() -> None:
    assert_same(finish(texts()), alone(), texts())


def test_every_parameter_draws_in_company_as_alone() -> None:
    assert_same(finish(texts(EVERY_PARAMETER)), alone(EVERY_PARAMETER), texts(EVERY_PARAMETER))


def test_plain_rows_are_drawn_the_same_bit_for_bit_whoever_asks_for_more_beside_them() -> None:
    """In a batch of the same size nothing of a plain row may change: neither its scores nor how they are drawn from."""
    plain = [GREEDY, SamplingParams(seed=1), SamplingParams(seed=2, temperature=0.7)] * 4
    for special in EVERY_PARAMETER[3:]:
        mixed = [*plain[:-1], special]
        assert finish(texts(mixed))[:-1] == finish(texts(plain))[:-1], special


def test_a_chunked_prompt_is_a_whole_one() -> None:
    whole = finish(texts())
    for chunk_size in (7, 16, 50):
        assert_same(finish(texts(chunk_size=chunk_size)), whole, texts())


def test_a_cached_prefix_is_a_cold_one() -> None:
    driver = GpuDriver()
    stem = prompts(48)[0]
    first = Text((*stem, 7, 8, 9))
    driver.finish([first], 2)
    warm = [Text((*stem, *tail), start=48, blocks=first.blocks[:3]) for tail in ((1,), (2, 3), (4, 5, 6))]
    cold = [Text(text.prompt) for text in warm]
    assert_same(driver.finish(warm, NUM_TOKENS), finish(cold), cold)


def test_a_preempted_sequence_goes_on_as_if_it_had_not_been() -> None:
    undisturbed = finish(texts(EVERY_PARAMETER))
    driver, disturbed = GpuDriver(), texts(EVERY_PARAMETER)
    for number in range(6):
        driver.step(disturbed)
        driver.leave(disturbed[(5 * number) % len(disturbed)])
    assert_same(driver.finish(disturbed, NUM_TOKENS), undisturbed, disturbed)


def test_recorded_steps_give_what_launched_ones_give() -> None:
    eager = ModelRunner(model(), RunnerShape(NUM_BLOCKS, BLOCK_SIZE, MAX_SEQUENCES, MAX_CONTEXT))
    assert_same(finish(texts(EVERY_PARAMETER)), finish(texts(EVERY_PARAMETER), eager), texts(EVERY_PARAMETER))


def test_the_gpu_gives_what_the_cpu_gives() -> None:
    cpu = ModelRunner(cpu_model(), RunnerShape(NUM_BLOCKS, BLOCK_SIZE, MAX_SEQUENCES, MAX_CONTEXT))
    assert_same(finish(texts(EVERY_PARAMETER)), finish(texts(EVERY_PARAMETER), cpu), texts(EVERY_PARAMETER))


def test_drafts_change_no_text() -> None:
    plain = finish(texts(EVERY_PARAMETER))
    guessed = texts(EVERY_PARAMETER)
    for text, answer in zip(guessed, plain):
        text.drafts = [-1, *answer[1:6], 0, *answer[7:]]
    assert_same(finish(guessed), plain, guessed)


def test_steps_under_way_together_give_what_steps_one_by_one_give() -> None:
    """A step is launched before the tokens of the one before it have reached the host."""
    apart = finish(texts(EVERY_PARAMETER))
    driver, together = GpuDriver(), texts(EVERY_PARAMETER)
    driver.step(together)
    launched = deque([(driver.batch(together), 0)])
    tickets = deque([driver.runner.launch(launched[0][0])])
    for _ in range(NUM_TOKENS - 2):
        later = [dataclasses.replace(text, start=text.start + 1, tokens=[*text.tokens, 0]) for text in together]
        batch = driver.batch(later)
        for text, ahead in zip(together, later):
            text.blocks = ahead.blocks
        launched.append((batch, 0))
        tickets.append(driver.runner.launch(batch))
        driver.take(together, launched.popleft()[0], tickets.popleft().result())
    driver.take(together, launched.popleft()[0], tickets.popleft().result())
    assert_same([text.answer[:NUM_TOKENS] for text in together], apart, together)


class Forbidden:
    def __call__(self, *_: object, **__: object) -> None:
        raise AssertionError("a step was launched piece by piece")


def test_no_parameter_takes_a_step_off_its_graph() -> None:
    runner = cuda_runner()
    forward = getattr(runner, "_forward")  # noqa: B009
    for special in EVERY_PARAMETER:
        driver, batch = GpuDriver(), texts([GREEDY] * 7 + [special])
        driver.step(batch)
        eager = getattr(forward, "_eager", None)
        forward._eager = Forbidden()
        try:
            driver.finish(batch, 4)
        except AssertionError as error:
            raise AssertionError(f"{special}: {error}") from error
        finally:
            forward._eager = eager


def test_a_few_drafts_are_checked_by_recorded_steps() -> None:
    """Of some sequences more than of others, right ones and wrong ones, whatever is asked of the draws."""
    forward = getattr(cuda_runner(), "_forward")  # noqa: B009
    for params in ([GREEDY], [GREEDY] * 8, [GREEDY, *EVERY_PARAMETER[1:13]], [SamplingParams(seed=4, logprobs=2)] * 3):
        plain = finish(texts(params))
        driver, guessed = GpuDriver(), texts(params)
        for index, (text, answer) in enumerate(zip(guessed, plain)):
            wrong = [(token + 1) % 5000 if place % 7 == 3 else token for place, token in enumerate(answer)]
            text.drafts = [-1 if (place + index) % 5 == 0 else token for place, token in enumerate(wrong)]
        driver.step(guessed)
        eager = getattr(forward, "_eager", None)
        forward._eager = Forbidden()
        try:
            assert_same(driver.finish(guessed, NUM_TOKENS), plain, guessed)
        finally:
            forward._eager = eager


class Masks:
    """Every row of scores of some chunks may draw one of few tokens."""

    def __init__(self, chunks: tuple[int, ...], allowed: list[set[int]]) -> None:
        self.chunks = chunks
        self.num_rows = len(allowed)
        self._allowed = allowed

    def fill(self, bits: memoryview) -> None:
        width = len(bits) // self.num_rows
        words = torch.zeros((self.num_rows, width), dtype=torch.uint8)
        for row, tokens in enumerate(self._allowed):
            for token in tokens:
                words[row, token // 8] |= 1 << token % 8
        bits[:] = words.numpy().tobytes()


def test_masks_hold_for_their_rows_alone() -> None:
    asked = [GREEDY, SamplingParams(seed=5), SamplingParams(seed=6, top_p=0.8, repetition_penalty=1.3), GREEDY]
    free = finish(texts(asked))
    driver, masked = GpuDriver(), texts(asked)
    for number in range(8):
        allowed = [{10 + number, 4000 + number}, {20, 2222, 4999}]
        batch = driver.batch(masked)
        ticket = driver.runner.launch(batch, Masks((0, 2), allowed))
        ticket.draw()
        driver.take(masked, batch, ticket.result())
        assert masked[0].answer[-1] in allowed[0]
        assert masked[2].answer[-1] in allowed[1]
    assert_same([masked[1].answer, masked[3].answer], [free[1][:8], free[3][:8]], [masked[1], masked[3]])


def test_logprobs_are_those_of_the_cpu() -> None:
    asked = [SamplingParams(temperature=0.0, logprobs=4, prompt_logprobs=2)] * 3
    cpu = ModelRunner(cpu_model(), RunnerShape(NUM_BLOCKS, BLOCK_SIZE, MAX_SEQUENCES, MAX_CONTEXT))
    mine, theirs = texts(asked, chunk_size=19), texts(asked)
    finish(mine)
    finish(theirs, cpu)
    for ours, other in zip(mine, theirs):
        assert len(ours.logprobs) >= NUM_TOKENS
        assert len(ours.prompt_logprobs) == len(ours.prompt) - 1
        pairs = [*zip(ours.logprobs[:5], other.logprobs[:5]), *zip(ours.prompt_logprobs, other.prompt_logprobs)]
        for here, there in pairs:
            assert here.token_id == there.token_id
            assert abs(here.logprob - there.logprob) < 0.01
            assert all(abs(a[1] - b[1]) < 0.01 for a, b in zip(here.top, there.top, strict=True))
