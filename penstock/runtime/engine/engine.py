"""The loop that joins the scheduler to a runner. Sole caller of the scheduler; never sees a tensor.

    inbox -> add / cancel -> schedule(now) -> runner.launch -> ... -> ticket.result -> commit(now) -> deltas

With `depth` 2 a step is launched before the tokens of the one before it have reached the host. A step that copies blocks is
over before another is launched: the next may write over what it copied from, and it could not be computed again.
"""

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from queue import Empty
from typing import NamedTuple

from penstock.errors import CapacityError, EngineError, RankLostError, RequestError, StepInterruptedError
from penstock.runtime.core.batch import Batch, Delta, Fault, Finish, FinishReason, StepOutput
from penstock.runtime.core.features import StepTime
from penstock.runtime.core.limits import StepSize
from penstock.runtime.core.request import Request
from penstock.runtime.core.runner import InterruptibleRunner, RehearsingRunner, Runner, Ticket
from penstock.runtime.core.scheduler import CANCELLED, Scheduler
from penstock.runtime.draft.proposals import Proposals
from penstock.runtime.draft.speculator import Speculator
from penstock.runtime.engine.adapters.gate import AdapterGate, AdapterHost, AdapterOrder, AdapterRead, Entrance
from penstock.runtime.engine.grammar_state import Compiled, GrammarState, StepMasks
from penstock.runtime.engine.inbox import Inbox
from penstock.runtime.engine.peers.exchange import PeerExchange, PeerNews
from penstock.runtime.engine.recovery import NotLaunched, ResultPart, StepRecovery
from penstock.runtime.engine.step_log import StepLog
from penstock.runtime.engine.tiers.news import TierNews
from penstock.runtime.engine.tiers.sessions import CacheAnswer, CacheOrder
from penstock.runtime.engine.tiers.tiers import KVTiers

LOGGER = logging.getLogger(__name__)


OnCommit = Callable[[Batch, StepOutput, float, float], None]
"""A step, what came of it, when the loop's turn began and when its tokens were there."""


class Heartbeat(NamedTuple):
    """Proof of life: a watcher compares two of them."""

    num_loops: int
    num_steps: int
    time_s: float


class CancelOrder(NamedTuple):
    """A request, or one choice of it, that is not wanted any more."""

    request_id: int
    choice: int | None


Message = Request | CancelOrder | Compiled | AdapterRead | AdapterOrder | TierNews | CacheOrder | PeerNews


class Engine:
    """`submit` and `cancel` may be called from any thread; everything else belongs to the thread that calls `step`."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        clock: Callable[[], float],
        *,
        depth: int = 1,
        on_step: Callable[[StepTime], None] | None = None,
        speculator: Speculator | None = None,
        grammar_state: GrammarState | None = None,
        step_size: StepSize | None = None,
        adapters: AdapterHost | None = None,
        readers: Executor | None = None,
        tiers: KVTiers | None = None,
        peers: PeerExchange | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._step_size = step_size
        """Corrects the most tokens of a step; None keeps them as they are."""
        if step_size is not None and step_size.shared is not None:
            scheduler.resize(scheduler.limits._replace(shared_tokens=step_size.shared.least))  # grows where it may
        self.proposals = None if speculator is None else Proposals(scheduler, speculator)
        self.grammar_state = grammar_state
        """Holds sequences to their grammars; without it a request with a grammar is refused."""
        self.tiers = tiers
        """Keeps blocks beyond the device and brings them back before a request is scheduled."""
        self._output_s = 0.0
        """When the last step's tokens came."""
        self._was_busy = False
        """Something was left to do then."""
        self._proposing_s = 0.0
        """How long the last guessing took."""
        self.num_steps = 0
        """Steps launched so far."""
        self._num_loops = 0
        self._turn_s = clock()
        self._runner = runner
        self._interruptible = runner if isinstance(runner, InterruptibleRunner) else None
        self._has_interrupted = False
        """Since the last turn of the loop."""
        self._rehearsing = runner if isinstance(runner, RehearsingRunner) else None
        self._clock = clock
        self.depth = depth
        self.on_commit: OnCommit | None = None
        """Called with each step before it is committed, while a view is asked for."""
        self.on_schedule: Callable[[Batch], None] | None = None
        """Called with each planned step before it is launched."""
        self._log = None if on_step is None else StepLog(on_step, overlaps=depth > 1)
        self._is_timed = self._log is not None or self.proposals is not None or step_size is not None
        self._is_timed = self._is_timed or tiers is not None or peers is not None or scheduler.mixed is not None
        self._inbox: Inbox[Message] = Inbox()
        self._taken: deque[Message] = deque()
        """What `wait` took out of the inbox: older than everything in it."""
        self.adapters = None if adapters is None else AdapterGate(adapters, self._inbox.put, readers)
        """Holds requests until their adapters are on the device; without it an adapter is no more than a name in hashes."""
        self._refused_orders: tuple[CacheAnswer, ...] = ()
        if tiers is not None:
            tiers.open(self._inbox.put)
        self.peers = peers
        """Other engines, which fetch blocks of this one and have some of its prompts."""
        if peers is not None:
            peers.open(self._inbox.put)
            if tiers is not None:
                peers.before_write = tiers.copy_out_now
        self._launched: deque[tuple[Batch, Ticket, float]] = deque()
        """With the time of each launch."""
        self._num_checked_steps = 0
        """Steps launched when the books were last checked."""
        self._recovery = StepRecovery()

    @property
    def runner(self) -> Runner:
        return self._runner

    @property
    def heartbeat(self) -> Heartbeat:
        return Heartbeat(self._num_loops, self.num_steps, self._turn_s)

    @property
    def has_work(self) -> bool:
        is_compiling = self.grammar_state is not None and self.grammar_state.is_compiling
        is_compiling = is_compiling or (self.adapters is not None and self.adapters.is_waiting)
        is_compiling = is_compiling or (self.tiers is not None and self.tiers.is_fetching)
        is_compiling = is_compiling or (self.peers is not None and self.peers.is_fetching)
        return self.scheduler.has_work or is_compiling or bool(self._launched or self._taken) or not self._inbox.empty()

    def submit(self, request: Request) -> None:
        """Hand over a request. It is answered by deltas, the last of which carries its finish, a refusal included."""
        self._inbox.put(request)
        if self._interruptible is not None and not request.is_batch and request.tenant != self.scheduler.sole_tenant:
            self._interruptible.interrupt(is_on=True)
            self._has_interrupted = (
                True  # not before: a loop that turns between both would leave every step interrupted
            )

    def cancel(self, request_id: int, choice: int | None = None) -> None:
        """End a request, or one choice of it, in any state; nothing happens if it has ended."""
        self._inbox.put(CancelOrder(request_id, choice))

    def order(self, order: AdapterOrder | CacheOrder) -> None:
        """Have an adapter read or forgotten, or something done to a session's blocks; `adapters.answers` and
        `cache_answers` tell what came of it."""
        self._inbox.put(order)

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until something is handed over; False if nothing was."""
        if not self._taken:
            if self._log is not None:
                self._log.rest()
            is_copying = (
                self.tiers is not None and self.tiers.is_fetching
            )  # a recording bears no other use of the device
            while self._rehearsing is not None and self._inbox.empty() and not is_copying:
                if not self._rehearsing.rehearse():
                    self._rehearsing = None
            try:
                self._taken.append(self._inbox.take(timeout_s))
            except Empty:
                if not self.has_work and self.num_steps != self._num_checked_steps:
                    self.check()
                return False
        return True

    def close(self) -> None:
        """Nothing is computed any more: what is worth keeping is written."""
        if self.peers is not None:
            self.peers.close()
        if self.tiers is not None:
            self.tiers.close()

    def check(self) -> None:
        """Raise EngineError if the scheduler's books do not balance.

        Called when idle and on demand, by the loop's thread, between two steps.
        """
        self._num_checked_steps = self.num_steps
        try:
            self.scheduler.check()
        except RuntimeError as error:
            raise EngineError(f"the engine's books do not balance: {error}; it must be restarted") from error

    def step(self) -> tuple[Delta, ...]:
        """Read the inbox, launch a step if there is one, and collect the oldest if it is due."""
        now = self._turn_s = self._clock()
        self._num_loops += 1
        log = self._log
        if log is not None:
            log.turn(now)
        scheduler = self.scheduler
        if self._interruptible is not None and self._has_interrupted:
            self._has_interrupted = False
            self._interruptible.interrupt(is_on=False)  # whoever is read below need not interrupt anything
        deltas = () if self._inbox.empty() and not self._taken else self._take_in(now)
        deltas += scheduler.expire(now)
        if self.grammar_state:
            deltas = self.grammar_state.follow(deltas, scheduler)
        if self.proposals is not None:
            deltas += self._propose(self.proposals)
        if self.grammar_state:
            self.grammar_state.propose(scheduler, self.depth)
        if self.tiers is not None:
            self.tiers.swap_in()
        batch = scheduler.schedule(now)
        if batch is not None:
            if self.on_schedule is not None:
                self.on_schedule(batch)
            launched_s = self._clock() if self._is_timed else now
            if log is not None:
                log.launch(batch, launched_s)
            self.num_steps += 1
            if self.tiers is not None:
                are_sound = not any(isinstance(ticket, NotLaunched) for _, ticket, _ in self._launched)
                self.tiers.copy_out(batch.step, are_sound=are_sound)
            if self._interruptible is not None:
                self._interruptible.yields = scheduler.yields
            self._launched.append((batch, self._launch(batch), launched_s))
        if self._launched and (batch is None or len(self._launched) >= self.depth):
            deltas += self._collect()
        while self._launched and batch is not None and batch.copies:
            deltas += self._collect()
        if self.grammar_state:
            deltas += self._draw()
        if self.proposals is not None:
            self.proposals.observe(deltas)
        if self.adapters is not None and deltas:
            deltas += tuple(self._let_in(self.adapters.follow(deltas), self._clock()))
        if self.tiers is not None and deltas:
            deltas = self.tiers.tell(deltas)
        if self.peers is not None:
            deltas = self.peers.follow(deltas)
            self._serve_peers()
        if log is not None:
            log.end(self._clock(), has_work=self.has_work)
        return deltas

    def _propose(self, proposals: Proposals) -> tuple[Delta, ...]:
        """Have drafts made for the next step. If they need tokens still in flight, those are awaited first."""
        deltas: tuple[Delta, ...] = ()
        while self._launched and proposals.waits:
            deltas += self._collect()
        begin_s = self._clock()
        was_asked = proposals.propose()
        self._proposing_s = self._clock() - begin_s
        if was_asked:
            proposals.charge(self._proposing_s)
        return deltas

    def _draw(self) -> tuple[Delta, ...]:
        """Let the newest step draw: its masks follow from the tokens of all before it."""
        deltas: tuple[Delta, ...] = ()
        while len(self._launched) > 1:
            deltas += self._collect()
        if self._launched:
            batch, ticket, launched_s = self._launched[-1]
            try:
                ticket.draw()
            except Exception as error:
                self._launched[-1] = (batch, NotLaunched(error), launched_s)
        return deltas

    def _take_in(self, now: float) -> tuple[Delta, ...]:
        deltas: list[Delta] = []
        while self._taken or not self._inbox.empty():
            message = self._taken.popleft() if self._taken else self._inbox.get()
            if isinstance(message, CancelOrder):
                deltas.extend(self._cancel(message))
            elif isinstance(message, Compiled):
                deltas.extend(self._take_compiled(message, now))
            elif isinstance(message, TierNews):
                for request in () if self.tiers is None else self.tiers.take(message):
                    deltas.extend(self._schedule(request, now))
            elif isinstance(message, CacheOrder):
                self._order_cache(message)
            elif isinstance(message, PeerNews):
                ready = None if self.peers is None else self.peers.take(message)
                deltas.extend([] if ready is None else self._schedule(ready, now))
            elif isinstance(message, Request) and not message.adapter:
                deltas.extend(self._enter(message, now))
            else:
                deltas.extend(self._take_adapted(message, now))
        self._serve_peers()
        return tuple(deltas)

    def _serve_peers(self) -> None:
        """Hand out blocks that others asked for, as far as steps that have ended filled them."""
        if self.peers is not None:
            self.peers.turn(self.num_steps, self.num_steps - len(self._launched))

    def _order_cache(self, order: CacheOrder) -> None:
        if self.tiers is not None:
            self.tiers.order(order)
        else:
            error = "this engine keeps no sessions; serve with --kv-host or --kv-disk"
            self._refused_orders += (CacheAnswer(order.order_id, error),)

    def cache_answers(self) -> tuple[CacheAnswer, ...]:
        """What came of orders since the last call."""
        refused, self._refused_orders = self._refused_orders, ()
        return refused if self.tiers is None else self.tiers.orders.answers()

    def _take_adapted(self, message: Request | AdapterRead | AdapterOrder, now: float) -> list[Delta]:
        gate = self.adapters
        if gate is None:
            return self._enter(message, now) if isinstance(message, Request) else []
        if isinstance(message, Request):
            return self._let_in(gate.ask(message), now)
        return self._let_in(gate.take(message) if isinstance(message, AdapterRead) else gate.order(message), now)

    def _let_in(self, entrance: Entrance, now: float) -> list[Delta]:
        """Requests whose adapters are on the device enter; those of adapters that cannot be had are refused."""
        deltas: list[Delta] = []
        for request in entrance.entering:
            deltas.extend(self._enter(request, now))
        for request, message, is_ours in entrance.refused:
            deltas.extend(_refusals(request, message, Fault.ENGINE if is_ours else Fault.REQUEST))
        if self.adapters is not None and deltas:
            deltas += self._let_in(self.adapters.follow(tuple(deltas)), now)
        return deltas

    def _enter(self, request: Request, now: float) -> list[Delta]:
        """Schedule a request, once its grammar is compiled if it has one."""
        if request.params.grammar is None:
            return self._add(request, now)
        if self.grammar_state is None:
            return _refusals(request, "this engine cannot hold an answer to a grammar; leave it out", Fault.REQUEST)
        self.grammar_state.compile(request, self._inbox.put)
        return []

    def _add(self, request: Request, now: float) -> list[Delta]:
        """Schedule a request, once what peers or tiers have of its prompt is on the device."""
        if self.peers is not None and self.peers.fetch(request):
            return []
        if self.tiers is not None and self.tiers.fetch(request, self._inbox.put):
            return []
        return self._schedule(request, now)

    def _schedule(self, request: Request, now: float) -> list[Delta]:
        hashes = [] if self.tiers is None else self.tiers.hashes_of(request)
        try:
            self.scheduler.add(request, now, hashes)
        except RequestError as error:
            return _refusals(request, str(error), Fault.REQUEST)
        except CapacityError as error:
            return _refusals(request, str(error), Fault.CAPACITY)
        return []

    def _take_compiled(self, compiled: Compiled, now: float) -> list[Delta]:
        grammar_state, request = self.grammar_state, compiled.request
        if grammar_state is None or not grammar_state.take(compiled):
            return []  # cancelled while it was compiled
        if compiled.matcher is None:
            return _refusals(request, compiled.error, Fault.REQUEST)
        refusals = self._add(request, now)
        if refusals:
            grammar_state.drop(request)
        return refusals

    def _cancel(self, cancel: CancelOrder) -> tuple[Delta, ...]:
        if self.adapters is not None and cancel.choice is None:
            request = self.adapters.cancel(cancel.request_id)
            if request is not None:
                return tuple(_endings(request, CANCELLED))
        for source in (self.tiers, self.peers):
            request = source.cancel(cancel.request_id) if source is not None and cancel.choice is None else None
            if request is not None:
                return tuple(_endings(request, CANCELLED))
        if self.grammar_state is None:
            return self.scheduler.cancel(*cancel)
        if cancel.choice is None:
            request = self.grammar_state.cancel(cancel.request_id)
            if request is not None:
                return tuple(_endings(request, CANCELLED))
        return self.grammar_state.follow(self.scheduler.cancel(*cancel), self.scheduler)

    def _launch(self, batch: Batch, indices: tuple[int, ...] | None = None) -> Ticket:
        """Start a step, or those chunks of it. After a step that could not start none is launched: it would read missing
        results."""
        if self._launched and isinstance(self._launched[-1][1], NotLaunched):
            return self._launched[-1][1]
        try:
            if indices is None:
                return self._run(batch)
            ticket = self._run(batch.only(indices)) if indices else None
            return ResultPart(ticket, indices, len(batch.chunks))
        except RankLostError:
            raise  # nothing can be computed any more, and no request is at fault
        except Exception as error:
            return NotLaunched(error)

    def _run(self, batch: Batch) -> Ticket:
        masks = self._masks(batch)
        return self._runner.launch(batch) if masks is None else self._runner.launch(batch, masks)

    def _masks(self, batch: Batch) -> StepMasks | None:
        return self.grammar_state.masks(batch, self.scheduler) if self.grammar_state else None

    def _collect(self) -> tuple[Delta, ...]:
        """Wait for the oldest step. If it failed, find the sequence at fault; results of the others stand."""
        batch, ticket, launched_s = self._launched.popleft()
        later: list[Batch] = []
        log = self._log
        try:
            asked_s = 0.0 if log is None else self._clock()
            output = ticket.result()
            self._recovery.num_lost = 0
            if self.tiers is not None:
                self.tiers.departures.settle(batch.step)
            if self._is_timed:
                self._time(batch, launched_s, asked_s, self._clock())
        except RankLostError:
            raise
        except StepInterruptedError:
            self._distrust()
            self._abandon(batch)
            return ()
        except Exception as error:
            self._distrust()
            if log is not None:
                log.lose()
            if self.scheduler.pool.groups.num_states:
                self._lose(batch, error)
                return ()
            later = self._withdraw()
            if self._interruptible is not None:
                self._interruptible.yields = False
            output = self._recovery.recover(batch, self.scheduler.flights.live(batch), error, self._run)
        now = self._clock()
        if self.on_commit is not None:
            self.on_commit(batch, output, self._turn_s, now)
        deltas = self.scheduler.commit(batch, output, now)
        self._was_busy = self.scheduler.has_work
        if self.grammar_state:
            deltas = self.grammar_state.follow(deltas, self.scheduler)
        for again in later:
            self._launched.append((again, self._launch(again, self.scheduler.flights.live(again)), now))
        return deltas

    def _distrust(self) -> None:
        if self.tiers is not None:
            self.tiers.departures.distrust()

    def _abandon(self, batch: Batch) -> None:
        """The oldest step made way for an interactive request. It and those after it are planned again."""
        if self._log is not None:
            self._log.lose()
        for one in (*reversed(self._withdraw()), batch):
            self.scheduler.abandon(one)

    def _lose(self, batch: Batch, error: Exception) -> None:
        """A failed step has changed states, so it cannot be computed again from what it read: its sequences begin again from
        their last checkpoints."""
        self._recovery.lose(error)
        self._abandon(batch)

    def _time(self, batch: Batch, launched_s: float, asked_s: float, now: float) -> None:
        """A step's tokens have arrived."""
        if self._log is not None:
            self._log.output(asked_s, now)
        seconds = now - max(launched_s, self._output_s)
        if self.proposals is not None:
            # A step that had to wait for the tokens before it pays for what was done between them, guessing apart.
            between_s = launched_s - self._output_s - self._proposing_s if self._was_busy else 0.0
            has_waited = self.depth > 1 and launched_s >= self._output_s
            self.proposals.take(batch, seconds + max(between_s, 0.0), has_waited=has_waited)
        self.scheduler.note_step(batch, seconds)
        if self._step_size is not None:
            self._resize(self._step_size, batch, seconds)
        for source in (self.tiers, self.peers):
            if source is not None:
                source.note_step(batch, seconds)
        self._output_s = now

    def _resize(self, step_size: StepSize, batch: Batch, seconds: float) -> None:
        scheduler, before = self.scheduler, self.scheduler.limits
        limits = step_size.resize(before, batch, seconds, is_shared=scheduler.is_shared)
        if limits is not before:
            scheduler.resize(limits)
            sizes, took = (limits.max_batch_tokens, limits.shared_tokens), (batch.num_tokens, seconds)
            LOGGER.info("steps have up to %d tokens from now on, shared ones %d: %d took %.2f s", *sizes, *took)

    def _withdraw(self) -> list[Batch]:
        """Steps launched after a failed one read its tokens: wait until they are over, then launch them again."""
        launched = list(self._launched)
        self._launched.clear()
        for _, ticket, _ in launched:
            try:
                ticket.result()
            except Exception:
                continue
        return [batch for batch, _, _ in launched]


def _refusals(request: Request, message: str, fault: Fault) -> list[Delta]:
    return _endings(request, Finish(FinishReason.ERROR, message, fault))


def _endings(request: Request, finish: Finish) -> list[Delta]:
    return [Delta(request.request_id, choice, (), finish) for choice in range(request.params.n)]
