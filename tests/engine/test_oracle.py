"""The oracle: its answers are a pure function, and anything read from a wrong place changes them."""

import pytest

from penstock.runtime.core.batch import Arrival, Batch, Chunk
from penstock.runtime.core.request import SamplingParams
from penstock.runtime.engine.oracle import OracleRunner
from tests.engine.answers import expected_tokens

PARAMS = SamplingParams(seed=3)
PROMPT = (5, 6, 7, 8, 9, 10)


def arrive(row, blocks, prompt=PROMPT, *, start=0, choice=0):
    arrival = Arrival(PARAMS, choice, len(prompt), (), "")
    return Chunk(row, start, len(prompt) - start, prompt[start:], blocks, True, arrival)


def decode(row, start, new_blocks=()):
    return Chunk(row, start, 1, (), new_blocks, True, None)


def run(runner, *chunks, copies=()):
    return runner.launch(Batch(1, chunks, copies)).result().tokens


def make_runner():
    return OracleRunner(16, 4, vocab_size=1000)


def test_answers_are_those_expected():
    runner = make_runner()
    drawn = [run(runner, arrive(0, (3, 9)))[0][0]]
    for start, new_blocks in ((6, ()), (7, ()), (8, (1,)), (9, ())):
        drawn.append(run(runner, decode(0, start, new_blocks))[0][0])
    assert drawn == expected_tokens(PROMPT, PARAMS, 0, 5, 1000)
    assert drawn != expected_tokens(PROMPT, PARAMS, 1, 5, 1000)
    assert drawn != expected_tokens(PROMPT, SamplingParams(seed=4), 0, 5, 1000)
    assert drawn != expected_tokens(PROMPT[:-1], PARAMS, 0, 5, 1000)


def test_greedy_answers_have_no_seed():
    greedy = [SamplingParams(temperature=0.0, seed=seed) for seed in (1, 2)]
    one, two = (expected_tokens(PROMPT, params, choice, 9, 1000) for choice, params in enumerate(greedy))
    assert one == two


@pytest.mark.parametrize("position", range(6))
def test_every_position_is_read_back(position):
    runner = make_runner()
    run(runner, arrive(0, (3, 9)))
    block, offset = divmod(position, 4)
    runner._digests[(3, 9)[block]][offset] ^= 1
    assert run(runner, decode(0, 6)) != ((expected_tokens(PROMPT, PARAMS, 0, 2, 1000)[1],),)


@pytest.mark.parametrize("copies", [(), ((3, 1),)])
def test_a_lost_copy_is_noticed(copies):
    """A second sequence shares the first block and owns a copy of the second."""
    runner = make_runner()
    run(runner, arrive(0, (3, 9)))
    wanted = expected_tokens(PROMPT, PARAMS, 1, 1, 1000)
    assert run(runner, arrive(1, (3, 1), start=5, choice=1), copies=copies) != (tuple(wanted),)
    assert run(runner, arrive(1, (3, 1), start=5, choice=1), copies=((9, 1),)) == (tuple(wanted),)


def test_a_step_launched_again_changes_nothing():
    """Whatever of it, or of steps after it, was computed before."""
    runner = make_runner()
    run(runner, arrive(0, (3, 9)), arrive(1, (2, 4), PROMPT[::-1]))
    steps = [(decode(0, 6), decode(1, 6)), (decode(0, 7), decode(1, 7)), (decode(0, 8, (1,)), decode(1, 8, (5,)))]
    first = [run(runner, *step) for step in steps]
    for number in range(len(steps)):
        assert [run(runner, *step) for step in steps[number:]] == first[number:]
        assert [run(runner, step[0]) for step in steps[number:]] == [tokens[:1] for tokens in first[number:]]


def test_about_a_third_of_the_guesses_are_wrong():
    runner = OracleRunner(64, 4, vocab_size=1000, num_drafts=3)
    right = wrong = 0
    for number in range(200):
        prompt = (number, 1, 2)
        output = runner.launch(Batch(1, (arrive(0, (3, 9), prompt),))).result()
        truth = expected_tokens(prompt, PARAMS, 0, 4, 1000)
        assert output.tokens == ((truth[0],),)
        for guess, token in zip(output.drafts[0], truth[1:]):
            right += guess == token
            wrong += guess != token
            if guess != token:
                break
    assert 0.2 < wrong / (right + wrong) < 0.5
