"""A runner that plays given tokens."""

from penstock.runtime.core.batch import Batch, Chunk
from penstock.runtime.engine.scripted import ScriptedRunner
from tests.engine.answers import make_request, serve

BATCH = Batch(1, (Chunk(0, 0, 3, (1, 2, 3), (0,), False, None), Chunk(4, 7, 1, (), (), True, None)))


def test_it_draws_what_the_script_says_where_a_token_is_asked_for():
    runner = ScriptedRunner(lambda row, position: 100 * row + position)
    assert runner.launch(BATCH).result().tokens == ((), (408,))


def test_it_remembers_batches_if_asked():
    runner = ScriptedRunner(batches=[])
    runner.launch(BATCH)
    assert runner.batches == [BATCH]


def test_it_serves():
    answers = serve([make_request(1, (1, 2, 3), max_tokens=4)], runner=ScriptedRunner())
    assert answers[1, 0].tokens == [3, 4, 5, 6]
