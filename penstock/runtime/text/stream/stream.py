"""The text of one choice: tokens in, segments out, until a stop string ends it.

Owns everything of a generation that is text. The law it keeps, however the tokens come:

    text                = cut_at_stop(decode(tokens), stops)
    reasoning, content  = style.split(text)
    content, calls      = parser(content)

Knows nothing of requests, deltas of the engine, or the wire.
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.runtime.text.stream.reasoning import ReasoningStyle, Splitter, SplitText
from penstock.runtime.text.stream.segments import (
    ContentParser,
    ContentText,
    MakeContentParser,
    ReasoningText,
    Segment,
    Segments,
    content_of,
    joined,
    reasoning_of,
)
from penstock.runtime.text.stream.stop import StopMatcher, StopSet
from penstock.runtime.text.tokenizer.tokenizer import Detokenizer, Tokenizer


class TextDelta(NamedTuple):
    """New text, and the stop string that ended it, if one did."""

    segments: Segments
    stop: str | None = None

    @property
    def reasoning(self) -> str:
        return reasoning_of(self.segments)

    @property
    def content(self) -> str:
        return content_of(self.segments)

    def then(self, later: "TextDelta") -> "TextDelta":
        """Both, in order."""
        return TextDelta(joined((*self.segments, *later.segments)), later.stop)


class TextRules(NamedTuple):
    """What is to be made of a choice's tokens; the same for all choices of a request."""

    stops: StopSet | None = None
    include_stop: bool = False
    """The stop string stays at the end of the text."""
    min_tokens: int = 0
    """Stop strings are looked for in what follows the text of this many tokens."""
    style: ReasoningStyle | None = None
    """How reasoning is marked; None leaves it in the content."""
    is_open: bool = False
    """The prompt has opened the reasoning (`style.is_open(prompt)`)."""
    skip_special: bool = True
    at_start: bool = True
    """The tokens begin a text of their own, as a chat answer does; False where they continue the prompt's."""
    make_parser: MakeContentParser | None = None
    """Makes what finds tool calls in the content; None where none are looked for."""
    markers: tuple[str, ...] = ()
    """Special tokens, by their texts, that the parser has to see."""


PLAIN = TextRules()


class TextStream:
    """Feed a choice's tokens as they come, then `finish` once.

    Stop strings are matched in the whole text, reasoning and its markers included. Tokens after the one that completed a
    stop string are ignored and not counted.
    """

    def __init__(self, tokenizer: Tokenizer, rules: TextRules = PLAIN) -> None:
        markers = rules.markers if rules.style is None else (*rules.markers, *rules.style.markers)
        self._detokenizer = Detokenizer(
            tokenizer,
            skip_special=rules.skip_special,
            at_start=rules.at_start,
            visible_ids=frozenset([found for marker in markers if (found := tokenizer.token_id(marker)) is not None]),
        )
        self._min_tokens = rules.min_tokens
        self._matcher = StopMatcher(rules.stops, include_stop=rules.include_stop) if rules.stops else None
        self._splitter: Splitter | None = rules.style.splitter(is_open=rules.is_open) if rules.style else None
        self._parser: ContentParser | None = rules.make_parser() if rules.make_parser is not None else None
        self._is_finished = False
        self.num_tokens = 0
        """Tokens that made the text, those that show nothing included."""
        self.num_reasoning_tokens = 0
        """Tokens that came before the reasoning was closed."""

    def feed(self, token_ids: Sequence[int], *, silent_last: bool = False) -> TextDelta:
        """The text these tokens complete.

        `silent_last`: the last token ended the sequence and counts, but adds no text.
        """
        if self._matcher is None and self._splitter is None:
            shown = token_ids[:-1] if silent_last else token_ids
            self.num_tokens += len(token_ids)
            return TextDelta(self._emit(self._detokenizer.feed(shown)))
        if len(token_ids) == 1:
            return TextDelta(self._feed_one(token_ids[0], silent_last), self.stop)
        segments: list[Segment] = []
        for index, token_id in enumerate(token_ids):
            is_silent = silent_last and index == len(token_ids) - 1
            segments.extend(self._feed_one(token_id, is_silent))
        return TextDelta(joined(segments), self.stop)

    def finish(self) -> TextDelta:
        """What was held back, once no token follows. Nothing may be fed afterwards."""
        if self._is_finished:
            return TextDelta((), self.stop)
        text = "" if self.stop is not None else self._match(self._detokenizer.flush())
        if self._matcher is not None:
            text += self._matcher.flush()
        segments = [*self._emit(text)]
        if self._splitter is not None:
            segments.extend(self._parsed(self._splitter.flush()))
        if self._parser is not None:
            segments.extend(self._parser.flush())
        self._is_finished = True
        return TextDelta(joined(segments), self.stop)

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text."""
        return None if self._matcher is None else self._matcher.matched

    def _feed_one(self, token_id: int, is_silent: bool) -> Segments:
        if self.stop is not None:
            return ()
        self.num_tokens += 1
        text = "" if is_silent else self._detokenizer.feed((token_id,))
        if self._splitter is not None and self._splitter.is_reasoning:
            self.num_reasoning_tokens += 1
        return self._emit(self._match(text))

    def _match(self, text: str) -> str:
        if self._matcher is None or self.num_tokens <= self._min_tokens:
            return text
        return self._matcher.feed(text)

    def _emit(self, text: str) -> Segments:
        if self._splitter is not None:
            return self._parsed(self._splitter.feed(text))
        if not text:
            return ()
        return (ContentText(text),) if self._parser is None else self._parser.feed(text)

    def _parsed(self, split: SplitText) -> Segments:
        reasoning, content = split
        found: Segments = (ReasoningText(reasoning),) if reasoning else ()
        if not content:
            return found
        return (*found, ContentText(content)) if self._parser is None else found + self._parser.feed(content)
