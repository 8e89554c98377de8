"""Conversations with an engine in this process: users who come back with all that was said and some tokens more."""

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.engine.engine import Engine

VOCABULARY = range(100, 30_000)
PAUSE_S = 0.05
"""Longest sleep of a loop that has nothing to compute."""


@dataclass
class Turns:
    """Times of all turns, in seconds, and how long everything took."""

    ttft_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    num_prompt: int = 0
    num_output: int = 0
    num_cached: int = 0
    num_tiers: int = 0
    """Of the cached tokens, those that a tier gave."""
    misses: Counter[str] = field(default_factory=Counter)
    """Why tiers gave no more of a prompt, by turns."""
    answers: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """By user and turn."""

    @property
    def figures(self) -> dict[str, Any]:
        times = sorted(self.ttft_s)
        return {
            "turns": len(times),
            "wall_s": round(self.wall_s, 3),
            "ttft_p50_ms": round(1000 * times[len(times) // 2], 1),
            "ttft_p95_ms": round(1000 * times[min(int(0.95 * len(times)), len(times) - 1)], 1),
            "output_tokens_per_s": round(self.num_output / self.wall_s, 1),
            "prompt_tokens": self.num_prompt,
            "device_tokens": self.num_cached - self.num_tiers,
            "tier_tokens": self.num_tiers,
            "cached_fraction": round(self.num_cached / max(self.num_prompt, 1), 3),
            "misses": dict(self.misses),
        }


@dataclass
class User:
    number: int
    numbers: random.Random
    """What this user says and when, whatever others do."""
    said: list[int]
    ready_s: float
    num_turns: int = 0
    asked_s: float = 0.0
    answer: list[int] = field(default_factory=list)


def tokens(numbers: random.Random, count: int) -> list[int]:
    return [numbers.choice(VOCABULARY) for _ in range(count)]


def converse(
    engine: Engine,
    *,
    users: int,
    turns: int,
    first: int,
    more: int,
    answer: int,
    at_once: int | None = None,
    think_s: float = 0.0,
    shared: int = 0,
    passers: int = 0,
    names_sessions: bool = True,
    seed: int = 1,
    first_id: int = 1,
    on_turn: Callable[[int], None] = lambda count: None,
) -> Turns:
    """Up to `at_once` users wait for an answer at a time. Without `think_s` all take their first turn before anybody takes a
    second, and another as soon as it is their turn; with it they come within so many seconds, and again after half to one and
    a half times as many. `passers` more come once, evenly over the time that thinking takes in all. `on_turn` is told how many
    turns are over."""
    beginning = tokens(random.Random(seed), shared)
    begun = time.perf_counter()
    queue = []
    for number in range(users):
        own = random.Random(f"{seed}/{number}")
        queue.append(User(number, own, beginning + tokens(own, first), begun + own.uniform(0, think_s)))
    for number in range(users, users + passers):
        own = random.Random(f"{seed}/{number}")
        ready_s = begun + turns * think_s * (number - users) / passers
        queue.append(User(number, own, tokens(own, first), ready_s, num_turns=turns - 1))
    told, running, next_id = Turns(), {}, first_id
    while queue or running:
        queue.sort(key=lambda user: user.ready_s)
        while queue and queue[0].ready_s <= time.perf_counter() and len(running) < (at_once or users):
            user = queue.pop(0)
            user.asked_s, user.answer = time.perf_counter(), []
            params = SamplingParams(temperature=0.0, max_tokens=answer, ignore_eos=True)
            engine.submit(
                Request(
                    request_id=next_id,
                    prompt=tuple(user.said),
                    params=params,
                    session=str(user.number) if turns > 1 and names_sessions and user.number < users else "",
                )
            )
            told.num_prompt += len(user.said)
            running[next_id] = user
            next_id += 1
        num_steps, deltas = engine.num_steps, engine.step()
        for delta in deltas:
            user = running[delta.request_id]
            if delta.token_ids and not user.answer:
                told.ttft_s.append(time.perf_counter() - user.asked_s)
            user.answer.extend(delta.token_ids)
            if delta.prefix is not None:
                told.num_cached += delta.prefix.num_tokens
                told.num_tiers += delta.prefix.host + delta.prefix.disk
                if delta.prefix.tier_miss:
                    told.misses[delta.prefix.tier_miss] += 1
            if delta.finish is not None:
                del running[delta.request_id]
                told.answers[user.number, user.num_turns] = user.answer
                on_turn(len(told.answers))
                told.num_output += len(user.answer)
                user.num_turns += 1
                user.said = user.said + user.answer + tokens(user.numbers, more)
                user.ready_s = time.perf_counter() + think_s * user.numbers.uniform(0.5, 1.5)
                if user.num_turns < turns:
                    queue.append(user)
        if not deltas and engine.num_steps == num_steps:
            is_full = not queue or len(running) >= (at_once or users)
            pause_s = PAUSE_S if is_full else queue[0].ready_s - time.perf_counter()
            engine.wait(min(max(pause_s, 0.0), PAUSE_S))
    told.wall_s = time.perf_counter() - begun
    return told
