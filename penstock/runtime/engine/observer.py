"""Views of the engine for an observer: recent steps, running and waiting requests, the KV blocks.

Without an observer nothing is kept. A subscription lasts a few seconds and is renewed; its cost is bounded: the longer a
view took, the later the next.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from penstock.runtime.core.batch import Batch, StepOutput
from penstock.runtime.core.blocks import BlockPool
from penstock.runtime.core.inspection import PoolState, SequenceState, pool_state, sequence_states
from penstock.runtime.engine.engine import Engine
from penstock.runtime.engine.loop.listeners import StepListener

PERIOD_S = 0.25
"""Between two views."""
COST_FRACTION = 0.003
"""Share of the loop's time that views may take."""
MAX_STEPS = 512
"""Kept between two views."""
MAX_SEQUENCES = 1024
HASH_BYTES = 8
"""Of a block's hash that leave the process: enough to tell which replica holds a prefix."""


class StepView(NamedTuple):
    """One step, added up."""

    end_s: float
    duration_s: float
    num_prompt_tokens: int
    num_decoding: int
    num_drafts: int
    num_accepted: int
    num_read: int
    """KV positions that attention read."""
    prompts: tuple[int, ...]
    """Requests whose prompts were computed in it."""


class EngineView(NamedTuple):
    time_s: float
    steps: tuple[StepView, ...]
    """Since the last view."""
    sequences: tuple[SequenceState, ...]
    pool: PoolState
    cost_s: float
    """What making this view took."""


class Observer(StepListener):
    """Belongs to the thread of the engine's loop, except `look`."""

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self._until_s = 0.0
        self._next_s = 0.0
        self._last_end_s = 0.0
        self._is_listening = False
        self._steps: deque[StepView] = deque(maxlen=MAX_STEPS)

    def look(self, seconds: float) -> None:
        """Make views for at least that long."""
        self._until_s = self._clock() + seconds

    def is_watched(self, now: float) -> bool:
        return now < self._until_s

    def view(self) -> EngineView | None:
        """A view, if it is time for one."""
        now = self._clock()
        if now >= self._until_s:
            if self._is_listening:
                self._listen(is_on=False)
                self._steps.clear()
            return None
        if not self._is_listening:
            self._listen(is_on=True)
        if now < self._next_s:
            return None
        scheduler = self._engine.scheduler
        steps = tuple(self._steps)
        self._steps.clear()
        sequences, pool = sequence_states(scheduler, MAX_SEQUENCES), pool_state(scheduler.pool)
        cost_s = self._clock() - now
        self._next_s = now + max(PERIOD_S, cost_s / COST_FRACTION)
        return EngineView(now, steps, sequences, pool, cost_s)

    def _listen(self, *, is_on: bool) -> None:
        self._is_listening = is_on
        (self._engine.listeners.add if is_on else self._engine.listeners.remove)(self)

    def landed(self, batch: Batch, output: StepOutput, turn_s: float, now: float) -> None:
        begin_s, end_s, self._last_end_s = max(turn_s, self._last_end_s), now, now
        num_prompt = num_decoding = num_drafts = num_accepted = num_read = 0
        rows = []
        for chunk, drawn in zip(batch.chunks, output.tokens):
            num_read += chunk.end
            if chunk.num_drafts:
                num_drafts += chunk.num_drafts
                num_accepted += max(len(drawn) - 1, 0)
                num_decoding += 1
            elif chunk.length == 1:
                num_decoding += 1
            else:
                num_prompt += chunk.length
                rows.append(chunk.row)
        self._steps.append(
            StepView(
                end_s,
                end_s - begin_s,
                num_prompt,
                num_decoding,
                num_drafts,
                num_accepted,
                num_read,
                self._requests_in(rows) if rows else (),
            )
        )

    def _requests_in(self, rows: list[int]) -> tuple[int, ...]:
        by_row = {sequence.row: sequence.request_id for sequence in self._engine.scheduler.roster.running}
        return tuple(by_row[row] for row in rows if row in by_row)


class BlockFeed:
    """Which blocks are in the prefix cache, reported as they change. Costs nothing until `follow` is called.

    Belongs to the thread of the engine's loop, but for `follow`. Of a block that came and went between two looks the last
    state counts.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._is_asked = False
        self._is_listening = False
        self._changes: dict[bytes, bool] = {}

    def follow(self) -> None:
        """Begin to watch the cache: the next report lists every block in it."""
        self._is_asked = True

    def published(self, hash: bytes, parent: bytes, tokens: bytes) -> None:
        self._changes[hash[:HASH_BYTES]] = True

    def removed(self, hash: bytes) -> None:
        self._changes[hash[:HASH_BYTES]] = False

    def news(self) -> tuple[bool, bytes, bytes] | None:
        """Whether the report is a full list, hashes published and hashes removed; None without changes."""
        if self._is_asked:
            self._is_asked = False
            if not self._is_listening:
                self._is_listening = True
                self._pool.listen(self)
            self._changes.clear()
            return True, b"".join(hash_[:HASH_BYTES] for hash_ in self._pool.published), b""
        if not self._changes:
            return None
        changes, self._changes = self._changes, {}
        published = b"".join(hash_ for hash_, is_there in changes.items() if is_there)
        return False, published, b"".join(hash_ for hash_, is_there in changes.items() if not is_there)
