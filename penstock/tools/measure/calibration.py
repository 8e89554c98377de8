"""Measures an engine: drives it through batches of every size and shape with its own scheduler, step by step.

A round visits prompts of many lengths alone, at once and after a rest, several together, prompts with a cached beginning,
batches that shrink from many sequences to one at short and long contexts, and requests that come by the clock at random, as to
a server, half of them with one beginning. A machine is not equally fast from one second to the next, so what is alike is not
measured in one go: a round is cut into small parts that follow each other by lot, and rounds repeat until the time is spent.
No prompt that is measured comes twice; those that only fill the long contexts of batches do, and are mostly found in the
cache.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from random import Random
from typing import NamedTuple

from penstock.runtime.core.features import StepTime
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.engine.engine import Engine
from penstock.tools.measure.live import Disturbance

SHORT_PROMPTS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128, 160, 192)
LONG_PROMPTS = (256, 320, 384, 512, 768, 1024, 1536, 2048)
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256)
CONTEXTS = ((24, 64, False), (240, 32, False), (900, 8, False), (900, 16, True), (1800, 4, False))
"""(context, most sequences at it, whether most of it is the same): longer ones are tried with fewer, since filling them takes
longer than what is measured."""
SHARED_FRACTION = 0.9
STEPS_EACH = 5
"""Steps at each number of sequences of a shrinking batch."""
CACHED_REST = (8, 48, 160, 300)
"""Tokens after a cached beginning."""
RESTED_PROMPTS = (4, 8, 12, 16, 24, 32, 40, 50, 60, 75, 90, 110, 130, 160, 200, 240, 300, 400)
RESTED_ANSWER = 10
"""Steps until it makes no difference any more."""
TOGETHER = (2, 3, 4, 6, 8)
"""Short prompts that come at the same moment."""
MAX_TOGETHER = 100
"""Tokens of each at most."""
NUM_SERVED = 8
MAX_ANSWER = 100
NUM_RATES = 10
"""Rates at which so many requests come: a crowd, a few, mostly one at a time. At every second of them all begin alike."""
MAX_ALIKE = 900
"""Tokens of such a beginning at most."""
NUM_CROWDED = 16
CROWD_GAPS_S = (0.005, 0.02)
"""Mean time between short prompts that come to many who generate already."""
FIRST_ID = 1 << 40
"""Of our requests, out of the way of others."""
BEFORE_S, EVERY_S = 2.0, 1.0
"""Of a piece: before a workload is served, and meanwhile."""
QUIET = 0.1
"""Of the machine: what others may use, counted in hundredths of a second, before a part was disturbed."""


class Stage(NamedTuple):
    name: str
    requests: Sequence[Request]
    gap_s: float | None
    """Mean time between two arrivals; None for each alone, once the one before it has ended."""
    rests: bool = False
    """The engine sleeps a while before each."""

    def parts(self, size: int) -> Iterator["Stage"]:
        for start in range(0, len(self.requests), size):
            yield self._replace(requests=self.requests[start : start + size])


class CalibrationSample(NamedTuple):
    """The steps of one part of a stage, and what others used of the machine meanwhile."""

    stage: str
    steps: list[StepTime]
    others_fraction: float


class StepRecorder:
    """Records an engine's steps. On two processors of which others take one a step takes twice as long: that is no cost.

    What slows a step down and is no other's doing is: threads of ours that share a processor after a rest, say.
    """

    def __init__(self) -> None:
        self.samples: list[CalibrationSample] = []
        self._steps: list[StepTime] | None = None
        """Of the part under way; steps between parts are somebody else's."""

    @property
    def steps(self) -> list[StepTime]:
        return [step for sample in self.samples for step in sample.steps]

    def record(self, step: StepTime) -> None:
        if self._steps is not None:
            self._steps.append(step)

    @contextmanager
    def part(self, stage: str) -> Iterator[None]:
        steps = self._steps = []
        disturbance = Disturbance()
        yield
        self._steps = None
        self.samples.append(CalibrationSample(stage, steps, disturbance.fraction or 0.0))

    def quiet(self) -> list[StepTime]:
        """The steps of parts that others let alone; of a stage that never was, those of the quieter half of its parts."""
        shares: dict[str, list[float]] = {}
        for sample in self.samples:
            shares.setdefault(sample.stage, []).append(sample.others_fraction)
        most = {stage: max(QUIET, sorted(each)[len(each) // 2]) for stage, each in shares.items()}
        return [
            step for sample in self.samples if sample.others_fraction <= most[sample.stage] for step in sample.steps
        ]


@dataclass
class Calibration:
    """Drives one engine whose steps the recorder records."""

    engine: Engine
    recorder: StepRecorder
    vocab_size: int
    random: Random
    report: Callable[[str, int, int | None], None] = lambda stage, done, total: None
    disturbed_fraction: float | None = None
    """Of the machine, what others used meanwhile."""
    rests_s: tuple[float, float] = (0.01, 0.6)
    """Shortest and longest rest, and mean time between arrivals."""
    _num_requests: int = 0
    _contexts: dict[tuple[int, bool], list[tuple[int, ...]]] = field(default_factory=dict)
    """Prompts that fill a batch's contexts."""

    def run(self, seconds: float) -> list[StepTime]:
        """Measure for about so long, one round at least; returns the undisturbed steps."""
        begin_s = time.monotonic()
        self.warm_up()
        disturbance = Disturbance()
        while True:
            round_s = time.monotonic()
            for _ in self.round():
                self.report("measuring", min(round(time.monotonic() - begin_s), round(seconds)), round(seconds))
            now = time.monotonic()
            if now - begin_s + (now - round_s) > seconds:
                self.disturbed_fraction = disturbance.fraction
                return self.recorder.quiet()

    def warm_up(self) -> None:
        self._serve(Stage("warm up", [self._request(16, 4) for _ in range(4)], 0.0))

    def round(self) -> Iterator[str]:
        """Visit every stage once, in parts; names that of each part that is done."""
        parts = list(self._parts())
        self.random.shuffle(parts)
        for part in parts:
            with self.recorder.part(part.name):
                self._serve(part)
            yield part.name

    def _serve(self, stage: Stage) -> None:
        engine = self.engine
        arrival_s = time.monotonic()
        for request in stage.requests:
            if stage.rests:
                engine.wait(self._rest_s())
            if stage.gap_s:
                arrival_s += self.random.expovariate(1.0 / stage.gap_s)
                while (left_s := arrival_s - time.monotonic()) > 0.0:
                    if engine.has_work:
                        engine.step()
                    else:
                        engine.wait(left_s)
            engine.submit(request)
            while stage.gap_s is None and engine.has_work:
                engine.step()
        while engine.has_work:
            engine.step()

    def _parts(self) -> Iterator[Stage]:
        limits = self.engine.scheduler.limits
        room = min(limits.max_context, limits.num_blocks * limits.block_size) - MAX_ANSWER
        longest = min(limits.max_batch_tokens, room)
        for name, lengths, size in (("short prompts", SHORT_PROMPTS, 4), ("long prompts", LONG_PROMPTS, 1)):
            requests = [self._request(length, 1) for length in lengths if length <= longest]
            yield from Stage(name, self.random.sample(requests, len(requests)), None).parts(size)
        rested = [self._request(length, RESTED_ANSWER) for length in RESTED_PROMPTS if length <= longest]
        yield from Stage("after rest", rested, None, rests=True).parts(1)
        if room > 2 * max(CACHED_REST):
            length = min(1536, room - max(CACHED_REST))
            yield from Stage("cached prompts", list(self._cached(length, 1)), None).parts(3)
            yield Stage("cached after rest", list(self._cached(length, RESTED_ANSWER)), None, rests=True)
        for context, most, shares in CONTEXTS:
            most = min(most, limits.max_sequences)
            num_steps = STEPS_EACH * len([size for size in BATCHES if size <= most])
            num_tokens = context + context // 3 + num_steps + 1
            fits = num_tokens <= limits.max_context and most * num_tokens <= limits.num_blocks * limits.block_size
            if fits:
                name = f"{'like ' if shares else ''}batches at {context}"
                yield Stage(name, self._shrinking(context, most, shares=shares), 0.0)
        for count in TOGETHER:
            requests = [self._at_random(min(MAX_TOGETHER, longest), RESTED_ANSWER) for _ in range(count)]
            yield Stage("together", requests, 0.0)
        for gap_s in CROWD_GAPS_S:
            requests = [self._at_random(min(MAX_TOGETHER, longest)) for _ in range(NUM_CROWDED)]
            yield Stage("crowd", requests, gap_s)
        for number in range(NUM_RATES):
            most = min(MAX_ALIKE, room - 400)
            beginning = self._tokens(round(self._between(32, most))) if number % 2 and most > 32 else ()
            requests = [self._at_random(min(400, longest), beginning=beginning) for _ in range(NUM_SERVED)]
            yield Stage("as served", requests, self._rest_s())

    def _cached(self, length: int, num_answer: int) -> Iterator[Request]:
        """A prompt, and others whose beginning the cache holds then."""
        beginning = self._tokens(length)
        yield self._request(0, num_answer, beginning)
        for share in (4, 2, 1):
            for own in CACHED_REST:
                yield self._request(own, num_answer, beginning[: length // share])

    def _shrinking(self, context: int, most: int, *, shares: bool) -> list[Request]:
        """Sequences that end one after the other, so that every batch size has its steps."""
        sizes = [size for size in BATCHES if size <= most]
        if (context, shares) not in self._contexts:
            beginning = self._tokens(round(SHARED_FRACTION * context)) if shares else ()
            lengths = [context + self.random.randint(-context // 3, context // 3) for _ in range(most)]
            self._contexts[context, shares] = [
                beginning + self._tokens(max(length - len(beginning), 1)) for length in lengths
            ]
        prompts = self._contexts[context, shares]
        requests = []
        for rank, prompt in enumerate(prompts):
            num_levels = sum(1 for size in sizes if size > rank)
            requests.append(self._request(0, 1 + STEPS_EACH * num_levels, prompt))
        return requests

    def _at_random(self, longest: int, most: int = MAX_ANSWER, beginning: tuple[int, ...] = ()) -> Request:
        return self._request(round(self._between(2, longest)), round(self._between(2, most)), beginning)

    def _rest_s(self) -> float:
        return self._between(*self.rests_s)

    def _between(self, least: float, most: float) -> float:
        """As many short ones as long ones."""
        return math.exp(self.random.uniform(math.log(least), math.log(most)))

    def _request(self, num_tokens: int, num_answer: int, beginning: tuple[int, ...] = ()) -> Request:
        self._num_requests += 1
        params = SamplingParams(max_tokens=num_answer, ignore_eos=True, temperature=0.0)
        prompt = beginning + self._tokens(num_tokens)
        return Request(request_id=FIRST_ID + self._num_requests, prompt=prompt, params=params)

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self.random.choices(range(self.vocab_size), k=count))


class CalibrationPieces:
    """Calibration in pieces beside a workload that is being served: how fast the machine was meanwhile."""

    def __init__(self, calibration: Calibration) -> None:
        self._recorder = calibration.recorder
        self._parts = (part for each in repeat(calibration) for part in each.round())
        self._end_s = 0.0
        self.seconds = 0.0
        """Spent on the piece under way."""

    def begin(self) -> None:
        """A new piece: some parts before a workload is served."""
        self._recorder.samples.clear()
        self.seconds = 0.0
        while self.seconds < BEFORE_S:
            self._go_on()

    def between(self) -> None:
        """One more part when there is nothing to serve, if the last is some time ago."""
        if time.monotonic() - self._end_s > EVERY_S:
            self._go_on()

    def _go_on(self) -> None:
        begin_s = time.monotonic()
        next(self._parts)
        self._end_s = time.monotonic()
        self.seconds += self._end_s - begin_s
