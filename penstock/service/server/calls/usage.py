"""What a call may use and what it used, in tokens. How a dialect words it is the dialect's."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from penstock.runtime.core.request import SamplingParams
from penstock.service import marks
from penstock.service.marks import TokenBound, TokenCount
from penstock.service.server.calls.call import Call
from penstock.service.server.http.faults import ApiError, ErrorKind


class Usage(NamedTuple):
    num_prompt: int
    num_cached: int
    """Prompt tokens that the prefix cache gave."""
    num_output: int
    num_reasoning: int
    num_accepted: int
    """Tokens of the client's prediction that were checked and came true."""
    num_rejected: int
    num_draft: int
    """Drafts verified, of all drafters."""
    num_accepted_draft: int
    num_written: int = 0
    """Prompt tokens that were put into the prefix cache to stay there."""
    written_by_ttl: tuple[tuple[float, int], ...] = ()
    """The same, by how many seconds they stay."""


def usage_of(call: Call) -> Usage:
    """A prompt counts once however many choices it has; what was cached of it is known from its first choice."""
    num_choices = call.num_choices
    written = _written(call)
    return Usage(
        num_prompt=sum(map(len, call.prompts)),
        num_cached=sum(map(min, [writer.num_cached for writer in call.writers[::num_choices]], map(len, call.prompts))),
        num_output=sum(writer.num_tokens for writer in call.writers),
        num_reasoning=sum(writer.num_reasoning_tokens for writer in call.writers),
        num_accepted=sum(writer.predicted[1] for writer in call.writers),
        num_rejected=sum(writer.predicted[0] - writer.predicted[1] for writer in call.writers),
        num_draft=sum(writer.drafted[0] for writer in call.writers),
        num_accepted_draft=sum(writer.drafted[1] for writer in call.writers),
        num_written=sum(count for _, count in written),
        written_by_ttl=written,
    )


def what_is_forgotten(call: Call) -> dict[str, str]:
    """Which part of a text the engine keeps, where it forgets: a member of every dialect's usage."""
    return {"long_context": call.long_context} if call.long_context else {}


def _written(call: Call) -> tuple[tuple[float, int], ...]:
    """Tokens that were to be kept and had not been found: each counts for the first pin that covers it."""
    written = []
    for writer in call.writers[:: call.num_choices]:
        start = writer.num_cached
        for num_tokens, ttl_s in sorted(call.requests[0].pins):
            if num_tokens > start and writer.num_tokens:
                written.append((ttl_s, num_tokens - start))
                start = num_tokens
    return tuple(written)


def token_count(call: Call) -> TokenCount:
    """As a router receives it."""
    usage = usage_of(call)
    return TokenCount(usage.num_prompt, usage.num_output, usage.num_cached)


def within(most: TokenBound, prompts: Sequence[Sequence[int]], sampling: SamplingParams) -> SamplingParams:
    """Money was set aside for so many tokens: an answer without a bound of its own gets that one, and a request that may take
    more is refused with what it may take.
    """
    num_choices = max(len(prompts) * sampling.n, 1)
    share = most.num_output // num_choices
    wanted = max(sampling.min_tokens, 1) if sampling.max_tokens is None else sampling.max_tokens
    check_bound(most, sum(map(len, prompts)), wanted * num_choices)
    return sampling if sampling.max_tokens is not None else replace(sampling, max_tokens=share)


def check_bound(most: TokenBound | None, num_prompt: int, num_output: int = 0) -> None:
    if most is not None and (num_prompt > most.num_prompt or num_output > most.num_output):
        needs = b"%d %d" % (num_prompt, max(num_output, most.num_output))
        raise ApiError(
            ErrorKind.CONFLICT,
            f"the request may take {num_prompt:,} tokens of prompt and {num_output:,} of answer, more than money was set "
            "aside for; ask for less",
            code="bound_exceeded",
            headers=((marks.MOST_HEADER, needs),),
        )
