"""A draft model: a second, smaller model that generates the guesses.

It has a runner of its own, with rows and KV blocks for as many generations as drafting can pay for. The tokens it has computed
of a generation are compared with those of the target, so it need not be told of rejected guesses, preemptions or failed steps:
it continues from the last token on which both agree. Long prompts are computed in pieces, one between two steps of the target.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.runtime.core.batch import Arrival, Batch, Chunk
from penstock.runtime.core.request import SamplingParams
from penstock.runtime.core.runner import Runner
from penstock.runtime.draft.drafter import NO_GUESS, Guess, Key, View
from penstock.runtime.draft.guess_cost import GuessCost

PIECE = 256
"""Prompt tokens computed between two steps of the target."""
USUAL_TOKENS = 2
"""Tokens read before a first guess when all guesses before have come true; one when some have not."""
GREEDY = SamplingParams(temperature=0.0)


@dataclass(slots=True)
class Reading:
    """How far the draft model is with one generation: the tokens whose keys and values its row holds."""

    row: int
    tokens: list[int] = field(default_factory=list)
    is_new: bool = True

    def agree(self, tokens: Sequence[int]) -> int:
        """How many of the tokens need not be computed again; at least one is left to compute."""
        most = min(len(self.tokens), len(tokens) - 1)
        count = most
        while count and self.tokens[count - 1] != tokens[count - 1]:
            count -= 1  # what differs is at the end: guesses that did not come true
        while self.tokens[:count] != list(tokens[:count]):
            count //= 2
        del self.tokens[count:]
        return count


class ModelDrafter:
    name = "model"

    def __init__(
        self,
        runner: Runner,
        *,
        num_rows: int,
        max_context: int,
        block_size: int,
        vocab_size: int,
        clock: Callable[[], float],
    ) -> None:
        """The runner has a block more for every row than its context fills."""
        self._runner = runner
        self._max_context = max_context
        self._blocks_per_row = -(-max_context // block_size)
        self._vocab_size = vocab_size
        self._clock = clock
        self._free = list(range(num_rows))
        self._readings: OrderedDict[Key, Reading] = OrderedDict()
        """The one used last stands last."""
        self._num_steps = 0
        self.seconds = GuessCost()

    def propose(self, views: Sequence[View], most: int) -> list[Guess]:
        guesses = [NO_GUESS] * len(views)
        ready: list[tuple[int, View, Reading]] = []
        budget = PIECE
        for index, view in enumerate(views):
            reading = self._reading(view, {one.key for one in views}) if most else None
            if reading is None or len(view.tokens) + most > self._max_context:
                continue
            num_left = len(view.tokens) - reading.agree(view.tokens)
            if num_left > PIECE:
                if budget > 0:
                    self._read(view, reading, budget)
                    budget = 0
            else:
                ready.append((index, view, reading))
        if ready:
            for (index, _, _), tokens in zip(ready, self._guess([entry[1:] for entry in ready], most)):
                guesses[index] = Guess(tokens, self.name)
        return guesses

    def finish(self, view: View) -> None:
        reading = self._readings.pop(view.key, None)
        if reading is not None:
            self._free.append(reading.row)

    def _reading(self, view: View, wanted: set[Key]) -> Reading | None:
        """A row for a generation; one that drafts no more gives its own up."""
        reading = self._readings.pop(view.key, None)
        if reading is None:
            if not self._free:
                idle = next((key for key in self._readings if key not in wanted), None)
                if idle is None:
                    return None
                self._free.append(self._readings.pop(idle).row)
            reading = Reading(self._free.pop())
        self._readings[view.key] = reading
        return reading

    def _read(self, view: View, reading: Reading, count: int) -> None:
        start = len(reading.tokens)
        self._launch([self._chunk(view, reading, start + count, samples=False)])
        reading.tokens.extend(view.tokens[start : start + count])

    def _guess(self, entries: list[tuple[View, Reading]], most: int) -> list[tuple[int, ...]]:
        begin_s = self._clock()
        chunks = [self._chunk(view, reading, len(view.tokens), samples=True) for view, reading in entries]
        is_usual = all(chunk.length <= USUAL_TOKENS for chunk in chunks)
        guesses = [[token] for token in self._launch(chunks)]
        for view, reading in entries:
            reading.tokens.extend(view.tokens[len(reading.tokens) :])
        first_s = self._clock()
        for _ in range(most - 1):
            chunks = []
            for (_, reading), guess in zip(entries, guesses):
                chunks.append(Chunk(reading.row, len(reading.tokens), 1, (), (), True, None))
                reading.tokens.append(guess[-1])
            for guess, token in zip(guesses, self._launch(chunks)):
                guess.append(token)
        self.seconds.learn_parts(
            first_s - begin_s if is_usual else None, (self._clock() - first_s) / (most - 1) if most > 1 else None
        )
        return [self._known(guess) for guess in guesses]

    def _known(self, guess: list[int]) -> tuple[int, ...]:
        """As far as the target has such tokens; a smaller model may have more of them, for padding."""
        count = next((place for place, token in enumerate(guess) if not 0 <= token < self._vocab_size), len(guess))
        return tuple(guess[:count])

    def _chunk(self, view: View, reading: Reading, end: int, *, samples: bool) -> Chunk:
        start = len(reading.tokens)
        arrival: Arrival | None = None
        blocks: tuple[int, ...] = ()
        if reading.is_new:
            arrival = Arrival(params=GREEDY, choice=0, prompt_length=view.num_prompt, history=(), adapter="")
            first = reading.row * self._blocks_per_row
            blocks = tuple(range(first, first + self._blocks_per_row))
            reading.is_new = False
        return Chunk(reading.row, start, end - start, tuple(view.tokens[start:end]), blocks, samples, arrival)

    def _launch(self, chunks: list[Chunk]) -> list[int]:
        self._num_steps += 1
        output = self._runner.launch(Batch(self._num_steps, tuple(chunks))).result()
        failed = {index for index, _ in output.failures}
        return [tokens[0] if tokens and i not in failed else -1 for i, tokens in enumerate(output.tokens)]
