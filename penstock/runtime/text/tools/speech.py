"""All that one model needs for tools: how they are described to it, what constrains its answer, how its calls are parsed.

Tools are described as OpenAI's API does: `{"type": "function", "function": {"name", "description", "parameters", "strict"}}`.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from penstock.errors import RequestError
from penstock.runtime.text.grammar.compose import Markers
from penstock.runtime.text.stream.segments import MakeContentParser
from penstock.runtime.text.template.chat import ChatTemplate
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer
from penstock.runtime.text.tools.formats import FALLBACK, format_of_template
from penstock.runtime.text.tools.grammar import ToolSchema, tools_grammar
from penstock.runtime.text.tools.parser import ToolParser
from penstock.runtime.text.tools.words import calls_as_text, described, knows_calls

Described = Mapping[str, Any]


class ToolSpeech:
    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        source = "" if template is None else template.tool_source
        self._knows_tools = "tools" in source
        self._knows_calls = knows_calls(source)
        self._markers = Markers(tokenizer)
        self.format = format_of_template(source) or FALLBACK

    @property
    def visible(self) -> tuple[str, ...]:
        """Special tokens that the parser has to see."""
        return tuple(token for marker in self.format.markers for token in self._markers.tokens_in(marker))

    def conversation(
        self, messages: Sequence[Described], tools: Sequence[Described]
    ) -> tuple[list[Described], dict[str, Any]]:
        """The messages, and what else the template is given."""
        if self._knows_tools:
            return list(messages if self._knows_calls else calls_as_text(messages)), {"tools": list(tools)}
        return list(described(messages, tools)), {}

    def grammar(
        self, tools: Sequence[Described], *, is_required: bool = False, is_parallel: bool = True
    ) -> tuple[str, str]:
        """Kind and source of what an answer with these tools is held to."""
        schemas = [_schema(tool) for tool in tools]
        return tools_grammar(self.format, schemas, self._markers, is_required=is_required, is_parallel=is_parallel)

    def parser(self, tools: Sequence[Described]) -> MakeContentParser:
        properties = {schema.name: (schema.parameters or {}).get("properties") for schema in map(_schema, tools)}
        return partial(ToolParser, self.format, partial(_is_text, properties))


def _schema(tool: Described) -> ToolSchema:
    function = tool.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError("a tool has no function with a name; describe it", param="tools")
    return ToolSchema(function["name"], function.get("parameters"), bool(function.get("strict")))


def _is_text(properties: Mapping[str, Any], tool: str, argument: str) -> bool:
    own = properties.get(tool)
    own = own.get(argument) if isinstance(own, Mapping) else None
    return isinstance(own, Mapping) and own.get("type") == "string"
