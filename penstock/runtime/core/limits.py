"""The bounds a scheduler works within: found at start, fixed for its life."""

from bisect import bisect_right
from functools import partial
from typing import NamedTuple

from penstock.errors import RequestError
from penstock.runtime.core.kinds.groups import PLAIN, CacheGroups
from penstock.runtime.core.request import Request


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
