"""One choice being written: the engine's tokens in, what a client is sent of them out."""

from dataclasses import InitVar, dataclass, field
from typing import NamedTuple

from penstock.runtime.core.batch import Delta, Drafted, Finish, FinishReason, Logprob
from penstock.runtime.text.stream.segments import Segments, ToolCallStart, content_of, joined, reasoning_of
from penstock.runtime.text.stream.stream import TextRules, TextStream
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer

STOP = "stop"
LENGTH = "length"
TOOL_CALLS = "tool_calls"
PREDICTION = "prediction"
"""Who guessed where drafts came from the client."""


class Piece(NamedTuple):
    """News of one choice."""

    choice: int
    segments: Segments
    token_ids: tuple[int, ...]
    logprobs: tuple[Logprob, ...]
    prompt_logprobs: tuple[Logprob, ...]
    finish_reason: str | None
    stop: str | None = None
    """The stop string that ended the text."""
    drafts: tuple[Drafted, ...] = ()
    """Of the steps that checked some."""

    @property
    def are_drafts(self) -> list[bool]:
        """For each token, whether it was guessed before it was drawn."""
        runs = [(each.begin, each.begin + each.num_accepted) for each in self.drafts]
        return [any(begin <= place < end for begin, end in runs) for place in range(len(self.token_ids))]

    @property
    def content(self) -> str:
        return content_of(self.segments)

    @property
    def reasoning(self) -> str:
        return reasoning_of(self.segments)


@dataclass(slots=True, eq=False)
class Writer:
    """Ends once: by the engine's finish, or by a stop string that only the text shows."""

    index: int
    tokenizer: InitVar[Tokenizer]
    _rules: TextRules
    finish_reason: str | None = None
    failure: Finish | None = None
    """How it ended if it ended badly."""
    num_cached: int = 0
    drafted: tuple[int, int] = (0, 0)
    """Drafts that were checked, and of those the ones that came true."""
    predicted: tuple[int, int] = (0, 0)
    """Likewise, of those that the client predicted."""
    from_tiers: tuple[int, int] = (0, 0)
    """Of the cached tokens, those that came back from host memory and from the disk."""
    cache_miss: str = ""
    """Why the prefix cache had no more of the prompt."""
    token_ids: list[int] = field(default_factory=list)
    _has_calls: bool = False
    _mute: tuple[tuple[int, ...], tuple[Drafted, ...]] = (), ()
    """Tokens that show no text yet, such as the first of several that make one character, and their drafts."""
    _text: TextStream = field(init=False)

    def __post_init__(self, tokenizer: Tokenizer) -> None:
        self._text = TextStream(tokenizer, self._rules)

    @property
    def num_tokens(self) -> int:
        return self._text.num_tokens

    @property
    def num_reasoning_tokens(self) -> int:
        return self._text.num_reasoning_tokens

    @property
    def is_over(self) -> bool:
        return self.finish_reason is not None or self.failure is not None

    def take(self, delta: Delta) -> Piece | None:
        """What is new; None if there is nothing to send yet, or no more."""
        if self.finish_reason is not None or self.failure is not None:
            return None
        finish = delta.finish
        if delta.prefix is not None:
            self.num_cached = delta.prefix.num_reused
            self.from_tiers = (delta.prefix.host, delta.prefix.disk)
            self.cache_miss = "; ".join(filter(None, (delta.prefix.miss, delta.prefix.tier_miss)))
        for drafts in delta.drafts:
            self.drafted = _added(self.drafted, drafts)
            if drafts.source == PREDICTION:
                self.predicted = _added(self.predicted, drafts)
        token_ids, logprobs = delta.token_ids, delta.logprobs
        is_silent = finish is not None and finish.stop_token_id is not None and not self._rules.include_stop
        before = self._text.num_tokens
        text = self._text.feed(token_ids, silent_last=is_silent)
        segments, stop = text.segments, text.stop
        if stop is not None:
            count = self._text.num_tokens - before
            token_ids, logprobs = token_ids[:count], logprobs[:count]
            self.finish_reason = STOP
        elif finish is not None:
            if finish.reason in (FinishReason.ERROR, FinishReason.CANCELLED):
                self.failure = finish
                return None
            self.finish_reason = STOP if finish.reason is FinishReason.STOP else LENGTH
        if self.finish_reason is not None:
            segments, stop = self._end(segments)
        self.token_ids.extend(token_ids)
        checked, (mute_ids, mute_drafts) = delta.drafts, self._mute
        if mute_ids:
            moved = [each._replace(begin=each.begin + len(mute_ids)) for each in checked]
            token_ids, checked = (*mute_ids, *token_ids), (*mute_drafts, *moved)
        if not (segments or logprobs or delta.prompt_logprobs or self.finish_reason):
            self._mute = token_ids, checked
            return None
        self._mute = (), ()
        if len(segments) > 1 or (segments and type(segments[0]) is ToolCallStart):
            self._has_calls |= any(type(segment) is ToolCallStart for segment in segments)
        reason = self.finish_reason
        return Piece(self.index, segments, token_ids, logprobs, delta.prompt_logprobs, reason, stop, checked)

    def _end(self, segments: Segments) -> tuple[Segments, str | None]:
        """All that is left to say, and the stop string that ended it. Settles how the choice ended."""
        rest = self._text.finish()
        segments = joined((*segments, *rest.segments))
        if self.finish_reason is LENGTH and rest.stop is not None:
            self.finish_reason = STOP
        self._has_calls |= any(type(segment) is ToolCallStart for segment in segments)
        if self.finish_reason is STOP and self._has_calls:
            self.finish_reason = TOOL_CALLS
        return segments, rest.stop


def _added(sums: tuple[int, int], drafts: Drafted) -> tuple[int, int]:
    return sums[0] + drafts.num_checked, sums[1] + drafts.num_accepted
