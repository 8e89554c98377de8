"""A replica that looks at a sequence only when something becomes of it.

While a sequence generates, its steps only repeat. So the scheduler (`runs`) is told how many steps each continues by itself:
it plans them as one chunk, leaves the sequence out of its plans meanwhile and counts it in every step's budget. The sequences
that fast-forward make up each step together with the prompts that the scheduler plans beside them; durations follow from their
number and the sum of their lengths. Each is committed when its run is over, at the very time at which its last step ended.

    step      1     2     3     4     5     6
    a      [ run .................. ] ends
    b      [ run ...... ][ run .........        a run ends where a block does, unless blocks abound
    c            [prompt][ run .........        joins while the others go on

The outcome is that of taking every step singly. Whenever a run could show (a deadline passes, blocks run out, service is
counted for fairness), all runs are cut at the step under way and the scheduler sees everybody again.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

from penstock.runtime.core.batch import Arrival, Batch, Chunk, StepOutput, make
from penstock.tools.cost.cost import Summing
from penstock.tools.sim.replica.replica import TOKEN, Replica
from penstock.tools.sim.replica.runs import RunScheduler, num_run_steps

MAX_STRETCH = 64
"""Steps computed at once: an arrival wastes those after it."""
_MIN_ENDS = 4096
_MANY_BLOCKS = 32
"""Blocks for every sequence that may run; with fewer, no block is reserved early."""
BY_ORDER = attrgetter("order")
_DRAWN = tuple((TOKEN,) * count for count in range(1024))


class FastForward(NamedTuple):
    """A sequence that fast-forwards. It is due when so many steps of the replica have ended."""

    due_step: int
    order: int
    """Place in the order of admission, in which the engine would commit."""
    first_step: int
    row: int
    batch: Batch


@dataclass(slots=True, eq=False)
class FastForwardReplica(Replica):
    """Same results as `Replica` at depth 1 without drafts, faster."""

    scheduler: RunScheduler
    settles: bool = False
    """Service is counted while sequences fast-forward."""
    _summing: Summing | None = None
    _abounds: bool = False
    """Blocks reserved early up to an answer's length are hardly ever missed."""
    _runs: dict[int, FastForward] = field(default_factory=dict)
    """By row."""
    _due: list[FastForward] = field(default_factory=list)
    _prompts: list[Batch] = field(default_factory=list)
    """Of the step under way."""
    _num_prompt_tokens: int = 0
    """Of those."""
    _num_positions: int = 0
    """Positions that the next step of all that fast-forward reads, their new ones included."""
    _orders: dict[int, int] = field(default_factory=dict)
    _finals: dict[int, int] = field(default_factory=dict)
    """Of the sequence in each row, the length at which it ends; 0 where its tokens must be reported one by one."""
    _num_entered: int = 0
    _num_unused: int = 0
    """Positions reserved by runs and not reached yet."""
    _step: int = 0
    _start_s: float = 0.0
    _ends: list[float] = field(default_factory=list)
    """Of the steps under way; constant members, so that only the lengths grow."""
    _num_fresh: int = 0
    """Runs that start with the first of them."""
    _past_ends: list[float] = field(default_factory=list)
    _max_ends: int = _MIN_ENDS
    _past_base: int = 0
    """Step after which the first of the past ends came."""

    def __post_init__(self) -> None:
        Replica.__post_init__(self)
        limits = self.scheduler.limits
        self._summing = self.cost if isinstance(self.cost, Summing) and self.cost.is_summing else None
        self._abounds = limits.num_blocks >= _MANY_BLOCKS * limits.max_sequences

    def _look(self, now: float) -> None:
        """An idle loop starts; steps in flight end with the one being computed."""
        ends = self._ends
        if not ends:
            self.events.post(now, self._wake)
            return
        num_steps = bisect_left(ends, now) + 1
        if num_steps < len(ends):
            del ends[num_steps:]
            self.events.post(ends[-1], self._complete)

    def _wake(self, now: float) -> None:
        if not self._ends:
            self._loop(now)

    def _loop(self, now: float) -> None:
        scheduler = self.scheduler
        self.last_view = None
        if self._runs and self._must_settle(now):
            self._settle(now)
        if self._inbox:
            self._take_in(now)
        expired = scheduler.expire(now)
        if expired:
            self.ledger.observe(expired, now)
        if scheduler.num_running > len(self._runs) or scheduler.num_waiting:
            batch = scheduler.schedule(now)
            if batch is not None:
                self._launch(batch, now)
        if self._runs or self._prompts:
            self._compute(now)
        self._note(now)

    def _launch(self, batch: Batch, now: float) -> None:
        """Let decoding sequences fast-forward; the others compute a part of their prompts in the next step."""
        self._num_fresh = 0
        for part in self.scheduler.split(batch):
            (chunk,) = part.chunks
            row = chunk.row
            if chunk.arrival is not None:
                self._enter(row, chunk, chunk.arrival)
            if chunk.token_ids:
                self._prompts.append(part)
                self._num_prompt_tokens += chunk.length
                continue
            run = make(FastForward, (self._step + chunk.length, self._orders[row], self._step, row, part))
            self._runs[row] = run
            heappush(self._due, run)
            self._num_positions += chunk.start + 1
            self._num_unused += num_run_steps(chunk)
            self._num_fresh += 1

    def _enter(self, row: int, chunk: Chunk, arrival: Arrival) -> None:
        self._num_entered += 1
        self._orders[row] = self._num_entered
        wanted = arrival.params.max_tokens
        if arrival.params.n > 1:
            self._finals[row] = 0  # the tokens of choices mix on one timeline
        else:
            self._finals[row] = arrival.prompt_length + wanted if wanted else self.scheduler.limits.max_positions
        self.num_prompt_tokens += arrival.prompt_length
        self.num_cached_tokens += min(chunk.start, arrival.prompt_length)

    def _compute(self, now: float) -> None:
        """As many steps as pass before a run is due; with prompts, one."""
        num_steps = 1
        self._num_step_tokens = len(self._runs) + self._num_prompt_tokens
        if not self._prompts:
            due = self._due
            while self._runs.get(due[0].row) is not due[0]:
                heappop(due)  # it was cut
            num_steps = min(due[0].due_step - self._step, MAX_STRETCH)
        self._start_s = now
        _, *self._ends = accumulate(self._durations(num_steps), initial=now)
        self.events.post(self._ends[-1], self._complete)

    def _durations(self, num_steps: int) -> list[float]:
        prompts = [part.chunks[0] for part in self._prompts]
        summing = self._summing
        if summing is None:
            singles = [
                make(Chunk, (row, run.batch.chunks[0].start + done, 1, (), (), True, None, 0, (), ()))
                for row, run in self._runs.items()
                for done in (self._step - run.first_step,)
            ]
            num_shared = self.scheduler.pool.num_shared * self.scheduler.limits.block_size
            batch = Batch(0, (*singles, *prompts), (), num_shared)
            return self._run_s(batch, self._start_s, num_steps)
        if prompts:
            return [summing.sum_s(len(self._runs), self._num_positions, prompts)]
        return summing.sums_s(len(self._runs), self._num_positions, num_steps)

    def _complete(self, now: float) -> None:
        """Steps have ended, or an event fired that was posted before they were cut."""
        ends = self._ends
        if not ends or ends[-1] != now:
            return
        self._ends = []
        num_steps, num_runs = len(ends), len(self._runs)
        prompts, self._prompts = self._prompts, []
        num_prompt_tokens, self._num_prompt_tokens = self._num_prompt_tokens, 0
        self._step += num_steps
        self._num_positions += num_steps * num_runs
        self._num_unused -= num_steps * num_runs - self._num_fresh
        self.num_steps += num_steps
        self.num_computed_tokens += num_steps * num_runs + num_prompt_tokens
        self.busy_s += now - self._start_s
        if self._warmth is not None:
            self._warmth.take(num_steps)
        self._count_gaps(ends, num_runs)
        mixed = self.scheduler.mixed
        if mixed is not None:
            num_singles = num_runs + sum([part.chunks[0].length == 1 for part in prompts])
            for begun_s, end_s in zip([self._start_s, *ends], ends):
                mixed.note(num_singles, num_runs + num_prompt_tokens, end_s - begun_s)
        self._past_ends.extend(ends)
        if self.tracer is not None:
            self.tracer.steps(self.name, self._start_s, now, num_steps, num_runs + len(prompts), num_prompt_tokens)
        due = self._due
        returning: list[FastForward] = []
        while due and due[0].due_step <= self._step:
            run = heappop(due)
            if self._runs.get(run.row) is run:
                returning.append(run)
        if returning or prompts:
            self._end_fast_forward(returning, prompts, now)
        if not self._runs or len(self._past_ends) > self._max_ends:
            self._forget_ends()
        self._loop(now)

    def _count_gaps(self, ends: list[float], num_runs: int) -> None:
        """Between the tokens of those that fast-forwarded before; a fresh run's first gap is told when it is committed."""
        num_before = num_runs - self._num_fresh
        if num_before:
            self.gaps.add(ends[0] - self._start_s, num_before)
        if num_runs and len(ends) > 1:
            self.gaps.add_gaps(ends, num_runs)
        self._num_fresh = 0

    # Coming back

    def _end_fast_forward(self, runs: list[FastForward], prompts: list[Batch], now: float) -> None:
        """Commit in the order of the engine, which is that of admission, and those with prompts after the others."""
        scheduler = self.scheduler
        if len(runs) > 1:
            runs.sort(key=BY_ORDER)
        limits = scheduler.limits
        num_available = scheduler.pool.num_available
        if num_available < len(runs) + len(prompts):
            # A sequence may have to be preempted: the scheduler must see how far each one is.
            runs = sorted(self._runs.values(), key=BY_ORDER)
            far = near = 0
        else:
            far = num_available - limits.num_blocks // 2 if self._abounds else 0
            near = limits.block_size
        for run in runs:
            far -= self._commit_run(run, far, near, now)
        for part in prompts:
            (chunk,) = part.chunks
            drawn: tuple[int, ...] = ()
            num_steps = 0
            if chunk.samples:
                drawn = _DRAWN[1]
                num_steps = self._steps_alone(chunk.row, chunk.end, far, near)
                far -= num_steps // limits.block_size
            deltas = scheduler.commit_run(part, StepOutput((drawn,)), now, num_steps)
            self.ledger.observe(deltas, now)

    def _commit_run(self, run: FastForward, far: int, near: int, now: float) -> int:
        """Returns how many blocks were promised to its next run."""
        (chunk,) = run.batch.chunks
        row, start = chunk.row, chunk.start
        count = self._step - run.first_step
        num_steps = self._steps_alone(row, start + count, far, near)
        drawn = _DRAWN[count] if count < len(_DRAWN) else (TOKEN,) * count
        deltas = self.scheduler.commit_run(run.batch, StepOutput((drawn,)), now, num_steps)
        self._runs.pop(row)
        self._num_positions -= start + count + 1
        self._num_unused -= chunk.length - count
        for delta in deltas:
            self.ledger.observe_run(delta, self._past_ends[run.first_step - self._past_base :])
        return num_steps // self.scheduler.limits.block_size

    def _steps_alone(self, row: int, start: int, far: int, near: int) -> int:
        """Steps that a sequence at this position continues after its next: to its end while blocks abound, else to the end
        of a block, so that it reserves none early. None where the scheduler must see every step."""
        num_left = self._finals[row] - start - 1
        if not near or num_left <= 1:
            return 0
        if num_left // near < far:
            return num_left - 1
        return min(num_left, near - start % near) - 1

    # Seeing everybody

    def _must_settle(self, now: float) -> bool:
        if self.settles and (self._inbox or self.scheduler.num_waiting or self.scheduler.roster.behind):
            return True
        wake_s = self.scheduler.wake_s
        return wake_s is not None and wake_s <= now

    def _settle(self, now: float) -> None:
        """Cut all runs after the steps done, as if each had ended here."""
        for run in sorted(self._runs.values(), key=BY_ORDER):
            self._commit_run(run, 0, 0, now)

    def _forget_ends(self) -> None:
        oldest = min([run.first_step for run in self._runs.values()], default=self._step)
        del self._past_ends[: oldest - self._past_base]
        self._past_base = oldest
        self._max_ends = max(_MIN_ENDS, 2 * len(self._past_ends))

    def _usage(self, held_fraction: float) -> float:
        limits = self.scheduler.limits
        return max(0.0, held_fraction - self._num_unused / (limits.num_blocks * limits.block_size))
