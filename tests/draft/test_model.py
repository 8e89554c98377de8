"""A draft model follows its generations through rejection, preemption and rows that change hands: proved by the oracle, which
notices any wrong block, token or row."""

from collections.abc import Callable, Iterator

from penstock.runtime.core.batch import Batch, StepOutput
from penstock.runtime.core.runner import Masks
from penstock.runtime.draft.drafter import Drafter, View
from penstock.runtime.draft.drafters.model import PIECE, ModelDrafter
from penstock.runtime.draft.speculator import Speculator
from penstock.runtime.engine.oracle import OracleRunner
from tests.engine.answers import LIMITS, VOCAB_SIZE, assert_right, drain, expected_tokens, make_engine
from tests.engine.workloads import make_workload

BLOCK_SIZE, MAX_CONTEXT = 4, 400
NUM_BLOCKS = MAX_CONTEXT // BLOCK_SIZE


def make_drafter(
    num_rows: int = 2, runner: OracleRunner | None = None, clock: Callable[[], float] | None = None
) -> ModelDrafter:
    """The oracle as its own draft: greedy generations it guesses rightly, drawn ones it does not."""
    times: Iterator[int] = iter(range(10**9))
    return ModelDrafter(
        runner or OracleRunner(num_rows * NUM_BLOCKS, BLOCK_SIZE, vocab_size=VOCAB_SIZE),
        num_rows=num_rows,
        max_context=MAX_CONTEXT,
        block_size=BLOCK_SIZE,
        vocab_size=VOCAB_SIZE,
        clock=clock or (lambda: float(next(times))),
    )


def right(tokens: list[int], count: int) -> tuple[int, ...]:
    from penstock.runtime.draft.drafters.model import GREEDY

    return tuple(expected_tokens(tuple(tokens), GREEDY, 0, count, VOCAB_SIZE))


def guess(drafter: Drafter, *texts: tuple[int, list[int]], most: int = 3) -> list[tuple[int, ...]]:
    return [found.tokens for found in drafter.propose([View((key, 0), text, 2) for key, text in texts], most)]


def test_it_guesses_what_the_model_would_say_whatever_became_of_its_last_guess() -> None:
    drafter = make_drafter()
    one, two = [1, 2, 3], [4, 5]
    for extra in ((), (9,), (9, 8, 7), right([1, 2, 3, 9, 9, 8, 7], 2)):
        one += extra
        two += right(two, 2)
        assert guess(drafter, (1, one), (2, two)) == [right(one, 3), right(two, 3)]


def test_rows_change_hands() -> None:
    drafter = make_drafter(num_rows=1)
    assert guess(drafter, (1, [1, 2, 3])) == [right([1, 2, 3], 3)]
    assert guess(drafter, (2, [7, 7])) == [right([7, 7], 3)], "one that drafts no more gives up its row"
    assert guess(drafter, (1, [1, 2, 3, 4]), (2, [7, 7, 8])) == [(), right([7, 7, 8], 3)]
    drafter.finish(View((2, 0), [], 0))
    assert guess(drafter, (1, [1, 2, 3, 4])) == [right([1, 2, 3, 4], 3)]


def test_a_long_prompt_is_read_in_pieces() -> None:
    drafter = make_drafter()
    text = [(7 * i) % VOCAB_SIZE for i in range(PIECE + 40)]
    assert guess(drafter, (1, text)) == [()]
    assert guess(drafter, (1, text)) == [right(text, 3)]


def test_beyond_its_context_it_guesses_nothing() -> None:
    assert guess(make_drafter(), (1, [1] * (MAX_CONTEXT - 2))) == [()]


class TimedRunner(OracleRunner):
    """Takes a second for every token of a step."""

    now = 0.0

    def launch(self, batch: Batch, masks: Masks | None = None) -> StepOutput:
        self.now += batch.num_tokens
        return super().launch(batch, masks)


def test_a_guess_is_not_as_slow_as_the_prompt_that_is_read_before_it() -> None:
    """Else a drafter that has read one prompt is held to be too slow to be asked again."""
    runner = TimedRunner(NUM_BLOCKS, BLOCK_SIZE, vocab_size=VOCAB_SIZE)
    drafter = make_drafter(1, runner, clock=lambda: runner.now)
    text = [(7 * i) % VOCAB_SIZE for i in range(200)]
    assert guess(drafter, (1, text)) == [right(text, 3)]
    assert drafter.seconds(3) == 3.0
    text += right(text, 4)
    assert guess(drafter, (1, text)) == [right(text, 3)]
    assert 3.0 <= drafter.seconds(3) < 3.5, "two tokens are read where all guesses came true"


def test_answers_are_the_same_and_come_in_fewer_steps() -> None:
    requests = make_workload(5, 8)
    for limits in (LIMITS, LIMITS._replace(num_blocks=9, max_batch_tokens=16)):
        engine = make_engine(limits, speculator=Speculator([make_drafter()], length=3))
        for request in requests:
            engine.submit(request)
        assert_right(requests, drain(engine), limits)
        assert engine.proposer.proposals is not None
        assert engine.proposer.proposals.num_accepted > 0
