"""Whoever guesses, and however badly, every answer is the one it would be alone: with preemption, forks, cached prefixes,
penalties, seeds. Draws are a function of seed and position, so equal tokens are equal distributions."""

from collections.abc import Callable
from itertools import count

import pytest
import torch

from penstock.runtime.core.limits import Limits
from penstock.runtime.core.runner import RunnerShape
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.draft.drafter import Drafter
from penstock.runtime.draft.drafters.heads import HeadDrafter
from penstock.runtime.draft.drafters.model import ModelDrafter
from penstock.runtime.draft.speculator import Speculator
from penstock.runtime.engine.engine import Engine
from penstock.runtime.execution.eager.runner import ModelRunner
from penstock.runtime.execution.heads.eagle import EagleHeads, EagleShape
from penstock.runtime.execution.heads.medusa import MedusaHeads
from penstock.runtime.execution.heads.mtp import MtpHeads, MtpLayer, mtp_spec
from penstock.runtime.execution.heads.states import StateStore
from penstock.runtime.execution.heads.target import FloatTarget
from penstock.runtime.execution.load.parameters import fill_dummy
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.train.eagle import EagleModule
from penstock.runtime.train.medusa import MedusaModule
from tests.runtime.driving import BLOCK_SIZE, Text, alone, tiny_model
from tests.runtime.test_engine import requests, serve

NUM_BLOCKS, CONTEXT, ROWS = 24, 160, 10


def clock() -> Callable[[], float]:
    ticks = count()
    return lambda: float(next(ticks))


def eagle(model: Decoder, store: StateStore) -> Drafter:
    torch.manual_seed(1)
    target = FloatTarget(model)
    module = EagleModule(EagleShape(32, 4, 2, 48), target)
    return HeadDrafter(EagleHeads(module.layer, target, target.chooser(None), None, store), clock())


def medusa(model: Decoder, store: StateStore) -> Drafter:
    torch.manual_seed(2)
    target = FloatTarget(model)
    module = MedusaModule(32, 3)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    blocks = [[target.hold(linear.weight, linear.bias)] for linear in module.linears]
    return HeadDrafter(MedusaHeads(blocks, [target.chooser(None)], None, store), clock())


def mtp(model: Decoder, store: StateStore) -> Drafter:
    layer = MtpLayer(mtp_spec(model.spec), torch.float32)
    fill_dummy(layer, torch.device("cpu"), seed=1)
    return HeadDrafter(MtpHeads(layer, model.spec, FloatTarget(model), store), clock())


def another(model: Decoder) -> Drafter:
    """A draft model with the target's own weights: every guess of a greedy answer comes true."""
    blocks_per_row = CONTEXT // BLOCK_SIZE
    runner = ModelRunner(model, RunnerShape(4 * blocks_per_row, BLOCK_SIZE, 4, CONTEXT))
    return ModelDrafter(
        runner, num_rows=4, max_context=CONTEXT, block_size=BLOCK_SIZE, vocab_size=96, clock=clock()
    )  # fmt: skip


DRAFTERS: dict[str, Callable[[Decoder, StateStore], Drafter]] = {
    "eagle": eagle,
    "medusa": medusa,
    "mtp": mtp,
    "model": lambda model, store: another(model),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_answer_is_the_one_it_would_be_alone(name: str) -> None:
    model = tiny_model()
    store = StateStore(32, torch.device("cpu"))
    speculator = Speculator([DRAFTERS[name](model, store)], length=3)
    scheduler = Scheduler(Limits(NUM_BLOCKS, BLOCK_SIZE, CONTEXT, 24, ROWS, 100, 10_000, True))
    runner = ModelRunner(model, RunnerShape(NUM_BLOCKS, BLOCK_SIZE, ROWS, CONTEXT))
    runner.states = store
    engine = Engine(scheduler, runner, lambda: 0.0, speculator=speculator)
    asked = requests(9, seed=4)
    answers = serve(engine, asked)
    scheduler.check()
    assert scheduler.num_preemptions > 0
    assert engine.proposer.proposals is not None
    assert engine.proposer.proposals.num_checked > 0
    if name == "all layers":
        assert engine.proposer.proposals.num_accepted > 0
    for request in asked:
        for choice in range(request.params.n):
            tokens = [token for delta in answers[request.request_id, choice] for token in delta.token_ids]
            assert tokens == alone(model, Text(request.prompt, request.params, choice), len(tokens))
