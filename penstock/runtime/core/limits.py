"""The bounds a scheduler works within: found at start, fixed but for the size of steps, which follows from their time."""

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from penstock.errors import RequestError
from penstock.runtime.core.batch import Batch
from penstock.runtime.core.kinds.groups import PLAIN, CacheGroups
from penstock.runtime.core.request import Request

NUM_AGREEING = 3
"""Full steps in a row that must say the same before the size changes."""


class Limits(NamedTuple):
    num_blocks: int
    block_size: int
    max_context: int
    max_batch_tokens: int
    max_sequences: int
    max_waiting: int
    max_waiting_tokens: int
    prefix_caching: bool = True
    num_kept_blocks: int | None = None
    """Blocks that may be filled for the sake of prefixes alone; None for all."""
    batch_lane_tokens: int = 128
    """Most tokens of a step of batch sequences alone: an interactive request waits for its end, or its work is lost."""

    shared_tokens: int | None = None
    """Most tokens of a step while several tenants have work, where their service is counted; None for no fewer."""

    groups: CacheGroups = PLAIN
    """The kinds of cache that a sequence holds blocks of."""

    @property
    def max_positions(self) -> int:
        """Most tokens one sequence can reach: the last one drawn needs no place in the cache."""
        if self.groups.is_plain:
            return min(self.max_context, self.num_blocks * self.block_size + 1)
        fits = self.max_context - 1
        ids = partial(self.groups.most_ids, block_size=self.block_size, ahead=self.max_batch_tokens)
        if ids(fits) > self.num_blocks:
            fits = bisect_right(range(fits), self.num_blocks, key=ids) - 1
        return fits + 1

    def longest(self, request: Request) -> int:
        """Tokens, prompt included, at which the request ends. Refuses a request that even an idle engine could not serve."""
        num_prompt = len(request.prompt)
        wanted = request.params.max_tokens
        if num_prompt >= self.max_context:
            raise RequestError(
                f"This model's maximum context length is {self.max_context:,} tokens. However, the prompt has "
                f"{num_prompt:,} tokens, which leaves none for an answer; shorten it or serve with a larger --max-context",
                param="prompt",
                code="context_length_exceeded",
            )
        if num_prompt + (wanted or 1) > self.max_context:
            raise RequestError(
                f"This model's maximum context length is {self.max_context:,} tokens. However, you requested "
                f"{num_prompt + (wanted or 1):,} ({num_prompt:,} in the prompt, {wanted:,} to generate); shorten the prompt, "
                "lower max_tokens or serve with a larger --max-context",
                param="max_tokens",
                code="context_length_exceeded",
            )
        if num_prompt + (wanted or 1) > self.max_positions:
            raise RequestError(
                f"the request needs {num_prompt + (wanted or 1) - 1:,} cached tokens but the whole KV cache holds "
                f"{self.max_positions - 1:,}; shorten it, lower max_tokens or serve with a larger --num-blocks",
                param="max_tokens",
                code="context_length_exceeded",
            )
        if request.params.n > self.max_waiting:
            raise RequestError(
                f"n is {request.params.n} but at most {self.max_waiting:,} sequences may wait; "
                "lower n or serve with a larger --max-waiting",
                param="n",
            )
        limit = num_prompt + wanted if wanted else self.max_positions
        if request.resumed and num_prompt + max(map(len, request.resumed)) >= limit:
            raise RequestError(
                "the answer to go on with is as long as it may be already; ask for none", param="resumed"
            )
        return limit


@dataclass(slots=True, kw_only=True)
class StepSize:
    """How many tokens a step may have, corrected by how long full steps really take: at start it follows from a short timing of
    the device, which a busy moment spoils.

    Doubles where full steps take less than half of the time they may take, halves where they take more than double.
    """

    step_s: float
    """How long a full step may take."""
    least: int
    most: int
    is_bounded_by_start: bool = False
    """No larger than the first step's size: more room was not set aside."""
    counts_decodes: bool = False
    """Steps that only generate count too; else those with prompts alone say how long tokens take."""
    is_target: bool = False
    """Answers are to wait no longer: steps begin with the least, and have room for that much of a prompt beside all answers."""
    shared: "StepSize | None" = None
    """Of steps that several tenants share."""
    _factor: float = field(default=1.0, init=False)
    _num_agreeing: int = field(default=0, init=False)

    def after(self, batch: Batch, seconds: float, size: int) -> int:
        """The size from now on, given that of the step just computed."""
        if self.is_bounded_by_start:
            self.most, self.is_bounded_by_start = min(self.most, size), False
        least = min(len(batch.chunks) + self.least, self.most) if self.is_target else self.least
        if self.is_target and size < least:
            return least
        if (batch.chunks[-1].length == 1 and not self.counts_decodes) or batch.num_tokens < size:
            return size
        factor = 2.0 if seconds < self.step_s / 2 else 0.5 if seconds > 2 * self.step_s else 1.0
        self._num_agreeing = self._num_agreeing + 1 if factor == self._factor else 1
        self._factor = factor
        if self._num_agreeing < NUM_AGREEING:
            return size
        self._num_agreeing = 0
        return min(max(int(size * factor), min(least, size)), max(self.most, least))

    def resize(self, limits: Limits, batch: Batch, seconds: float, *, is_shared: bool) -> Limits:
        """The limits from now on, given how long a step took that was one of several tenants or was not."""
        step_size, before = (self.shared, limits.shared_tokens) if is_shared else (self, limits.max_batch_tokens)
        if step_size is None or before is None:
            return limits
        size = step_size.after(batch, seconds, before)
        if size == before:
            return limits
        return limits._replace(shared_tokens=size) if is_shared else limits._replace(max_batch_tokens=size)
