"""Serves requests to the end with the oracle, and says what every answer must be."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Any

from penstock.runtime.core.batch import Delta, Finish, FinishReason, PrefixHit
from penstock.runtime.core.kinds.groups import PLAIN, CacheGroups
from penstock.runtime.core.limits import Limits
from penstock.runtime.core.queue.batching import CONTINUOUS, Batching
from penstock.runtime.core.queue.order import ORDERS
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.core.runner import Runner
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.draft.speculator import Speculator
from penstock.runtime.engine.engine import Engine
from penstock.runtime.engine.oracle import EMPTY, OracleRunner, digest, draw, in_sight, next_state, windowed

VOCAB_SIZE = 64
MAX_STEPS = 20_000

LIMITS = Limits(
    num_blocks=64,
    block_size=4,
    max_context=200,
    max_batch_tokens=32,
    max_sequences=8,
    max_waiting=1000,
    max_waiting_tokens=10**6,
)
"""Roomy for the requests of these tests; `LIMITS._replace(...)` makes it tight."""


def expected_tokens(
    prompt: tuple[int, ...],
    params: SamplingParams,
    choice: int,
    num_tokens: int,
    vocab_size: int,
    groups: CacheGroups = PLAIN,
) -> list[int]:
    """The answer, computed with neither cache nor scheduler."""
    digests: list[int] = []
    tokens = list(prompt)
    state = EMPTY
    while True:
        for position in range(len(digests), len(tokens)):
            digests.append(digest(tokens[position], position, digests[-1] if digests else EMPTY))
            state = next_state(state, tokens[position], position)
        if len(tokens) == len(prompt) + num_tokens:
            return tokens[len(prompt) :]
        seen = [digests[position] for position in in_sight(groups.first, len(tokens))]
        for number, group in enumerate(groups.others, 1):
            seen += [windowed(tokens[position], position, number) for position in in_sight(group, len(tokens))]
        tokens.append(draw(seen + [state] * bool(groups.num_states), params, choice, vocab_size))


def make_request(request_id: int, prompt: Iterable[int], **options: Any) -> Request:
    """A request; options that `Request` does not have are sampling parameters."""
    own = {name: options.pop(name) for name in tuple(options) if name in Request.__dataclass_fields__}
    return Request(request_id=request_id, prompt=tuple(prompt), params=SamplingParams(**options), **own)


class Clock:
    """A second passes at every look."""

    def __init__(self) -> None:
        self._seconds = count()

    def __call__(self) -> float:
        return float(next(self._seconds))


@dataclass
class Answer:
    """All that a client was told of one choice."""

    tokens: list[int] = field(default_factory=list)
    finish: Finish | None = None
    prefix: PrefixHit | None = None
    num_deltas: int = 0
    num_checked: int = 0
    num_accepted: int = 0

    @property
    def reason(self) -> FinishReason | None:
        return self.finish.reason if self.finish else None

    def hear(self, delta: Delta) -> None:
        assert self.finish is None, f"told more after the end: {delta}"
        assert delta.prefix is None or not self.num_deltas, "the prefix is told with the first delta only"
        self.num_deltas += 1
        self.tokens.extend(delta.token_ids)
        self.finish = delta.finish
        self.prefix = self.prefix or delta.prefix
        for drafts in delta.drafts:
            assert 0 <= drafts.num_accepted <= drafts.num_checked
            self.num_checked += drafts.num_checked
            self.num_accepted += drafts.num_accepted


class Answers(dict[tuple[int, int], Answer]):
    """By request id and choice."""

    def hear(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            self.setdefault((delta.request_id, delta.choice), Answer()).hear(delta)

    @property
    def tokens(self) -> dict[tuple[int, int], list[int]]:
        return {key: answer.tokens for key, answer in self.items()}


def make_engine(
    limits: Limits = LIMITS,
    *,
    order: str = "first-come",
    batching: Batching = CONTINUOUS,
    depth: int = 1,
    runner: Runner | None = None,
    num_drafts: int = 0,
    speculator: Speculator | None = None,
) -> Engine:
    runner = runner or OracleRunner(
        limits.num_blocks, limits.block_size, vocab_size=VOCAB_SIZE, num_drafts=num_drafts, groups=limits.groups
    )
    return Engine(Scheduler(limits, ORDERS[order](), batching), runner, Clock(), depth=depth, speculator=speculator)


def drain(
    engine: Engine, answers: Answers | None = None, before_step: Callable[[int], None] = lambda step: None
) -> Answers:
    """Step until all is answered; the books balance after every step and nothing is held at the end."""
    answers = Answers() if answers is None else answers
    scheduler = engine.scheduler
    for step in range(MAX_STEPS):
        if not engine.has_work:
            break
        before_step(step)
        answers.hear(engine.step())
        scheduler.check()
    assert not engine.has_work, "no end in sight"
    assert scheduler.pool.num_held == 0
    assert scheduler.load[:3] == (0, 0, 0)
    return answers


def serve(requests: Iterable[Request], limits: Limits = LIMITS, **options: Any) -> Answers:
    """Hand over all requests at once and wait for the answers."""
    engine = make_engine(limits, **options)
    for request in requests:
        engine.submit(request)
    return drain(engine)


@lru_cache(maxsize=4096)
def expected(request: Request, choice: int, limits: Limits = LIMITS) -> tuple[list[int], FinishReason]:
    """The right answer, made without a scheduler: what the oracle would draw, cut where the request says."""
    params = request.params
    num_tokens = limits.longest(request) - len(request.prompt)
    tokens = expected_tokens(request.prompt, params, choice, num_tokens, VOCAB_SIZE, limits.groups)
    stops = () if params.ignore_eos else params.stop_token_ids
    for number, token in enumerate(tokens, 1):
        if token in stops and number > params.min_tokens:
            return tokens[:number], FinishReason.STOP
    return tokens, FinishReason.LENGTH


def assert_right(requests: Iterable[Request], answers: Answers, limits: Limits = LIMITS) -> None:
    """Every choice of every request has its one right answer, and nobody else has any."""
    wanted = {
        (request.request_id, choice): expected(request, choice, limits)
        for request in requests
        for choice in range(request.params.n)
    }
    assert {key: (answer.tokens, answer.reason) for key, answer in answers.items()} == wanted
