"""Sends a plan and gathers the answers: at given times, or as fast as a number of users gets answers.

At given times nothing waits for anything: a slow answer delays no later request, and each latency counts from the time the
request was due. Users (closed loop) ask again when they are answered, as their number allows.
"""

import asyncio
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import ConfigError
from penstock.metrics.summary import Slo
from penstock.tools.bench.client.answer import Answer, AnswerReader
from penstock.tools.bench.client.health import Health, HealthMonitor
from penstock.tools.bench.client.http import Client
from penstock.tools.bench.client.silence import GONE_S, LEAST_LOST, Silence, last_sign_s, silence_of
from penstock.tools.bench.client.target import MODELS, TargetServer
from penstock.tools.bench.plan import Ask, TrafficPlan, Turn
from penstock.tools.bench.report.backlog import Backlog

SAMPLE_S = 0.2
LATEST = 24
"""Answers that tell how it is going now."""
LEAST_UNANSWERED = 2
"""Plain questions that a silent server leaves unanswered before it is called gone."""
MAX_PLAN_BYTES = 2**30

Watch = Callable[["LoadProgress"], None]


@dataclass(slots=True)
class LoadProgress:
    """Progress of a run, for a display."""

    elapsed_s: float = 0.0
    num_total: int = 0
    num_sent: int = 0
    num_ended: int = 0
    num_failed: int = 0
    num_pieces: int = 0
    """Pieces of text that have arrived."""
    ttft_s: float | None = None
    """Median over the latest answers that have begun."""

    @property
    def num_open(self) -> int:
        return self.num_sent - self.num_ended


@dataclass(frozen=True, slots=True)
class Limit:
    """When a run has failed: more than `most_missed` requests missed their targets, and the rest cannot mend it."""

    slo: Slo
    most_missed: int


@dataclass(frozen=True, slots=True)
class LoadShape:
    """How a plan is sent. `users` of None: each request at its own time."""

    users: int | None = None
    duration_s: float | None = None
    """Nothing is sent after this."""
    variation: float = 1.0
    """Of the gaps between arrivals."""
    timeout_s: float = 600.0
    stops: bool = True
    """A run whose backlog grows without end is stopped, and one whose server is gone."""
    patience_s: float = 10.0
    """How long a server may be silent, while all that is asked of it fails, before it is called gone."""
    hush_s: float = GONE_S
    """How long it may be silent, while requests are under way, before it is asked whether it is there."""
    grace_s: float = 30.0
    """How long answers under way are awaited once a run has been stopped."""
    limit: Limit | None = None
    """A run that has failed is stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnding:
    """How a run went, beside its answers."""

    health: Health
    num_unsent: int
    is_saturated: bool = False
    is_hopeless: bool = False
    """Stopped at its limit: its targets were out of reach."""
    is_interrupted: bool = False
    """Stopped by the user."""
    silence: Silence | None = None
    """A long time in which nothing came from the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLoad(RunEnding):
    """What a run gave, before anything is computed from it."""

    answers: tuple[Answer, ...]
    duration_s: float
    """From the first arrival to the last end."""

    @property
    def is_in_vain(self) -> bool:
        """The server was gone at its end."""
        return self.silence is not None and self.silence.is_gone


@dataclass(slots=True)
class _Run:
    """State of one run in progress."""

    client: Client
    target: TargetServer
    shape: LoadShape
    start_s: float
    progress: LoadProgress
    answers: list[Answer] = field(default_factory=list)
    tasks: set["asyncio.Task[None]"] = field(default_factory=set)
    open: dict[int, Answer] = field(default_factory=dict)
    num_missed: int = 0
    """Of answers that have ended."""
    num_lost: int = 0
    """In a row, up to the last that ended."""
    is_deaf: bool = False
    """The silent server left plain questions unanswered too: it is gone."""
    is_saturated: bool = False
    is_hopeless: bool = False

    @property
    def now_s(self) -> float:
        return self.client.clock() - self.start_s

    async def converse(self, place: int, ask: Ask, bodies: Sequence[Any], due_s: float) -> None:
        """All turns of one conversation, by its place in the plan. A turn that fails ends it."""
        history: list[dict[str, str]] = []
        for number, (turn, prepared) in enumerate(zip(ask.turns, bodies, strict=True)):
            is_last = number == len(ask.turns) - 1
            if number:
                due_s = self.now_s + ask.think_s
                await asyncio.sleep(ask.think_s)
                body = self.target.body(prepared, turn.num_answer, history)
            else:
                body = prepared if is_last else self.target.body(prepared, turn.num_answer)
            answer = await self.send(turn, body, due_s, (place, number), keeps_text=not is_last)
            if not answer.is_success or self._is_late():
                return
            history += [{"role": "user", "content": prepared}, {"role": "assistant", "content": answer.text}]

    def _is_late(self) -> bool:
        return self.shape.duration_s is not None and self.now_s >= self.shape.duration_s

    async def send(self, turn: Turn, body: bytes, due_s: float, place: tuple[int, int], *, keeps_text: bool) -> Answer:
        answer = Answer(len(self.answers), due_s, turn.num_prompt, turn.num_answer, keeps_text=keeps_text)
        answer.ask, answer.turn = place
        self.answers.append(answer)
        self.open[answer.number] = answer
        self.progress.num_sent += 1
        reader = AnswerReader(answer, self.start_s)

        def sent(now: float) -> None:
            answer.sent_s = now - self.start_s

        clock = self.client.clock
        try:
            async with asyncio.timeout(self.shape.timeout_s):
                response = await self.client.request("POST", self.target.path, body, reader.body, sent)
            reader.end(response.status, clock())
        except ConnectionError as error:
            where = "in the middle of an answer" if answer.piece_times else "before any of an answer"
            reader.fail(f"{error}, {where}", clock())
        except TimeoutError:
            reader.fail(f"no complete answer within {self.shape.timeout_s:g} s", clock())
        finally:
            self.progress.num_ended += 1
            self.progress.num_failed += bool(answer.error)
            self.num_lost = self.num_lost + 1 if answer.is_lost else 0
            del self.open[answer.number]
            limit = self.shape.limit
            self.num_missed += limit is not None and not limit.slo.is_met(answer.timeline())
        return answer

    @property
    def is_in_vain(self) -> bool:
        """The server is gone. Each user has had a failure; at given times, a few requests."""
        if self.num_lost < max(LEAST_LOST, self.shape.users or 0):
            return False
        return self.now_s - last_sign_s(self.answers) >= self.shape.patience_s

    def is_beyond(self, limit: Limit) -> bool:
        num_late = sum(_is_late(answer, limit.slo, self.now_s) for answer in self.open.values())
        return self.num_missed + num_late > limit.most_missed


def _is_late(answer: Answer, slo: Slo, now_s: float) -> bool:
    """An answer under way has missed its targets already."""
    first_s = answer.piece_times[0] if answer.piece_times else now_s
    is_first_late = slo.ttft_s is not None and first_s - answer.scheduled_s > slo.ttft_s
    return is_first_late or (slo.e2e_s is not None and now_s - answer.scheduled_s > slo.e2e_s)


async def run_plan(
    client: Client, target: TargetServer, plan: TrafficPlan, shape: LoadShape, watch: Watch | None = None
) -> MeasuredLoad:
    """Send the whole plan. What it takes to make prompts is spent before the clock starts.

    Cancelled, it gives up what is under way and hands back what it has, marked as interrupted.
    """
    bodies = _prepared(target, plan)
    progress = LoadProgress(num_total=plan.num_requests)
    backlog = Backlog(shape.variation)
    gc.collect()
    gc.freeze()
    with HealthMonitor() as monitor:
        run = _Run(client, target, shape, client.clock(), progress)
        sender = asyncio.create_task(_send_users(run, plan, bodies) if shape.users else _send_open(run, plan, bodies))
        listener = asyncio.create_task(_listen(run))
        is_interrupted = False
        try:
            await _supervise(run, sender, backlog, watch)
        except asyncio.CancelledError:
            is_interrupted = True
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
        finally:
            stop_s = run.now_s
            await _abandon({sender, listener, *run.tasks})
            gc.unfreeze()
    end_s = max((answer.end_s for answer in run.answers if answer.end_s is not None), default=0.0)
    return MeasuredLoad(
        answers=tuple(run.answers),
        duration_s=end_s,
        health=monitor.health,
        num_unsent=plan.num_requests - len(run.answers),
        is_saturated=run.is_saturated,
        is_hopeless=run.is_hopeless,
        is_interrupted=is_interrupted,
        silence=silence_of(run.answers, stop_s, is_deaf=run.is_deaf),
    )


async def _supervise(run: _Run, sender: "asyncio.Task[None]", backlog: Backlog, watch: Watch | None) -> None:
    """Watch until all is answered, or until continuing is useless."""
    shape = run.shape
    while not (sender.done() and not run.tasks):
        await asyncio.wait(run.tasks if sender.done() else {sender}, timeout=SAMPLE_S)
        _observe(run, backlog, watch, is_arriving=not sender.done())
        if shape.users is None and not run.is_saturated:
            run.is_saturated = backlog.is_growing or backlog.is_left_over(run.now_s)
        run.is_hopeless = shape.limit is not None and run.is_beyond(shape.limit)
        if shape.stops and (run.is_deaf or run.is_in_vain):
            return  # nothing that is under way will be answered
        if run.is_hopeless or (shape.stops and run.is_saturated):
            sender.cancel()
            await _drain(run, backlog, watch)
            return
    sender.result()


async def _listen(run: _Run) -> None:
    """Find out whether a server that is silent for long is gone, by plain questions: one that is merely slow, at a long
    prompt for example, answers those.
    """
    hush_s, heard_s, num_unanswered = run.shape.hush_s, 0.0, 0
    while run.shape.stops and not run.is_deaf:
        asked_s = min((answer.scheduled_s for answer in run.open.values()), default=run.now_s)
        left_s = max(asked_s, heard_s, last_sign_s(run.answers)) + hush_s - run.now_s
        if left_s > 0.0:
            num_unanswered = 0
            await asyncio.sleep(left_s)
        elif num_unanswered == LEAST_UNANSWERED:
            run.is_deaf = True
        else:
            try:
                await run.client.fetch("GET", MODELS, timeout_s=hush_s / 2)
                heard_s = run.now_s
            except ConnectionError:
                num_unanswered += 1


def _prepared(target: TargetServer, plan: TrafficPlan) -> list[list[Any]]:
    """Bodies of first turns as bytes; of conversations, prompts: later bodies hold the answers before them."""
    prepared: list[list[Any]] = []
    size = 0
    for ask in plan.asks:
        prompts = [target.prompt(turn.segments) for turn in ask.turns]
        one = [target.body(prompts[0], ask.turns[0].num_answer)] if len(ask.turns) == 1 else prompts
        size += sum(map(len, one))
        if size > MAX_PLAN_BYTES:
            raise ConfigError("the prompts of this run take more than 1 GiB; send fewer with --num-requests")
        prepared.append(one)
    return prepared


async def _send_open(run: _Run, plan: TrafficPlan, bodies: list[list[Any]]) -> None:
    for place, (ask, prepared) in enumerate(zip(plan.asks, bodies, strict=True)):
        if run.shape.duration_s is not None and ask.arrival_s >= run.shape.duration_s:
            return
        # Late or not, others get their turn: a client that has fallen behind must still be seen to.
        await asyncio.sleep(max(ask.arrival_s - run.now_s, 0.0))
        _spawn(run, run.converse(place, ask, prepared, ask.arrival_s))


async def _send_users(run: _Run, plan: TrafficPlan, bodies: list[list[Any]]) -> None:
    remaining = enumerate(zip(plan.asks, bodies, strict=True))
    for _ in range(min(run.shape.users or 1, len(plan.asks))):
        _spawn(run, _user(run, remaining))


async def _user(run: _Run, remaining: Iterator[tuple[int, tuple[Ask, list[Any]]]]) -> None:
    for place, (ask, prepared) in remaining:
        if run._is_late():
            return
        await run.converse(place, ask, prepared, run.now_s)


def _spawn(run: _Run, work: Any) -> None:
    task: asyncio.Task[None] = asyncio.create_task(work)
    run.tasks.add(task)
    task.add_done_callback(run.tasks.discard)


def _observe(run: _Run, backlog: Backlog, watch: Watch | None, *, is_arriving: bool) -> None:
    progress = run.progress
    progress.elapsed_s = run.now_s
    if is_arriving:
        backlog.add(progress.elapsed_s, progress.num_open)
    backlog.num_arrivals = progress.num_sent
    backlog.num_open = progress.num_open
    if backlog.early_s is None:
        first = [answer.end_s - answer.scheduled_s for answer in run.answers[:10] if answer.end_s is not None]
        if len(first) >= 5:
            backlog.early_s = sorted(first)[len(first) // 2]
    if watch is not None:
        progress.num_pieces = sum(len(answer.piece_times) for answer in run.answers)
        begun = [answer.piece_times[0] - answer.scheduled_s for answer in run.answers[-LATEST:] if answer.piece_times]
        progress.ttft_s = sorted(begun)[len(begun) // 2] if begun else None
        watch(progress)


async def _drain(run: _Run, backlog: Backlog, watch: Watch | None) -> None:
    """Let what is under way end, but not for ever."""
    end_s = run.now_s + run.shape.grace_s
    while run.tasks and run.now_s < end_s:
        await asyncio.wait(run.tasks, timeout=SAMPLE_S)
        _observe(run, backlog, watch, is_arriving=False)
    await _abandon(run.tasks)


async def _abandon(tasks: "set[asyncio.Task[None]]") -> None:
    pending = [task for task in tasks if not task.done()]
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
