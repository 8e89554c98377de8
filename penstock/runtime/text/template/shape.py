"""What a chat template can read, found by showing it small conversations.

Templates were written against one of several shapes of message: content as text or as a list of parts, tool arguments as
an object or as JSON text. A request may bring any of them; what the template reads as it stands is left as it stands. For a
template that has no tools, or no calls, they are written into the conversation as text.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.errors import PenstockError, RequestError

Render = Callable[[Mapping[str, Any]], str]

RESULT_ROLES = ("tool", "function")
HEAD = """You may call functions. The functions are, one JSON object a line:
<tools>
{tools}
</tools>
To call one, write a JSON object with its name and arguments between these tags:
<tool_call>
{{"name": <function-name>, "arguments": <arguments-object>}}
</tool_call>"""

_NEEDLE = "needlework"
_ARGUMENTS = {_NEEDLE: "thimble"}
_ARGUMENTS_TEXT = json.dumps(_ARGUMENTS)


@dataclass(frozen=True, slots=True)
class TemplateShape:
    """How messages are brought into the form the template reads."""

    knows_tools: bool
    knows_calls: bool
    joins_parts: bool
    """Content is text: parts are joined by newlines."""
    wraps_text: bool
    """Content is a list of parts: text becomes one."""
    reads_arguments: bool
    """Tool arguments are objects: JSON text is read."""
    writes_arguments: bool
    """Tool arguments are JSON text: objects are written."""

    def fit(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        """The messages and tools that it is given; what it knows nothing of stands in the messages."""
        if tools and not self.knows_tools:
            messages, tools = _described(messages, tools), None
        elif not self.knows_calls:
            messages = _calls_as_text(messages)
        return [self._fit(message, index) for index, message in enumerate(messages)], tools

    def _fit(self, message: dict[str, Any], index: int) -> dict[str, Any]:
        content = message.get("content")
        if isinstance(content, list) and self.joins_parts:
            message = message | {"content": _joined(content, index)}
        elif isinstance(content, str) and self.wraps_text:
            message = message | {"content": [{"type": "text", "text": content}]}
        calls = message.get("tool_calls")
        if isinstance(calls, list) and (self.reads_arguments or self.writes_arguments):
            message = message | {"tool_calls": [self._fit_call(call) for call in calls]}
        return message

    def _fit_call(self, call: Any) -> Any:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            return call
        arguments = function.get("arguments")
        if self.reads_arguments and isinstance(arguments, str):
            arguments = object_in(arguments)
        elif self.writes_arguments and isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False)
        return call | {"function": function | {"arguments": arguments}}


def probe(source: str, render: Render) -> TemplateShape:
    """Find what the template reads. One that shows none of the probes is taken to read text."""
    reads_text = _NEEDLE in _shown(render, _NEEDLE)
    parts = _shown(render, [{"type": "text", "text": _NEEDLE}])
    # A list that is printed as it stands shows its keys.
    reads_parts = _NEEDLE in parts and "'type'" not in parts and '"type"' not in parts
    objects, texts = (_shown(render, "", arguments) for arguments in (_ARGUMENTS, _ARGUMENTS_TEXT))
    takes_objects = all(word in objects for word in (_NEEDLE, _ARGUMENTS[_NEEDLE]))
    takes_texts = _ARGUMENTS_TEXT in texts
    return TemplateShape(
        knows_tools="tools" in source,
        knows_calls="tool_calls" in source,
        joins_parts=not reads_parts,
        wraps_text=reads_parts and not reads_text,
        reads_arguments=takes_objects and not takes_texts,
        writes_arguments=takes_texts and not takes_objects,
    )


def _shown(render: Render, content: Any, arguments: Any = None) -> str:
    messages: list[dict[str, Any]] = [{"role": "user", "content": content or "hello"}]
    if arguments is not None:
        function = {"name": "sew", "arguments": arguments}
        call = {"id": "call00001", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": content, "tool_calls": [call]})
    try:
        return render({"messages": messages, "tools": None, "documents": None, "add_generation_prompt": False})
    except PenstockError:
        return ""


def _joined(parts: list[Any], index: int) -> str:
    texts = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise RequestError(
                f"message {index} has a content part of type {kind!r:.40}; this model takes text only",
                param=f"messages[{index}].content",
            )
        texts.append(text)
    return "\n".join(texts)


def object_in(text: str) -> Any:
    """Templates write the object out themselves; what is no object stays as the model wrote it."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _described(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation for a template that knows no tools: they stand in the system message, calls and results in texts."""
    plain = _calls_as_text(messages)
    text = HEAD.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if plain and plain[0]["role"] == "system":
        return [plain[0] | {"content": f"{_text_of(plain[0], 0)}\n\n{text}".lstrip()}, *plain[1:]]
    return [{"role": "system", "content": text}, *plain]


def _calls_as_text(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation with calls and results as texts. Results, and what the user says after them, are one turn."""
    plain: list[dict[str, Any]] = []
    is_answered = False
    for index, message in enumerate(messages):
        is_result = message["role"] in RESULT_ROLES
        turn = _turn_of(message, index)
        if is_answered and turn["role"] == "user" and isinstance(turn.get("content"), str):
            plain[-1] = turn | {"content": f"{plain[-1]['content']}\n{turn['content']}"}
        else:
            plain.append(turn)
        is_answered = is_result
    return plain


def _turn_of(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    if message["role"] in RESULT_ROLES:
        return {"role": "user", "content": f"<tool_response>\n{_text_of(message, index)}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    if not isinstance(calls, list) or not all(isinstance(call, dict) and "function" in call for call in calls):
        where = f"messages[{index}].tool_calls"
        raise RequestError(f"{where} must be a list of objects with a function each", param=where)
    text = _text_of(message, index)
    written = [f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>" for call in calls]
    return {"role": message["role"], "content": "\n".join([text, *written] if text else written)}


def _text_of(message: Mapping[str, Any], index: int) -> str:
    content = message.get("content") or ""
    return _joined(content, index) if isinstance(content, list) else str(content)
