"""Prefix-aware routing on conversations: nearly all that one endless cache would give, with the load spread evenly."""

import random

import pytest

from penstock.config import CacheConfig, EngineConfig
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.sizing import Sizing
from penstock.service.router.policy import POLICIES
from penstock.tools.sim.simulation import Fleet, simulate

BLOCK = 16
NUM_REPLICAS = 4


class EvenSteps:
    def step_s(self, batch) -> float:
        return 0.01

    def run_s(self, batch, num_steps: int) -> list[float]:
        return [0.01] * num_steps


def conversations(num_conversations: int, seed: int) -> list[Request]:
    """In the shape of Mooncake's trace: all begin with one system prompt, and each turn with the whole talk before it."""
    draw = random.Random(seed)
    turns = []
    for _ in range(num_conversations):
        at_s, talk = draw.uniform(0.0, 60.0), [1] * BLOCK
        for _ in range(draw.choice((1, 1, 2, 3, 6))):
            talk = talk + [draw.randrange(2, 250) for _ in range(BLOCK * draw.randrange(2, 16))]
            turns.append((at_s, tuple(talk[: len(talk) - draw.randrange(BLOCK)])))
            at_s += draw.uniform(1.0, 10.0)
    params = SamplingParams(temperature=0.0, max_tokens=12)
    return [
        Request(request_id=number, prompt=prompt, params=params, arrival_s=at_s)
        for number, (at_s, prompt) in enumerate(sorted(turns))
    ]


def endless(requests: list[Request]) -> int:
    """Tokens that one cache which forgets nothing gives, were every prompt there before the next comes."""
    seen: set[tuple[int, ...]] = set()
    found = 0
    for request in requests:
        prompt = request.prompt
        held = 0
        while held + BLOCK < len(prompt) and prompt[: held + BLOCK] in seen:
            held += BLOCK
        found += held
        seen.update(prompt[:end] for end in range(BLOCK, len(prompt) + 1, BLOCK))
    return found


@pytest.mark.parametrize("policy", ["prefix-predicted", "prefix-reported"])
def test_four_caches_give_nearly_what_an_endless_one_would_and_share_the_load(policy):
    requests = conversations(300, seed=4)
    num_blocks = 4000
    sizing = Sizing(
        num_blocks=num_blocks,
        block_size=BLOCK,
        block_bytes=1,
        max_context=4096,
        weight_bytes=0,
        workspace_bytes=0,
        free_bytes=0,
    )
    config = EngineConfig(cache=CacheConfig(num_blocks=num_blocks))

    def cached(name: str) -> tuple[float, float]:
        fleet = Fleet(config, sizing, EvenSteps(), NUM_REPLICAS, policy=lambda: POLICIES[name](0))
        replicas = simulate(fleet, requests).replicas
        loads = [replica.num_prompt_tokens for replica in replicas]
        given = sum(replica.num_cached_tokens for replica in replicas)
        return given / endless(requests), max(loads) * NUM_REPLICAS / sum(loads)

    share, spread = cached(policy)
    assert share >= 0.9
    assert spread <= 1.3
    assert cached("round-robin")[0] < 0.6, "else there is nothing to win"
