"""Conversations to prompts, through the template that came with the model.

Owns the choice of template, what it is given, and what its failures mean to whom. The text is byte for byte what the
template's author saw; how templates are kept from doing harm is the sandbox's. Knows nothing of tokens or of the wire.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from penstock.errors import ModelFileError, RequestError
from penstock.runtime.text.template.budget import MAX_DEPTH
from penstock.runtime.text.template.sandbox import MAX_SOURCE_CHARACTERS, CompiledTemplate, Sandbox
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer, read_json

DEFAULT, TOOL_USE = "default", "tool_use"

_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_CONTINUE_MARK = "PENSTOCK_CONTINUES_HERE "

_RESERVED = frozenset(
    (
        *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template"),
        *("tokenize", "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
        *("raise_exception", "strftime_now", "namespace", "range", "dict", "cycler", "joiner", "loop", "self"),
        *("caller", "varargs", "kwargs", "context", "environment", "generation"),
    )
)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


Cover = Callable[[dict[str, Any]], dict[str, Any]]
"""What is done to the values of a client before a template sees them: `messages`, `tools`, `documents`, variables."""


class ChatTemplate:
    """The templates of one model, by name. Immutable; threads may render at the same time.

    `special_tokens` are the texts of the model's special tokens by role (`bos_token`, ...), which templates read.
    """

    def __init__(self, sources: str | Mapping[str, str], *, special_tokens: Mapping[str, str] | None = None) -> None:
        by_name = {DEFAULT: sources} if isinstance(sources, str) else sources
        if not by_name:
            raise ModelFileError("the model's list of chat templates is empty")
        if DEFAULT not in by_name and len(by_name) > 1:
            raise ModelFileError(f"none of the model's chat templates is the default: there are {', '.join(by_name)}")
        self._special_tokens = dict(special_tokens or {})
        self._sandbox = Sandbox()
        self.source = by_name.get(DEFAULT, next(iter(by_name.values())))
        self.tool_source = by_name.get(TOOL_USE, self.source)
        """The template that is used where there are tools."""
        self._plain = CompiledTemplate(self._sandbox, self.source, self._special_tokens)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object], tokenizer: Tokenizer) -> "ChatTemplate | None":
        """The templates in a GGUF file's metadata; None where it has none."""
        sources = {}
        for key, value in metadata.items():
            if key == "tokenizer.chat_template" or key.startswith("tokenizer.chat_template."):
                name = key.removeprefix("tokenizer.chat_template").removeprefix(".") or DEFAULT
                if not isinstance(value, str):
                    raise ModelFileError(f"{key[:80]} is {type(value).__name__}; it must be a text")
                sources[name] = value
        return cls(sources, special_tokens=tokenizer.special_tokens) if sources else None

    @classmethod
    def from_directory(cls, path: str | Path, tokenizer: Tokenizer) -> "ChatTemplate | None":
        """The templates beside a model's tokenizer; None where there are none. Files of their own come first."""
        directory = Path(path)
        config = read_json(directory / "tokenizer_config.json")
        sources = _sources_in(config.get("chat_template"))
        sources |= _sources_in(read_json(directory / "chat_template.json").get("chat_template"))
        files = {DEFAULT: directory / "chat_template.jinja"}
        files |= {file.stem: file for file in sorted((directory / "additional_chat_templates").glob("*.jinja"))}
        sources |= {name: _read_text(file) for name, file in files.items() if file.is_file()}
        return cls(sources, special_tokens=tokenizer.special_tokens) if sources else None

    @cached_property
    def _with_tools(self) -> CompiledTemplate:
        if self.tool_source == self.source:
            return self._plain
        return CompiledTemplate(self._sandbox, self.tool_source, self._special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
        now: datetime | None = None,
        cover: Cover | None = None,
    ) -> str:
        """The prompt of a conversation.

        `add_generation_prompt` ends it where the assistant's answer begins; `continue_final_message` ends it inside the
        last message. `variables` are extra ones for the template: reserved names are refused, names it does not read
        have no effect. `now` is what the template takes for the time; without it, it is told none. `cover` is applied to
        all that a client wrote, in the form in which the template sees it.
        """
        template = self._plain if tools is None else self._with_tools
        values: dict[str, Any] = {
            key: _plain(value, "variables") for key, value in _checked_variables(variables or {}).items()
        }
        checked_tools = None if tools is None else _checked_objects(tools, "tools")
        values["messages"], values["tools"] = template.shape.fit(_checked_messages(messages), checked_tools)
        values["documents"] = None if documents is None else _checked_objects(documents, "documents")
        values = (values if cover is None else cover(values)) | self._special_tokens
        values["add_generation_prompt"] = add_generation_prompt
        if continue_final_message:
            if add_generation_prompt:
                raise RequestError(
                    "continue_final_message and add_generation_prompt exclude each other; set one",
                    param="continue_final_message",
                )
            return _continued(template, values, now)
        return template.render(values, now)


def _continued(template: CompiledTemplate, values: dict[str, Any], now: datetime | None) -> str:
    """The prompt up to the end of the last message, found by a mark left there."""
    content, last = _marked(values["messages"][-1])
    rendered = template.render(values | {"messages": [*values["messages"][:-1], last]}, now)
    mark = _CONTINUE_MARK.strip()
    position = rendered.rfind(mark)
    if position < 0 or content.strip() not in rendered:
        raise RequestError("the chat template does not show the last message, so it cannot be continued")
    kept = rendered[:position]
    # Where the template trims messages, the mark's own blank is gone and so are those before it.
    return kept if rendered.startswith(_CONTINUE_MARK, position) else kept.rstrip()


def _checked_variables(variables: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in variables:
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _RESERVED:
            raise RequestError(f"{name!r:.80} is not a variable that a request may set", param="chat_template_kwargs")
    return variables


def _checked_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    checked = _checked_objects(messages, "messages")
    if not checked:
        raise RequestError("the conversation is empty; send at least one message", param="messages")
    for index, message in enumerate(checked):
        if not isinstance(message.get("role"), str):
            raise RequestError(f"message {index} has no role; give it one", param=f"messages[{index}].role")
        # Templates read reasoning under one name or another; a message may bring it under any.
        reasoning = next((message[key] for key in _REASONING_FIELDS if message.get(key) is not None), None)
        if reasoning is not None:
            checked[index] = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return checked


def _checked_objects(values: Any, what: str) -> list[dict[str, Any]]:
    if isinstance(values, list | tuple):
        checked = [_plain(value, what) for value in values if isinstance(value, Mapping)]
        if len(checked) == len(values):
            return checked
    raise RequestError(f"{what} must be a list of objects", param=what)


def _plain(value: Any, what: str, depth: int = 0) -> Any:
    """A copy out of plain types alone: nothing with methods of its own reaches a template."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if depth > MAX_DEPTH:
        raise RequestError(f"{what} is nested deeper than {MAX_DEPTH} levels", param=what)
    if isinstance(value, Mapping):
        return {_plain(key, what, depth + 1): _plain(item, what, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, what, depth + 1) for item in value]
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise RequestError(f"{what} holds a {type(value).__name__}; send plain JSON values", param=what)


def _marked(message: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The last text of a message, and the message with a mark after it."""
    content: Any = message.get("content")
    if isinstance(content, str):
        return content, {**message, "content": content + _CONTINUE_MARK}
    for place, part in reversed([*enumerate(content)] if isinstance(content, list) else []):
        if isinstance(part, dict) and isinstance(text := part.get("text"), str):
            parts = [*content[:place], part | {"text": text + _CONTINUE_MARK}, *content[place + 1 :]]
            return text, {**message, "content": parts}
    raise RequestError("the last message has no text to continue", param="messages")


def _sources_in(value: Any) -> dict[str, str]:
    """`chat_template` is one template, or a list of named ones."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {DEFAULT: value}
    if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        pairs = [(entry.get("name"), entry.get("template")) for entry in value]
        if all(isinstance(name, str) and isinstance(source, str) for name, source in pairs):
            return dict(pairs)
    raise ModelFileError("chat_template must be a text, or a list of objects with a name and a template")


def _read_text(file: Path) -> str:
    if file.stat().st_size > 4 * MAX_SOURCE_CHARACTERS:
        raise ModelFileError(f"{file} is too large for a chat template")
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{file} is not UTF-8: {error.reason}") from error
