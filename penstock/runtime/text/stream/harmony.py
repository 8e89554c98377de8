"""Harmony: answers written as messages on named channels.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>
    [ header            ][ body     ]        [ header                          ][ body     ]

What stands on the analysis channel is reasoning; on any other, content. A message to a recipient (`to=functions.name`) is
a tool call and stays in the content as it was written, header and end included, for whoever reads tool calls.
"""

import re

from penstock.runtime.text.stream.reasoning import Opening, SplitText
from penstock.runtime.text.stream.stop import StopMatcher, StopSet, cut_at_stop

_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>", "<|start|>")
_HEADER_BEGINNINGS = ("<|", "to=")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"(?:^|[\s>])to=\S")

_MESSAGE_SET = StopSet((_MESSAGE,))
_ENDS_SET = StopSet(_ENDS)


class HarmonyStyle:
    """Text that does not begin with a header is content. Two messages of the same part are set on separate lines."""

    name = "harmony"
    markers = (_MESSAGE, *_ENDS, "<|channel|>", "<|constrain|>")

    def is_open(self, prompt: str) -> bool:
        """The prompt ends with the header of an analysis message."""
        header, message, rest = prompt.rpartition(_MESSAGE)
        return bool(message) and not rest.strip() and _kind_of(header.rpartition("<|start|>")[2]) == "reasoning"

    def split(self, text: str, *, is_open: bool) -> SplitText:
        parts: dict[str, list[str]] = {"reasoning": [], "content": []}
        kind = "reasoning" if is_open else "" if text.lstrip().startswith(_HEADER_BEGINNINGS) else "content"
        while text:
            if not kind:
                header, message, text = text.partition(_MESSAGE)
                kind = _kind_of(header) if message else ""
                parts["content"] += [header + message] if kind == "call" else []
                continue
            body, end = cut_at_stop(text, _ENDS)
            text = text[len(body) + len(end or "") :]
            if kind == "call":
                parts["content"].append(body + (end or ""))
            elif body:
                parts[kind].append(("\n" if parts[kind] else "") + body)
            kind = ""
        return SplitText("".join(parts["reasoning"]), "".join(parts["content"]))

    def splitter(self, *, is_open: bool) -> "HarmonySplitter":
        return HarmonySplitter(is_open=is_open)


class HarmonySplitter:
    """`HarmonyStyle.split`, piece by piece: header and body by turns, each up to the marker that ends it."""

    def __init__(self, *, is_open: bool) -> None:
        self._opening = None if is_open else Opening(_HEADER_BEGINNINGS)
        self._kind = "reasoning" if is_open else ""
        """What the body being read is; empty in a header."""
        self._header: list[str] = []
        self._matcher = StopMatcher(_ENDS_SET if is_open else _MESSAGE_SET)
        self._has_body = False
        self._has_part = {"reasoning": False, "content": False}

    @property
    def is_reasoning(self) -> bool:
        return self._kind == "reasoning"

    def feed(self, delta: str) -> SplitText:
        if self._opening is not None:
            if self._opening.feed(delta) is None:
                return SplitText("", "")
            delta = self._begin()
        return self._read(delta)

    def flush(self) -> SplitText:
        begun = SplitText("", "")
        if self._opening is not None:
            begun = self._read(self._begin())
        if not self._kind:
            return begun
        last = self._body(self._matcher.flush())
        return SplitText(begun.reasoning + last.reasoning, begun.content + last.content)

    def _begin(self) -> str:
        """The first text is known to be a header or not; return it."""
        opening, self._opening = self._opening, None
        text = opening.held() if opening else ""
        if not text.lstrip().startswith(_HEADER_BEGINNINGS):
            self._kind, self._matcher = "content", StopMatcher(_ENDS_SET)
        return text

    def _read(self, delta: str) -> SplitText:
        reasoning, content = [], []
        while delta:
            text = self._matcher.feed(delta)
            end, delta = self._matcher.matched, self._matcher.rest
            if self._kind:
                found = self._body(text)
                reasoning.append(found.reasoning)
                content.append(found.content)
                if end is not None:
                    content.append(end if self._kind == "call" else "")
                    self._kind, self._header, self._matcher = "", [], StopMatcher(_MESSAGE_SET)
            else:
                self._header.append(text)
                if end is not None:
                    content.append(self._start_body())
        return SplitText("".join(reasoning), "".join(content))

    def _start_body(self) -> str:
        header = "".join(self._header)
        self._kind, self._matcher, self._has_body = _kind_of(header), StopMatcher(_ENDS_SET), False
        if self._kind != "call":
            return ""
        self._has_part["content"] = True
        return header + _MESSAGE

    def _body(self, text: str) -> SplitText:
        part = "reasoning" if self._kind == "reasoning" else "content"
        if text and not self._has_body:
            if self._has_part[part] and self._kind != "call":
                text = "\n" + text
            self._has_body = self._has_part[part] = True
        return SplitText(text, "") if part == "reasoning" else SplitText("", text)


def _kind_of(header: str) -> str:
    if _RECIPIENT.search(header):
        return "call"
    channel = _CHANNEL.search(header)
    return "reasoning" if channel and channel[1] == "analysis" else "content"
