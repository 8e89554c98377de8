"""Recorded arrivals: when requests came, how long they were, and which prompts began alike. No word of them.

A `Trace` is columns of numbers, so that millions of requests fit; `workload` makes each request when it is asked for. Equal
block ids become equal tokens, so that a prefix cache meets what it met when the trace was recorded. Files are read by
`trace_files`.
"""

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy

from penstock.errors import ConfigError
from penstock.runtime.core.request import Request, SamplingParams
from penstock.tools.workload.workload import ANSWERED, Workload

BLOCK_TOKENS = 512
"""Prompt tokens that one block id of a published trace stands for."""
MAX_BLOCK_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Trace:
    """Rows in order of arrival, the first at time 0. `blocks` holds the ids of all prompts one after another; the ids of row
    i lie from `block_starts[i]` to `block_starts[i + 1]`. A prompt without ids is like no other.
    """

    times_s: "array[float]"
    prompt_lengths: "array[int]"
    answer_lengths: "array[int]"
    blocks: "array[int]"
    block_starts: "array[int]"
    num_unanswered: int = 0
    """Rows left out because nothing was generated for them: refused, failed or given up."""
    block_size: int = BLOCK_TOKENS
    """Tokens that one id stands for."""
    names_answers: bool = False
    """Ids stand for whole blocks of a prompt and its answer, as a server's cache held them; otherwise for a prompt alone, its
    last part included."""

    def __len__(self) -> int:
        return len(self.times_s)

    @property
    def span_s(self) -> float:
        return self.times_s[-1] - self.times_s[0] if len(self) else 0.0

    def blocks_of(self, row: int) -> "array[int]":
        return self.blocks[self.block_starts[row] : self.block_starts[row + 1]]

    def rows(self) -> Iterator["TraceRow"]:
        for row, (time_s, prompt, answer) in enumerate(
            zip(self.times_s, self.prompt_lengths, self.answer_lengths, strict=True)
        ):
            yield TraceRow(time_s, prompt, answer, self.blocks_of(row))

    def first(self, count: int) -> "Trace":
        """Only the first rows."""
        if count < 1:
            raise ConfigError(f"the first {count} requests of a trace: choose 1 or more")
        return self._part(0, min(count, len(self)))

    def window(self, start_s: float, end_s: float = math.inf) -> "Trace":
        """Only the rows from `start_s` to before `end_s`; the first of them then comes at time 0."""
        if not 0.0 <= start_s < end_s:
            raise ConfigError(f"a trace's window from {start_s:g} s to {end_s:g} s is empty; choose 0 <= start < end")
        low, high = bisect_left(self.times_s, start_s), bisect_left(self.times_s, end_s)
        if low == high:
            raise ConfigError(
                f"no request of the trace came between {start_s:g} s and {end_s:g} s; it is {self.span_s:,.1f} s long"
            )
        return self._part(low, high)

    def faster(self, factor: float) -> "Trace":
        """The same rows at this many times their rate."""
        if not 1e-6 <= factor <= 1e6:
            raise ConfigError(f"the rate of a trace is scaled by {factor}; choose a number above 0, at most 1,000,000")
        times_s = array("d", (time_s / factor for time_s in self.times_s))
        return replace(self, times_s=times_s)

    def workload(self, vocab_size: int) -> Workload:
        """The requests of the trace, made one by one as they are asked for."""
        return TracedWorkload(TracedRequests(self, vocab_size), num_unanswered=self.num_unanswered)

    def _part(self, low: int, high: int) -> "Trace":
        start_s = self.times_s[low]
        first_block, last_block = self.block_starts[low], self.block_starts[high]
        return replace(
            self,
            times_s=array("d", (time_s - start_s for time_s in self.times_s[low:high])),
            prompt_lengths=self.prompt_lengths[low:high],
            answer_lengths=self.answer_lengths[low:high],
            blocks=self.blocks[first_block:last_block],
            block_starts=array("q", (start - first_block for start in self.block_starts[low : high + 1])),
        )


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace."""

    time_s: float
    prompt_length: int
    answer_length: int
    blocks: Sequence[int] = ()


def trace_of_rows(
    rows: Sequence[TraceRow], num_unanswered: int = 0, block_size: int = BLOCK_TOKENS, *, names_answers: bool = False
) -> Trace:
    """Rows in any order."""
    ordered = sorted(rows, key=lambda row: row.time_s)
    start_s = ordered[0].time_s if ordered else 0.0
    blocks, starts = array("q"), array("q", [0])
    for row in ordered:
        blocks.extend(row.blocks)
        starts.append(len(blocks))
    return Trace(
        array("d", (row.time_s - start_s for row in ordered)),
        array("q", (row.prompt_length for row in ordered)),
        array("q", (row.answer_length for row in ordered)),
        blocks,
        starts,
        num_unanswered,
        block_size,
        names_answers,
    )


class TracedRequests(Sequence[Request]):
    """The requests of a trace. Each is made when it is asked for, the same every time, and not kept."""

    def __init__(self, trace: Trace, vocab_size: int) -> None:
        if not 1 <= vocab_size <= 2**31:
            raise ConfigError(f"a vocabulary of {vocab_size}: choose 1 or more")
        self.trace = trace
        self._vocab_size = vocab_size
        self._num_asked = _num_asked(trace) if trace.names_answers else {}

    def __len__(self) -> int:
        return len(self.trace)

    @overload
    def __getitem__(self, index: int) -> Request: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Request, ...]: ...
    def __getitem__(self, index: int | slice) -> Request | tuple[Request, ...]:
        if isinstance(index, slice):
            return tuple(self[number] for number in range(*index.indices(len(self))))
        number = range(len(self))[index]
        return Request(
            request_id=number,
            prompt=self._prompt(number),
            params=SamplingParams(
                max_tokens=self.trace.answer_lengths[number], ignore_eos=True, temperature=0.0, seed=0
            ),
            arrival_s=self.trace.times_s[number],
        )

    def _prompt(self, number: int) -> tuple[int, ...]:
        length, size = self.trace.prompt_lengths[number], self.trace.block_size
        blocks = self.trace.blocks_of(number)[: -(-length // size)]
        tokens = _tokens(blocks, size, self._vocab_size)
        for place, block in enumerate(blocks if self._num_asked else ()):
            if (num_asked := self._num_asked.get(block, size)) < size:
                tokens[place * size + num_asked : (place + 1) * size] = [ANSWERED] * (size - num_asked)
        del tokens[length:]
        tokens += _tokens([-1 - number], length - len(tokens), self._vocab_size)
        return tuple(tokens)


def _num_asked(trace: Trace) -> dict[int, int]:
    """Of blocks that an answer fills, the tokens before it. A simulated model draws one token for ever, and a later prompt
    that holds the answer must hold that."""
    found: dict[int, int] = {}
    for row in trace.rows():
        for place in range(row.prompt_length // trace.block_size, len(row.blocks)):
            found.setdefault(row.blocks[place], max(row.prompt_length - place * trace.block_size, 0))
    return found


@dataclass(frozen=True, slots=True)
class TracedWorkload(Workload):
    """A workload whose totals are known without making a prompt."""

    requests: TracedRequests

    def __post_init__(self) -> None:
        """A trace is in order and its rows are numbered: nothing to check."""

    @property
    def num_prompt_tokens(self) -> int:
        return sum(self.requests.trace.prompt_lengths)

    @property
    def num_output_tokens(self) -> int:
        return sum(self.requests.trace.answer_lengths)

    @property
    def span_s(self) -> float:
        return self.requests.trace.span_s


def _tokens(names: Sequence[int], count: int, vocab_size: int) -> list[int]:
    """`count` tokens for each name, which depend on it alone; different names give different ones. A finalizer of 64-bit
    hashes."""
    with numpy.errstate(over="ignore"):
        keys: numpy.typing.NDArray[numpy.uint64] = numpy.array(names, numpy.int64).view(numpy.uint64)
        places: numpy.typing.NDArray[numpy.uint64] = numpy.arange(count, dtype=numpy.uint64)
        value: numpy.typing.NDArray[numpy.uint64] = numpy.add.outer(_mixed(keys), places)
        tokens: list[int] = (_mixed(value) % numpy.uint64(vocab_size)).ravel().tolist()
    return tokens


def _mixed(value: "numpy.typing.NDArray[numpy.uint64]") -> "numpy.typing.NDArray[numpy.uint64]":
    value = (value + numpy.uint64(0x9E3779B97F4A7C15)) * numpy.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> numpy.uint64(31))) * numpy.uint64(0x94D049BB133111EB)
    return value ^ (value >> numpy.uint64(29))
