"""Windows that free their blocks, over the CUDA runner: every text is the one of an engine that keeps all."""

from penstock.runtime.core.kinds.groups import PLAIN, BlockGroup, CacheGroups
from penstock.runtime.core.limits import Limits
from penstock.runtime.core.request import Request
from penstock.runtime.core.runner import Runner, RunnerShape
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.engine.engine import Engine
from penstock.runtime.execution.cuda.runner import CudaRunner
from penstock.runtime.execution.eager.runner import ModelRunner
from tests.gpu import machine
from tests.gpu.machine import BLOCK_SIZE, MAX_CONTEXT, MAX_SEQUENCES, assert_same, model, prompts, spec
from tests.runtime.driving import GREEDY, Text

LENGTHS = (3, 170, 40, 90, 233, 16, 5, 320, 64, 1, 28, 275)
ASKED = [Text(prompt, GREEDY) for prompt in prompts(*LENGTHS, seed=5)]


def answers(num_blocks: int, *, frees: bool, depth: int = 2) -> list[list[int]]:
    """Of all texts, forty tokens each."""
    first, *others = [BlockGroup(*group) for group in spec().cache_layout().groups]
    groups = CacheGroups(first, tuple(others)) if frees else PLAIN
    limits = Limits(num_blocks, BLOCK_SIZE, MAX_CONTEXT, 100, MAX_SEQUENCES, 100, 100_000, groups=groups)
    kind: type[Runner] = ModelRunner if machine.IS_DRY else CudaRunner
    runner = kind(model(), RunnerShape(num_blocks, BLOCK_SIZE, MAX_SEQUENCES, MAX_CONTEXT, frees))  # type: ignore[call-arg]
    engine = Engine(Scheduler(limits), runner, lambda: 0.0, depth=depth)
    for number, text in enumerate(ASKED):
        params = text.params.__class__(temperature=0.0, max_tokens=40)
        engine.submit(Request(request_id=number, prompt=text.prompt, params=params))
    said: list[list[int]] = [[] for _ in ASKED]
    while engine.has_work:
        for delta in engine.step():
            said[delta.request_id].extend(delta.token_ids)
    engine.scheduler.check()
    return said


def test_windows_that_free_change_no_text() -> None:
    kept = answers(256, frees=False)
    for num_blocks in (400, 50):
        assert_same(answers(num_blocks, frees=True), kept, ASKED)
