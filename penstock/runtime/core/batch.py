"""The values that cross layers: what a step computes, its results, and what a client is sent.

All are immutable and hold no object of any layer, so a `Batch` could have been read from a file. They are tuples because a
step makes one of each per sequence.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from penstock.runtime.core.request import SamplingParams

make = tuple.__new__
"""`make(Chunk, (row, start, ...))` is `Chunk(row, start, ...)` in 0.6 us instead of 1.5 (`timeit`, best of seven, Python 3.11):
no code of the class is run. For what is made once a sequence and step, or once a simulated event, and nothing else.
All fields are given, in their order."""


class Arrival(NamedTuple):
    """What the runner must know of a sequence that takes a row. It replaces whatever the row held before."""

    params: SamplingParams
    choice: int
    """Which of the request's n generations this is; keys the random numbers beside the seed."""
    prompt_length: int
    history: tuple[int, ...]
    """Tokens before the chunk's start, where drawing needs them (penalties); else empty."""
    adapter: str


def num_agreeing(guess: Sequence[int], tokens: Sequence[int], begin: int = 0) -> int:
    """Tokens of a guess that are those from `begin` on, before the first that is not."""
    count = 0
    while count < len(guess) and guess[count] == tokens[begin + count]:
        count += 1
    return count


class Chunk(NamedTuple):
    """A run of one sequence's tokens in one step.

        positions   start ................ start + length
        tokens      [ in the row already | token_ids      ]
                                           [.. | drafts   ]

    The last `len(token_ids)` tokens are new to the runner; those before them it sampled itself or saw earlier. The last
    `num_drafts` of them are guesses to be verified. Attention reads positions 0 .. start + length through the row's blocks.
    """

    row: int
    start: int
    length: int
    token_ids: tuple[int, ...]
    new_blocks: tuple[int, ...]
    """Block ids appended to the row's table; with an arrival, the whole table."""
    samples: bool
    """Draw a token after the last position (and after each draft)."""
    arrival: Arrival | None
    num_drafts: int = 0
    others: tuple[tuple[int, ...], ...] = ()
    """Block ids of further groups, appended to the row's table of each; nothing where there is one group."""
    state: tuple[int, ...] = ()
    """Slots (read, written) for the state, where they are others than the chunk before had; see `core.kinds.states`."""

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def drafts(self) -> tuple[int, ...]:
        return self.token_ids[len(self.token_ids) - self.num_drafts :]


class Batch(NamedTuple):
    """One step's work. Copies are done before anything is computed."""

    step: int
    chunks: tuple[Chunk, ...]
    copies: tuple[tuple[int, int], ...] = ()
    """(from, to) block ids whose contents are duplicated: a fork's last, partly filled block."""
    num_shared: int = 0
    """Positions in blocks that several sequences hold, each counted once less than it is held. It does not change what is
    computed; positions read before are read faster."""

    @property
    def num_tokens(self) -> int:
        return sum(chunk.length for chunk in self.chunks)

    def only(self, indices: Iterable[int]) -> "Batch":
        """The same step, copies included, with some of its chunks."""
        return self._replace(chunks=tuple(self.chunks[i] for i in indices))


class Logprob(NamedTuple):
    """Log probability of a token and of its likeliest rivals, likeliest first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


NO_TOKEN_LEFT = (
    "no token may be drawn: allowed tokens, banned tokens, minimum length and grammar leave none; loosen one of them"
)
"""The failure of a sequence that is its request's own fault."""


class StepOutput(NamedTuple):
    """What a step gave, one entry per chunk of its batch."""

    tokens: tuple[tuple[int, ...], ...]
    """Tokens drawn: none if the chunk does not sample, else accepted drafts and one more."""
    drafts: tuple[tuple[int, ...], ...] = ()
    """Guesses for each sequence's next tokens; empty without a drafter."""
    logprobs: tuple[tuple[Logprob, ...], ...] = ()
    """One per drawn token; empty when no request asked."""
    prompt_logprobs: tuple[tuple[Logprob, ...], ...] = ()
    """Of the chunk's own prompt tokens, the prompt's very first left out; empty when no request asked."""
    failures: tuple[tuple[int, str], ...] = ()
    """(chunk index, message) of sequences that could not be computed; the others are unharmed."""

    @property
    def has_tokens_only(self) -> bool:
        """Nothing came beside the drawn tokens."""
        return not (self.failures or self.drafts or self.logprobs or self.prompt_logprobs)

    def result(self) -> "StepOutput":
        """A step that is over when it is launched needs no other ticket."""
        return self

    def draw(self) -> None:
        """All is drawn."""


def joined(outputs: Sequence[StepOutput], sizes: Sequence[int]) -> StepOutput:
    """One output of a step that was computed in parts of so many chunks."""
    columns: dict[str, list[tuple[Any, ...]]] = {"tokens": [], "drafts": [], "logprobs": [], "prompt_logprobs": []}
    failures: list[tuple[int, str]] = []
    begin = 0
    for output, size in zip(outputs, sizes, strict=True):
        for name, column in columns.items():
            column.extend(getattr(output, name) or ((),) * size)
        failures += [(begin + index, message) for index, message in output.failures]
        begin += size
    filled = {name: tuple(column) if any(column) or name == "tokens" else () for name, column in columns.items()}
    return StepOutput(**filled, failures=tuple(failures))


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class Fault(StrEnum):
    """Whose fault an error is."""

    REQUEST = "request"
    CAPACITY = "capacity"
    DEADLINE = "deadline"
    ENGINE = "engine"


class Finish(NamedTuple):
    reason: FinishReason
    message: str = ""
    """Why, for an error."""
    fault: Fault | None = None
    stop_token_id: int | None = None


class PrefixHit(NamedTuple):
    """What the prefix cache gave a sequence when it was first admitted."""

    num_tokens: int
    miss: str
    """Why no more was found; empty when everything cacheable was."""
    admitted_s: float = 0.0
    """When it was admitted: before that it waited, after that it computed."""
    differs: tuple[int, int, int] | None = None
    """Where the most recent cached prompt with the same beginning differs: position, own token, the token there."""
    host: int = 0
    """Of the tokens, those that came back from host memory."""
    disk: int = 0
    tier_miss: str = ""
    """Why tiers gave no more."""
    num_moved: int = 0
    """Of the tokens, those that another engine computed for this request: they were not in any cache."""

    @property
    def num_reused(self) -> int:
        """Tokens that had been computed before."""
        return self.num_tokens - self.num_moved


class Drafted(NamedTuple):
    """Drafts that one step verified for a sequence."""

    num_checked: int
    num_accepted: int
    """This many tokens of the delta, from `begin` on, were accepted drafts."""
    source: str
    """Which drafter guessed them."""
    begin: int = 0


class Delta(NamedTuple):
    """New tokens of one choice of a request, and how it ended if it did."""

    request_id: int
    choice: int
    token_ids: tuple[int, ...]
    finish: Finish | None = None
    logprobs: tuple[Logprob, ...] = ()
    prompt_logprobs: tuple[Logprob, ...] = ()
    prefix: PrefixHit | None = None
    """On the first delta of a choice only."""
    drafts: tuple[Drafted, ...] = ()
    """One for each step that verified drafts."""
