"""What a generated text is made of: reasoning, content, tool calls, in the order they were written.

Owns the segment types that every reader of a text knows. Joining the segments of a text gives the same whatever pieces it came
in. Knows nothing of tokens, of a model's markers or of the wire.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol


class ReasoningText(NamedTuple):
    text: str


class ContentText(NamedTuple):
    text: str


class ToolCallStart(NamedTuple):
    """A call begins. `call` counts the calls of one choice from 0."""

    call: int
    name: str
    call_id: str = ""
    """As the model named it; most models name none."""


class ToolCallArguments(NamedTuple):
    """A part of the JSON text of a call's arguments; the parts of a call join to one valid object."""

    call: int
    text: str


class ToolCallEnd(NamedTuple):
    call: int


Segment = ReasoningText | ContentText | ToolCallStart | ToolCallArguments | ToolCallEnd
Segments = tuple[Segment, ...]
WORDS = (ContentText, ReasoningText, ToolCallArguments)


class ContentParser(Protocol):
    """Finds tool calls in content as it comes; what is no call is content. The pieces do not matter."""

    def feed(self, text: str) -> Segments: ...

    def flush(self) -> Segments:
        """What was held back, once nothing follows."""
        ...


MakeContentParser = Callable[[], ContentParser]


def content_of(segments: Iterable[Segment]) -> str:
    return "".join([segment.text for segment in segments if type(segment) is ContentText])


def reasoning_of(segments: Iterable[Segment]) -> str:
    return "".join([segment.text for segment in segments if type(segment) is ReasoningText])


def arguments_of(text: str) -> dict[str, Any]:
    """A call's arguments as an object; nothing of them if the text was cut off."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def joined(segments: Iterable[Segment]) -> Segments:
    """The same text in as few segments as there can be: neighbours of one kind become one."""
    parts: list[Segment] = []
    for segment in segments:
        last = parts[-1] if parts else None
        if isinstance(segment, WORDS) and isinstance(last, WORDS) and type(segment) is type(last):
            parts[-1] = segment._replace(text=last.text + segment.text)
        else:
            parts.append(segment)
    return tuple(parts)
