"""Nothing ever stands still: what could never fit is refused at once, all else gets on and comes to an end."""

from collections import deque
from random import Random

import pytest

from penstock.errors import RequestError
from penstock.runtime.core.batch import Batch
from penstock.runtime.core.limits import Limits
from penstock.runtime.core.queue.batching import CONTINUOUS, STATIC, dynamic
from penstock.runtime.core.queue.order import ORDERS
from penstock.runtime.core.request import Request
from penstock.runtime.core.scheduler import Scheduler
from tests.core.steps import output_of, pin
from tests.engine.answers import make_request

MAX_STEPS_WITHOUT_PROGRESS = 50


def make_limits(choose: Random) -> Limits:
    max_sequences = choose.choice((1, 2, 3, 8))
    return Limits(
        num_blocks=choose.choice((1, 2, 3, 5, 9, 20)),
        block_size=choose.choice((1, 2, 3, 4)),
        max_context=choose.choice((10, 30, 100)),
        max_batch_tokens=max_sequences + choose.choice((0, 1, 5, 40)),
        max_sequences=max_sequences,
        max_waiting=10_000,
        max_waiting_tokens=10**9,
        prefix_caching=choose.random() < 0.8,
    )


def make_one(choose: Random, number: int) -> Request:
    return make_request(
        number,
        (choose.randrange(3) for _ in range(choose.choice((1, 2, 5, 9, 20)))),
        max_tokens=choose.choice((1, 2, 5, 12, None)),
        n=choose.choice((1, 1, 2, 4)),
        priority=choose.randrange(3),
        tenant=choose.choice("abc"),
        prompt_logprobs=choose.choice((None, None, 0)),
    )


class Run:
    """One instance: requests arrive now and then, prompts get pinned, steps are launched ahead of their results."""

    def __init__(self, seed: int) -> None:
        self.choose = choose = Random(seed)
        self.limits = make_limits(choose)
        order = ORDERS[choose.choice(tuple(ORDERS))]()
        self.scheduler = Scheduler(self.limits, order, choose.choice((CONTINUOUS, CONTINUOUS, STATIC, dynamic(3.0))))
        self.depth = choose.choice((1, 2, 3))
        self.requests = deque(make_one(choose, number) for number in range(choose.randrange(1, 12)))
        self.flying: deque[Batch] = deque()
        self.progress: dict[tuple[int, int], int] = {}
        self.num_ends = 0

    def play(self) -> None:
        now, best, since, num_added = 0.0, 0, 0, 0
        while self.requests or self.scheduler.has_work or self.flying:
            now += 1.0
            while self.requests and (not self.scheduler.has_work or self.choose.random() < 0.3):
                num_added += self.add(self.requests.popleft(), now)
            self.step(now)
            reached = sum(self.progress.values()) + 1000 * self.num_ends
            best, since = (reached, 0) if reached > best else (best, since + 1)
            assert since <= MAX_STEPS_WITHOUT_PROGRESS, self.scheduler.load
        assert self.num_ends == num_added
        self.scheduler.check()

    def add(self, request: Request, now: float) -> int:
        num_longest = len(request.prompt) + (request.params.max_tokens or 1)
        try:
            self.scheduler.add(request, now)
        except RequestError:
            assert num_longest > self.limits.max_positions
            return 0
        assert num_longest <= self.limits.max_positions
        if self.choose.random() < 0.3:
            pin(self.scheduler, request, now + self.choose.choice((5.0, 1e6)))
        return request.params.n

    def step(self, now: float) -> None:
        batch = self.scheduler.schedule(now)
        if batch is not None:
            self.flying.append(batch)
        if self.flying and (batch is None or len(self.flying) >= self.depth):
            oldest = self.flying.popleft()
            drafts = tuple(tuple(range(self.choose.randrange(3))) for _ in oldest.chunks)
            output = output_of(oldest, lambda chunk: (self.choose.randrange(3),), drafts=drafts)
            deltas = self.scheduler.commit(oldest, output, now)
            self.num_ends += sum(delta.finish is not None for delta in deltas)
        for sequence in self.scheduler.roster.running:
            key = sequence.number, sequence.choice
            self.progress[key] = max(self.progress.get(key, 0), sequence.num_computed)


def test_everything_gets_on():
    for seed in range(400):
        Run(seed).play()


@pytest.mark.slow
def test_everything_gets_on_in_ten_thousand_worlds():
    for seed in range(400, 10_400):
        Run(seed).play()
