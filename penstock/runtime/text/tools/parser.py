"""Finds tool calls in an answer as it is written, by the row of the table that the model's family has.

The law: however the text is cut into pieces, the segments joined are the same. Text that turns out not to be a call is content.
Once a call's name is complete it is a call, whatever follows; arguments that do not end are given as far as they were written.
Time is proportional to the text, and nothing in it is ever evaluated.
"""

import json
import re
from collections.abc import Callable, Generator

from penstock.runtime.text.stream.segments import (
    ContentText,
    Segment,
    Segments,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    joined,
)
from penstock.runtime.text.tools.formats import HeadedCall, JsonCall, PythonCall, TaggedCall, ToolFormat
from penstock.runtime.text.tools.literals import literal
from penstock.runtime.text.tools.reader import BLANK, Reader

IsText = Callable[[str, str], bool]
"""Whether an argument of a tool, by the names of both, is a string: asked where the syntax does not tell."""

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_KEY = re.compile(r"[A-Za-z_]\w*")
Step = Generator[None, None, bool]


class ToolParser:
    """Feed content, get content and calls; `flush` once at the end."""

    def __init__(self, format: ToolFormat, is_text: IsText = lambda tool, argument: True) -> None:
        self._format = format
        self._is_text = is_text
        self._reader = Reader()
        self._segments: list[Segment] = []
        self._num_calls = 0
        self._blanks: list[str] = []
        """Blanks that are dropped if a call follows them."""
        self._readers: dict[type, Callable[[], Step]] = {
            JsonCall: self._json_call,
            HeadedCall: self._headed_call,
            PythonCall: self._python_call,
            TaggedCall: self._tagged_call,
        }
        self._task = self._read()
        self._is_over = False
        self._go_on()

    def feed(self, text: str) -> Segments:
        self._reader.add(text)
        self._go_on()
        return self._news()

    def flush(self) -> Segments:
        self._reader.is_closed = True
        self._go_on()
        blanks = "".join(self._blanks)
        if blanks and not self._num_calls:
            self._segments.append(ContentText(blanks))
        self._blanks = []
        return self._news()

    def _go_on(self) -> None:
        if not self._is_over:
            try:
                next(self._task)
            except StopIteration:
                self._is_over = True
        if self._is_over:
            self._say(self._reader.take(len(self._reader.left)))

    def _news(self) -> Segments:
        segments, self._segments = joined(self._segments), []
        return segments

    def _say(self, text: str) -> None:
        """Emit content; blanks at its end wait for what follows."""
        body = text.rstrip(BLANK)
        if body:
            self._segments.append(ContentText("".join(self._blanks) + body))
            self._blanks = []
        if len(body) < len(text):
            self._blanks.append(text[len(body) :])

    # The text

    def _read(self) -> Step:
        row = self._format
        if not row.opens:
            yield from self._leading_calls()
            return True
        openings = (row.opens, *row.also_opens)
        while True:
            opening = yield from self._reader.pass_until(openings, self._say)
            if opening is None:
                return True
            self._reader.seen = [opening]
            is_call = yield from self._calls()
            if not is_call:
                self._give_back()
            self._reader.seen = None

    def _leading_calls(self) -> Step:
        """An answer that begins with calls, or has none."""
        reader, row = self._reader, self._format
        reader.seen = []
        yield from reader.blanks()
        for opening in row.also_opens:
            if (yield from reader.starts(opening)):
                yield from reader.blanks()
        is_call = (yield from reader.peek()) == row.lead and (yield from self._calls())
        if not is_call:
            self._give_back()
        reader.seen = None
        return True

    def _give_back(self) -> None:
        """What looked like a call is not one: it becomes content unchanged."""
        if self._reader.seen is not None:
            self._say("".join(self._reader.seen))

    def _calls(self) -> Step:
        """Calls up to the closing text; False if there is not even one."""
        reader, row = self._reader, self._format
        yield from reader.blanks()
        if row.list_opens and not (yield from reader.starts(row.list_opens)):
            return False
        read = self._readers[type(row.call)]
        is_first = True
        while True:
            yield from reader.blanks()
            if not (yield from read()):
                return not is_first
            is_first = False
            reader.seen = None
            yield from reader.blanks()
            if row.separator is None or not (yield from self._separated(row.separator.strip())):
                break
        if row.list_closes:
            yield from reader.ends(row.list_closes)
            yield from reader.blanks()
        if row.closes:
            yield from reader.ends(row.closes)
        return True

    def _separated(self, separator: str) -> Step:
        """Another call follows."""
        if separator:
            return (yield from self._reader.starts(separator))
        row = self._format
        if row.closes and (yield from self._reader.ends(row.closes)):
            return False
        return (yield from self._reader.peek()) != ""

    # A call

    def _begin(self, name: str) -> None:
        self._blanks = []
        self._reader.seen = None
        self._segments.append(ToolCallStart(self._num_calls, name))
        self._num_calls += 1

    def _argue(self, text: str) -> None:
        if text:
            self._segments.append(ToolCallArguments(self._num_calls - 1, text))

    def _end(self) -> None:
        self._segments.append(ToolCallEnd(self._num_calls - 1))

    def _json_call(self) -> Step:
        reader, syntax = self._reader, self._format.call
        if not isinstance(syntax, JsonCall) or not (yield from reader.starts("{")):
            return False
        name: str | None = None
        early: list[str] = []
        has_arguments = False
        while True:
            yield from reader.blanks()
            if (yield from reader.starts("}")):
                break
            yield from reader.starts(",")
            yield from reader.blanks()
            key = yield from reader.string()
            yield from reader.blanks()
            if key is None or not (yield from reader.starts(":")):
                return name is not None and self._closed(has_arguments, early)
            yield from reader.blanks()
            if key == syntax.name_key and name is None:
                name = yield from reader.string()
                if not name:
                    return False
                self._begin(name)
                self._argue("".join(early))
            elif key == syntax.arguments_key and not has_arguments:
                has_arguments = True
                if not (yield from self._json_arguments(early.append if name is None else self._argue)):
                    return name is not None
            elif not (yield from reader.value(lambda text: None)):
                return name is not None
        return name is not None and self._closed(has_arguments, early)

    def _json_arguments(self, emit: Callable[[str], None]) -> Step:
        """An object; a text that holds one is taken for it."""
        if (yield from self._reader.peek()) == '"':
            text = yield from self._reader.string()
            emit(text or "")
            return text is not None
        return (yield from self._reader.value(emit))

    def _closed(self, has_arguments: bool, early: list[str]) -> bool:
        if not has_arguments and not early:
            self._argue("{}")
        self._end()
        return True

    def _headed_call(self) -> Step:
        reader, syntax = self._reader, self._format.call
        if not isinstance(syntax, HeadedCall) or not (yield from reader.starts(syntax.before)):
            return False
        header = yield from reader.until(syntax.between)
        name = None if header is None else _NAME.match(header.strip())
        if name is None:
            return False
        self._begin(name[0])
        yield from reader.blanks()
        if (yield from reader.peek()) == "":
            return True
        if (yield from reader.value(self._argue)):
            self._end()
            yield from reader.blanks()
            if syntax.after:
                yield from reader.ends(syntax.after.strip())
        return True

    def _python_call(self) -> Step:
        reader = self._reader
        header = yield from reader.until("(", 256)
        if header is None or not _NAME.fullmatch(header.strip()):
            return False
        self._begin(header.strip())
        before = "{"
        while True:
            yield from reader.blanks()
            if (yield from reader.starts(")")):
                self._argue("{}" if before == "{" else "}")
                self._end()
                return True
            yield from reader.starts(",")
            yield from reader.blanks()
            key = yield from reader.until("=", 256)
            if key is None or not _KEY.fullmatch(key.strip()):
                return True
            value = yield from literal(reader)
            if value is None:
                return True
            self._argue(f"{before}{json.dumps(key.strip())}: {value}")
            before = ", "

    def _tagged_call(self) -> Step:
        reader, syntax = self._reader, self._format.call
        if not isinstance(syntax, TaggedCall) or not (yield from reader.starts(syntax.before)):
            return False
        name = yield from self._tagged_name(syntax)
        if not name:
            return False
        self._begin(name)
        before = "{"
        while True:
            yield from reader.blanks()
            if not (yield from reader.starts(syntax.key_opens)):
                break
            key = yield from reader.until(syntax.key_closes.strip())
            if key is None:
                return True
            if syntax.value_opens:
                yield from reader.blanks()
                yield from reader.starts(syntax.value_opens)
            text = yield from reader.until(syntax.value_closes.strip(), None)
            if text is None:
                return True
            self._argue(f"{before}{json.dumps(key)}: {self._tagged_value(name, key, text, syntax.pad)}")
            before = ", "
        if syntax.after:
            yield from reader.ends(syntax.after)
            yield from reader.blanks()
        if self._format.closes and not (yield from reader.ends(self._format.closes)):
            return True
        self._argue("{}" if before == "{" else "}")
        self._end()
        return True

    def _tagged_name(self, syntax: TaggedCall) -> Generator[None, None, str]:
        """The name, up to what follows it: an argument, the end of the call, or a mark of its own."""
        reader = self._reader
        ends = [
            mark for mark in (syntax.after_name.strip(), syntax.key_opens, syntax.after, self._format.closes) if mark
        ]
        name = ""
        while (character := (yield from reader.peek())) and (_NAME.fullmatch(character)):
            name += reader.take(1)
        yield from reader.blanks()
        if syntax.after_name.strip():
            return name if (yield from reader.starts(syntax.after_name.strip())) else ""
        rest = yield from reader.peek()
        return name if any(mark.startswith(rest) for mark in ends if rest) or not rest else ""

    def _tagged_value(self, tool: str, key: str, text: str, pad: str) -> str:
        if pad:
            text = text.removeprefix(pad).removesuffix(pad)
        if self._is_text(tool, key):
            return json.dumps(text, ensure_ascii=False)
        try:
            return json.dumps(json.loads(text), ensure_ascii=False)
        except (ValueError, RecursionError):
            return json.dumps(text, ensure_ascii=False)
