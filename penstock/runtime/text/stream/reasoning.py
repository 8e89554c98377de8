"""Reasoning apart from answer: what a model thinks, written before what it says.

Owns what a style of marking it is, and the style most models use: two tags. Each style has a plain definition (`split`)
and a splitter that gives the same from pieces of the text. Knows nothing of tokens or of the wire.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from penstock.runtime.text.stream.stop import StopMatcher, StopSet, cut_at_stop

BLANK = " \t\r\n"


class SplitText(NamedTuple):
    reasoning: str
    content: str


class Splitter(Protocol):
    """Feed text, get what is certain of either part; `flush` once at the end. The pieces do not matter."""

    @property
    def is_reasoning(self) -> bool:
        """The text so far ends inside reasoning."""
        ...

    def feed(self, delta: str) -> SplitText: ...

    def flush(self) -> SplitText: ...


class ReasoningStyle(Protocol):
    """One way of marking reasoning."""

    @property
    def name(self) -> str: ...

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that must stay visible for the split, also where they are special tokens."""
        ...

    def is_open(self, prompt: str) -> bool:
        """The prompt's end has opened the reasoning, so the answer begins inside it."""
        ...

    def split(self, text: str, *, is_open: bool) -> SplitText:
        """The plain definition."""
        ...

    def splitter(self, *, is_open: bool) -> Splitter: ...


@dataclass(frozen=True)
class TaggedStyle:
    """Reasoning stands first, between two tags. Blanks around it and before the answer are dropped.

    An answer that does not begin with the opening tag has no reasoning, unless the prompt opened it. Reasoning that is
    never closed is all there is.
    """

    name: str
    starts: tuple[str, ...]
    ends: tuple[str, ...]

    @property
    def markers(self) -> tuple[str, ...]:
        return self.starts + self.ends

    def is_open(self, prompt: str) -> bool:
        return prompt.rstrip(BLANK).endswith(self.starts)

    def split(self, text: str, *, is_open: bool) -> SplitText:
        body = text.lstrip(BLANK)
        start = next((start for start in self.starts if body.startswith(start)), None)
        if start is None and not is_open:
            return SplitText("", text)
        # A model may write the opening tag again although the prompt ended with it.
        body = body[len(start) :] if start else body
        thoughts, end = cut_at_stop(body, self.ends)
        content = body[len(thoughts) + len(end) :] if end else ""
        return SplitText(thoughts.strip(BLANK), content.lstrip(BLANK))

    def splitter(self, *, is_open: bool) -> "TaggedSplitter":
        return TaggedSplitter(self.starts, StopSet(self.ends), is_open=is_open)


class TaggedSplitter:
    """`TaggedStyle.split`, piece by piece."""

    def __init__(self, starts: tuple[str, ...], ends: StopSet, *, is_open: bool) -> None:
        self._starts = starts
        self._ends = StopMatcher(ends)
        self._is_open = is_open
        self._opening: Opening | None = Opening(starts)
        self._thoughts = _Trimmed()
        self._has_content = False
        self.is_reasoning = is_open

    def feed(self, delta: str) -> SplitText:
        if self._opening is not None:
            decided = self._opening.feed(delta)
            if decided is None:
                return SplitText("", "")
            return self._open(decided)
        return self._split(delta)

    def flush(self) -> SplitText:
        begun = SplitText("", "")
        if self._opening is not None:
            begun = self._open((False, self._opening.held()))
        if self.is_reasoning:
            return SplitText(begun.reasoning + self._thoughts.feed(self._ends.flush()), begun.content)
        return begun

    def _open(self, decided: tuple[bool, str]) -> SplitText:
        has_tag, text = decided
        self._opening = None
        self.is_reasoning = has_tag or self._is_open
        # Without reasoning the text is content as it stands, leading blanks too.
        self._has_content = not self.is_reasoning
        return self._split(text)

    def _split(self, delta: str) -> SplitText:
        if not self.is_reasoning:
            return SplitText("", self._content(delta))
        reasoning = self._thoughts.feed(self._ends.feed(delta))
        if self._ends.matched is None:
            return SplitText(reasoning, "")
        self.is_reasoning = False
        return SplitText(reasoning, self._content(self._ends.rest))

    def _content(self, delta: str) -> str:
        if not self._has_content:
            delta = delta.lstrip(BLANK)
            self._has_content = bool(delta)
        return delta


class Opening:
    """Decides whether a text begins with one of some tags, blanks before it aside."""

    def __init__(self, tags: Sequence[str]) -> None:
        self._tags = tags
        self._blanks: list[str] = []
        self._candidate = ""

    def feed(self, delta: str) -> tuple[bool, str] | None:
        """(has a tag, the text after it or the whole text) once that is known."""
        if not self._candidate:
            stripped = delta.lstrip(BLANK)
            self._blanks.append(delta[: len(delta) - len(stripped)])
            delta = stripped
        self._candidate += delta
        for tag in self._tags:
            if self._candidate.startswith(tag):
                return True, self._candidate[len(tag) :]
        if any(tag.startswith(self._candidate) for tag in self._tags):
            return None
        return False, self.held()

    def held(self) -> str:
        return "".join(self._blanks) + self._candidate


class _Trimmed:
    """Passes text on without the blanks at its two ends."""

    def __init__(self) -> None:
        self._blanks: list[str] = []
        self._begun = False

    def feed(self, text: str) -> str:
        body = text.rstrip(BLANK)
        if not body:
            if self._begun:
                self._blanks.append(text)
            return ""
        before = "".join(self._blanks)
        self._blanks = [text[len(body) :]]
        if not self._begun:
            self._begun = True
            body = body.lstrip(BLANK)
        return before + body
