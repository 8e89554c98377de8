"""The loop that joins the scheduler to a runner. Sole caller of the scheduler; never sees a tensor.

    inbox -> add / cancel -> schedule(now) -> runner.launch -> ... -> ticket.result -> commit(now) -> deltas

With `depth` 2 a step is launched before the tokens of the one before it have reached the host. A step that copies blocks is
over before another is launched: the next may write over what it copied from, and it could not be computed again.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from queue import Empty

from penstock.errors import EngineError, RankLostError, StepInterruptedError
from penstock.runtime.core.batch import Batch, Delta
from penstock.runtime.core.features import StepTime
from penstock.runtime.core.limits import StepSize
from penstock.runtime.core.request import Request
from penstock.runtime.core.runner import InterruptibleRunner, RehearsingRunner, Runner, Ticket
from penstock.runtime.core.scheduler import Scheduler
from penstock.runtime.draft.proposals import Proposals
from penstock.runtime.draft.speculator import Speculator
from penstock.runtime.engine.adapters.gate import AdapterGate, AdapterHost, AdapterOrder
from penstock.runtime.engine.grammar_state import GrammarState
from penstock.runtime.engine.loop.inbox import Inbox
from penstock.runtime.engine.loop.intake import CancelOrder, Intake, Message
from penstock.runtime.engine.loop.listeners import StepArrival, StepDurations, StepListeners, StepSizer
from penstock.runtime.engine.loop.proposer import Proposer
from penstock.runtime.engine.loop.recovery import NotLaunched, ResultPart, StepRecovery
from penstock.runtime.engine.peers.exchange import PeerExchange
from penstock.runtime.engine.step_log import StepLog
from penstock.runtime.engine.tiers.sessions import CacheOrder
from penstock.runtime.engine.tiers.tiers import KVTiers


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
        proposals = None if speculator is None else Proposals(scheduler, speculator)
        self.proposer = Proposer(scheduler, clock, depth, proposals, grammar_state)
        self.tiers = tiers
        """Keeps blocks beyond the device and brings them back before a request is scheduled."""
        self.peers = peers
        """Other engines, which fetch blocks of this one and have some of its prompts."""
        self.num_steps = 0
        """Steps launched so far."""
        self.num_loops = 0
        """Turns of the loop so far: proof of life."""
        self.turn_s = clock()
        """When the last of them began."""
        self.runner = runner
        self._interruptible = runner if isinstance(runner, InterruptibleRunner) else None
        self._has_interrupted = False
        """Since the last turn of the loop."""
        self._rehearsing = runner if isinstance(runner, RehearsingRunner) else None
        self._is_quiet = False
        """Whether nothing came in the last wait: a client that asks again at once does not wait for a rehearsal."""
        self._clock = clock
        self.depth = depth
        self.listeners = StepListeners()
        self._inbox: Inbox[Message] = Inbox()
        self.order: Callable[[AdapterOrder | CacheOrder], None] = self._inbox.put
        """Have an adapter read or forgotten, or something done to a session's blocks; `adapters.answers` and
        `cache_answers` tell what came of it."""
        self._taken: deque[Message] = deque()
        """What `wait` took out of the inbox: older than everything in it."""
        self.adapters = None if adapters is None else AdapterGate(adapters, self._inbox.put, readers)
        """Holds requests until their adapters are on the device; without it an adapter is no more than a name in hashes."""
        self._intake = Intake(scheduler, self._inbox.put, self.proposer, self.adapters, tiers, peers)
        self.cache_answers = self._intake.cache_answers
        if tiers is not None:
            tiers.open(self._inbox.put)
        if peers is not None:
            peers.open(self._inbox.put)
            if tiers is not None:
                peers.arrivals.before_write = tiers.departures.copy_out_now
        self._listen(on_step, step_size)
        self._launched: deque[tuple[Batch, Ticket, float]] = deque()
        """With the time of each launch."""
        self._num_checked_steps = 0
        """Steps launched when the books were last checked."""
        self._output_s = 0.0
        """When the last step's tokens came."""
        self._recovery = StepRecovery()

    def _listen(self, on_step: Callable[[StepTime], None] | None, step_size: StepSize | None) -> None:
        """Let those hear of steps that learn from them."""
        if on_step is not None:
            self.listeners.add(StepLog(on_step, overlaps=self.depth > 1))
        if self.proposer.proposals is not None:
            self.listeners.add(self.proposer)
        notes = [] if self.scheduler.mixed is None else [self.scheduler.note_step]
        notes += [] if step_size is None else [StepSizer(self.scheduler, step_size).note_step]
        notes += [] if self.tiers is None else [self.tiers.rates.note_step]
        notes += [] if self.peers is None else [self.peers.remote.rates.note_step]
        if notes:
            self.listeners.add(StepDurations(*notes))

    @property
    def has_work(self) -> bool:
        has_messages = bool(self._taken) or not self._inbox.empty()
        return self.scheduler.has_work or has_messages or bool(self._launched) or self._intake.is_holding

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

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until something is handed over; False if nothing was."""
        if not self._taken:
            for rest in self.listeners.resting:
                rest()
            is_copying = (
                self.tiers is not None and self.tiers.is_fetching
            )  # a recording bears no other use of the device
            is_quiet = self._is_quiet and not self.has_work and not is_copying
            while self._rehearsing is not None and is_quiet and self._inbox.empty():
                if not self._rehearsing.rehearse():
                    self._rehearsing = None
            try:
                self._taken.append(self._inbox.take(timeout_s))
                self._is_quiet = False
            except Empty:
                self._is_quiet = True
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
        now = self.turn_s = self._clock()
        self.num_loops += 1
        listeners = self.listeners
        for turned in listeners.turned:
            turned(now)
        scheduler = self.scheduler
        if self._interruptible is not None and self._has_interrupted:
            self._has_interrupted = False
            self._interruptible.interrupt(is_on=False)  # whoever is read below need not interrupt anything
        deltas = () if self._inbox.empty() and not self._taken else self._take_in(now)
        deltas += scheduler.expire(now)
        proposer, proposes = self.proposer, self.proposer.is_needed
        if proposes:
            deltas = proposer.follow(deltas)
            deltas += proposer.propose(self._launched, self._collect)
        if self.tiers is not None:
            self.tiers.swap_in()
        batch = scheduler.schedule(now)
        if batch is not None:
            for scheduled in listeners.scheduled:
                scheduled(batch)
            launched_s = self._clock() if listeners.arrived else now
            for launched in listeners.launched:
                launched(batch, launched_s)
            self.num_steps += 1
            if self.tiers is not None:
                are_sound = not any(isinstance(ticket, NotLaunched) for _, ticket, _ in self._launched)
                self.tiers.departures.copy_out(batch.step, are_sound=are_sound)
            if self._interruptible is not None:
                self._interruptible.yields = scheduler.yields
            self._launched.append((batch, self._launch(batch), launched_s))
        if self._launched and (batch is None or len(self._launched) >= self.depth):
            deltas += self._collect()
        while self._launched and batch is not None and batch.copies:
            deltas += self._collect()
        if proposes:
            if proposer.draws_late:
                deltas += self._draw()
            proposer.observe(deltas)
        if self.adapters is not None and deltas:
            deltas += tuple(self._intake.follow(deltas, self._clock()))
        if self.tiers is not None and deltas:
            deltas = self.tiers.report(deltas)
        if self.peers is not None:
            deltas = self.peers.follow(deltas)
            self._serve_peers()
        for ended in listeners.ended:
            ended(self._clock(), has_work=self.has_work)
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
            deltas.extend(self._intake.take(message, now))
        self._serve_peers()
        return tuple(deltas)

    def _serve_peers(self) -> None:
        """Hand out blocks that others asked for, as far as steps that have ended filled them."""
        if self.peers is not None:
            self.peers.turn(self.num_steps, self.num_steps - len(self._launched))

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
        masks = self.proposer.masks(batch)
        return self.runner.launch(batch) if masks is None else self.runner.launch(batch, masks)

    def _collect(self) -> tuple[Delta, ...]:
        """Wait for the oldest step. If it failed, find the sequence at fault; results of the others stand."""
        batch, ticket, launched_s = self._launched.popleft()
        later: list[Batch] = []
        listeners = self.listeners
        try:
            asked_s = self._clock() if listeners.arrived else 0.0
            output = ticket.result()
            self._recovery.num_lost = 0
            if self.tiers is not None:
                self.tiers.departures.settle(batch.step)
            if listeners.arrived:
                self._report_arrival(batch, launched_s, asked_s)
        except RankLostError:
            raise
        except StepInterruptedError:
            self._distrust()
            self._abandon(batch)
            return ()
        except Exception as error:
            self._distrust()
            for lost in listeners.lost:
                lost()
            if self.scheduler.pool.groups.num_states:
                # It has changed them, and cannot be computed again: its sequences begin again from their last checkpoints.
                self._recovery.lose(error)
                self._abandon(batch)
                return ()
            later = self._withdraw()
            if self._interruptible is not None:
                self._interruptible.yields = False
            output = self._recovery.recover(batch, self.scheduler.flights.live(batch), error, self._run)
        now = self._clock()
        for landed in listeners.landed:
            landed(batch, output, self.turn_s, now)
        deltas = self.proposer.follow(self.scheduler.commit(batch, output, now))
        for again in later:
            self._launched.append((again, self._launch(again, self.scheduler.flights.live(again)), now))
        return deltas

    def _distrust(self) -> None:
        if self.tiers is not None:
            self.tiers.departures.distrust()

    def _abandon(self, batch: Batch) -> None:
        """The oldest step made way for an interactive request. It and those after it are planned again."""
        for lost in self.listeners.lost:
            lost()
        for one in (*reversed(self._withdraw()), batch):
            self.scheduler.abandon(one)

    def _report_arrival(self, batch: Batch, launched_s: float, asked_s: float) -> None:
        now = self._clock()
        arrival = StepArrival(batch, launched_s, asked_s, now, now - max(launched_s, self._output_s))
        self._output_s = now
        for arrived in self.listeners.arrived:
            arrived(arrival)

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
