"""All that one model needs for calls of tools: what constrains its answer, and how its calls are parsed."""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from penstock.errors import RequestError
from penstock.runtime.text.grammar.compose import Markers, after_thoughts, thoughts_of
from penstock.runtime.text.stream.reasoning import ReasoningStyle
from penstock.runtime.text.stream.segments import MakeContentParser
from penstock.runtime.text.template.chat import ChatTemplate
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer
from penstock.runtime.text.tools.formats import FALLBACK, format_of_template
from penstock.runtime.text.tools.grammar import Tool, tools_grammar
from penstock.runtime.text.tools.parser import ToolParser

Described = Mapping[str, Any]
"""A tool as OpenAI's API describes it: `{"type": "function", "function": {"name", "description", "parameters", "strict"}}`."""


class ToolSpeech:
    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self._tokenizer = tokenizer
        self.format = (format_of_template(template.tool_source) if template is not None else None) or FALLBACK

    @cached_property
    def markers(self) -> Markers:
        return Markers(self._tokenizer)

    @property
    def visible(self) -> tuple[str, ...]:
        """Special tokens that the parser has to see."""
        return tuple(token for marker in self.format.markers for token in self.markers.tokens_in(marker))

    def held(
        self,
        content: tuple[str, str] | None,
        tools: Sequence[Tool] = (),
        style: ReasoningStyle | None = None,
        *,
        is_required: bool = False,
        is_parallel: bool = True,
        is_open: bool = False,
        max_thoughts: int | None = None,
    ) -> tuple[str, str] | None:
        """What an answer is held to once its reasoning has ended, as a grammar's kind and source: to calls of tools, to what
        its content must be; None where it may be anything."""
        grammar = content
        if tools:
            grammar = tools_grammar(
                self.format, tools, self.markers, is_required=is_required, is_parallel=is_parallel, content=content
            )
        if style is None or (grammar is None and max_thoughts is None):
            return grammar
        thoughts = thoughts_of(style, is_open=is_open, max_tokens=max_thoughts)
        if tools:
            thoughts = thoughts._replace(before="")
        return after_thoughts(grammar, thoughts, self.markers)

    def parser(self, tools: Sequence[Tool]) -> MakeContentParser:
        return partial(ToolParser, self.format, partial(_is_text, {tool.name: tool for tool in tools}))


def tool_of(given: Described) -> Tool:
    function = given.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError("a tool has no function with a name; describe it", param="tools")
    return Tool(function["name"], "", function.get("parameters"), bool(function.get("strict")))


def _is_text(tools: Mapping[str, Tool], name: str, argument: str) -> bool:
    return name in tools and tools[name].is_text(argument)
