"""The router's choices, written down, are chosen again by the same policy wherever it runs: request by request."""

import asyncio
import json
import random

import msgspec
import pytest

from penstock.config import CacheConfig, EngineConfig
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.sizing import Sizing
from penstock.service.router.policy import POLICIES, ReplicaView, RoutedCall
from penstock.service.router.record import Decision
from penstock.tools.sim.simulation import Fleet, simulate
from tests.router.harness import ScriptedReplica, answer, ask, opened_router, routed, whole
from tests.router.test_relay import run
from tests.router.test_reported import settled
from tests.server.serving import serving


def read_decisions(path):
    return [msgspec.json.decode(line, type=Decision) for line in path.read_bytes().splitlines()]


def chosen_again(policy, decision):
    """Whom the policy chooses when it knows what was known."""
    hashes = tuple(map(bytes.fromhex, decision.hashes))
    call = RoutedCall(decision.number, decision.session, hashes, decision.num_tokens)
    views = [
        ReplicaView(
            one.name,
            one.num_pending,
            one.num_waiting_tokens,
            one.kv_usage_fraction,
            one.is_ready,
            frozenset(hashes[: one.num_held]),
            one.token_s,
        )
        for one in decision.views
    ]
    return views[policy.choose(call, views).replica].name


async def slowly(replica, headers, body, writer):
    """Answers take turns, so that replicas differ in what they have."""
    for _ in range(len(body) % 7):
        await asyncio.sleep(0)
    if len(replica.asked) % 11 == 10:
        writer.write(whole(b"{}", 500))
    else:
        await answer(replica, headers, body, writer)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_choice_is_chosen_again(tmp_path, policy):
    async def law():
        draw = random.Random(3)
        log = tmp_path / "routes.jsonl"
        replicas = [ScriptedReplica(name, slowly) for name in "abcd"]
        async with routed(*replicas, policy=policy, route_log=log, seed=5) as router:
            for _ in range(12):
                stems = [f"{draw.randrange(5)} once upon a time " * draw.randrange(1, 60) for _ in range(10)]
                bodies = [{"messages": [{"role": "user", "content": stem}], "user": stem[:1]} for stem in stems]
                answers = await asyncio.gather(*(router.post(body) for body in bodies))
                assert {status for status, _, _ in answers} <= {200, 500}
        decisions = read_decisions(log)
        again = POLICIES[policy](5)
        assert [chosen_again(again, decision) for decision in decisions] == [one.replica for one in decisions]
        assert len(decisions) > 120, "some were sent twice"
        assert "once upon" not in log.read_text()

    run(law)


def test_live_engines_and_simulated_ones_are_chosen_alike_and_give_the_same_from_their_caches(tmp_path):
    """One request after the other, so that time plays no part: the simulator's fleet of schedulers stands for real servers."""
    draw = random.Random(11)
    stems = [[draw.randrange(1, 200) for _ in range(16 * 12)] for _ in range(7)]
    prompts = [
        (
            *draw.choice(stems)[: 16 * draw.randrange(1, 13)],
            *(draw.randrange(1, 200) for _ in range(draw.randrange(40))),
        )
        for _ in range(60)
    ]
    num_blocks = 160
    log = tmp_path / "routes.jsonl"

    async def live() -> list[int]:
        urls = [server.url for server in servers]
        found = []
        async with opened_router(*urls, policy="prefix-reported", route_log=log) as router:
            for prompt in prompts:
                await settled(router, servers)
                body = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
                status, _, data = await ask(router.port, json.dumps(body).encode(), "/v1/completions")
                assert status == 200, data
                found.append(json.loads(data)["usage"]["prompt_tokens_details"]["cached_tokens"])
        return found

    flags = ("--num-blocks", str(num_blocks))
    with serving(*flags, model="scripted:") as one, serving(*flags, model="scripted:") as two:
        servers = [one, two]
        cached = asyncio.run(live())
    names = [int(decision.replica[1:]) for decision in read_decisions(log)]

    requests = [
        Request(
            request_id=number,
            prompt=prompt,
            params=SamplingParams(temperature=0.0, max_tokens=1),
            arrival_s=float(number),
            salt="/",
        )
        for number, prompt in enumerate(prompts)
    ]
    sizing = Sizing(
        num_blocks=num_blocks,
        block_size=16,
        block_bytes=1,
        max_context=4096,
        weight_bytes=0,
        workspace_bytes=0,
        free_bytes=0,
    )
    chosen: list[int] = []
    config = EngineConfig(cache=CacheConfig(num_blocks=num_blocks))
    result = simulate(Fleet(config, sizing, Instant(), 2, policy=lambda: Noting(chosen)), requests)
    assert chosen == names
    assert sum(replica.num_cached_tokens for replica in result.replicas) == sum(cached) > 1000


class Instant:
    def step_s(self, batch) -> float:
        return 0.001

    def run_s(self, batch, num_steps: int) -> list[float]:
        return [0.001] * num_steps


class Noting:
    """The policy itself, with its choices written down."""

    reads_hashes = True

    def __init__(self, chosen: list[int]) -> None:
        self._policy = POLICIES["prefix-reported"](0)
        self._chosen = chosen

    def choose(self, call, views):
        choice = self._policy.choose(call, views)
        self._chosen.append(choice.replica)
        return choice
