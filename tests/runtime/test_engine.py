"""The real scheduler over the real runner: whatever it decides, every text is the one it would be alone."""

import random

import pytest

from penstock.runtime.core.batch import Delta
from penstock.runtime.core.limits import Limits
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.engine.engine import Engine
from penstock.runtime.execution.eager.runner import ModelRunner
from penstock.runtime.layers.decoder import Decoder
from tests.runtime.driving import BLOCK_SIZE, Text, alone, tiny_model

PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=30),
    SamplingParams(seed=1, max_tokens=17),
    SamplingParams(seed=2, n=3, temperature=0.8, max_tokens=12),
    SamplingParams(seed=3, repetition_penalty=1.4, presence_penalty=0.5, max_tokens=25),
    SamplingParams(seed=4, prompt_logprobs=1, logprobs=1, n=2, max_tokens=12),
    SamplingParams(seed=5, banned_sequences=((3, 4), (5,)), min_tokens=4, stop_token_ids=(7, 8), max_tokens=40),
]


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny_model()


def requests(count: int, seed: int) -> list[Request]:
    """Prompts that share beginnings, so that the prefix cache is hit."""
    source = random.Random(seed)
    stems = [[source.randrange(96) for _ in range(40)] for _ in range(2)]
    made = []
    for number in range(count):
        prompt = source.choice(stems)[: source.randrange(41)] + [
            source.randrange(96) for _ in range(source.randrange(1, 20))
        ]
        made.append(Request(request_id=number, prompt=tuple(prompt), params=source.choice(PARAMS)))
    return made


def serve(engine: Engine, asked: list[Request], *, together: bool = False) -> dict[tuple[int, int], list[Delta]]:
    """Requests come one a step, or all at once."""
    answers: dict[tuple[int, int], list[Delta]] = {}
    for request in asked:
        engine.submit(request)
        for delta in () if together else engine.step():
            answers.setdefault((delta.request_id, delta.choice), []).append(delta)
    while engine.has_work:
        for delta in engine.step():
            answers.setdefault((delta.request_id, delta.choice), []).append(delta)
    return answers


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("num_blocks", "max_batch_tokens", "prefix_caching", "together"),
    [(200, 256, True, False), (200, 256, True, True), (24, 24, True, False), (24, 13, False, False)],
)
def test_every_answer_is_the_one_it_would_be_alone(
    model: Decoder, depth: int, num_blocks: int, max_batch_tokens: int, prefix_caching: bool, together: bool
) -> None:
    limits = Limits(num_blocks, BLOCK_SIZE, 160, max_batch_tokens, 10, 100, 10_000, prefix_caching)
    scheduler = Scheduler(limits)
    engine = Engine(
        scheduler, ModelRunner(model, RunnerShape(num_blocks, BLOCK_SIZE, 10, 160)), lambda: 0.0, depth=depth
    )
    asked = requests(24 if num_blocks == 24 else 10, seed=depth)
    answers = serve(engine, asked, together=together)
    scheduler.check()
    if num_blocks == 24:
        assert scheduler.num_preemptions > 0
    for request in asked:
        for choice in range(request.params.n):
            deltas = answers[request.request_id, choice]
            tokens = [token for delta in deltas for token in delta.token_ids]
            expected = alone(model, Text(request.prompt, request.params, choice), len(tokens))
            assert tokens == expected
            is_stopped = tokens[-1] in request.params.stop_token_ids
            assert is_stopped or len(tokens) == request.params.max_tokens
            if request.params.logprobs is not None:
                assert [each.token_id for delta in deltas for each in delta.logprobs] == tokens
            if request.params.prompt_logprobs is not None and choice == 0:
                reported = [each.token_id for delta in deltas for each in delta.prompt_logprobs]
                assert reported == list(request.prompt[1:])
