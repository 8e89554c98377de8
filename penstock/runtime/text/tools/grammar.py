"""A grammar of tool calls: text is free until the model opens a call; from there on the tools' schemas constrain it.

Made of a row of the table and the tools. The fixed parts of a call are written as the family writes them, so their tokens
are forced.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.runtime.text.grammar.closing import closed
from penstock.runtime.text.grammar.compose import COMPOSED, TEXT_RULE, Markers, composed
from penstock.runtime.text.grammar.kinds import quoted, schema_text, translate
from penstock.runtime.text.grammar.limits import parse_schema
from penstock.runtime.text.tools.formats import HeadedCall, JsonCall, PythonCall, TaggedCall, ToolFormat


class Tool(NamedTuple):
    """A function that the model may call."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    """JSON schema of its arguments."""
    is_strict: bool = False

    @property
    def described(self) -> dict[str, Any]:
        """As templates read it."""
        parameters = dict(self.parameters or {"type": "object"})
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }

    def is_text(self, argument: str) -> bool:
        """The argument is a text by the schema."""
        properties = (self.parameters or {}).get("properties")
        own = properties.get(argument) if isinstance(properties, Mapping) else None
        return isinstance(own, Mapping) and own.get("type") == "string"


def tools_grammar(
    row: ToolFormat,
    tools: Sequence[Tool],
    markers: Markers,
    *,
    is_required: bool = False,
    is_parallel: bool = True,
    content: tuple[str, str] | None = None,
) -> tuple[str, str]:
    """Kind and source of the grammar. `is_required`: calls and nothing else. `content`: what constrains an answer without
    calls, as kind and source."""
    maker = _Rules(row, markers)
    maker.add_calls(tools, is_parallel)
    start = maker.start(is_required or content is not None, is_parallel)
    if content is None or is_required:
        return COMPOSED, composed([start, TEXT_RULE, *maker.rules])
    start += f" | {markers.literal(row.speech)} @content"
    return COMPOSED, composed(
        [start, TEXT_RULE, *maker.rules], [{"name": "content", "lark_grammar": translate(*content)}]
    )


class _Rules:
    def __init__(self, row: ToolFormat, markers: Markers) -> None:
        self.row = row
        self.rules: list[str] = []
        self._markers = markers

    def start(self, is_required: bool, is_parallel: bool) -> str:
        row = self.row
        if not row.opens:
            self.rules.append(rf"SPEECH: /[^\s{_class(row.lead)}](?s:.*)|/")
            also = f"({self._literal(row.also_opens[0])})? " if row.also_opens else ""
            return f"start: {also}run" + ("" if is_required else " | SPEECH")
        opening = f"{self._literal(row.opens + row.pad)} run"
        again = f"({self._literal(row.between_openings)} {opening})*" if row.separator is None and is_parallel else ""
        if is_required:
            return f"start: {opening} {again}"
        if row.speech:
            return f"start: {opening} {again} | {self._literal(row.speech)} TEXT"
        symbol, rules = self._markers.until("opening", row.opens)
        self.rules += rules
        call = f"{symbol} {self._literal(row.pad)} run"
        return f"start: ({call})* TEXT" if is_parallel else f"start: {call} | TEXT"

    def add_calls(self, tools: Sequence[Tool], is_parallel: bool) -> None:
        row = self.row
        more = f"({self._literal(row.separator)} call)*" if row.separator is not None and is_parallel else ""
        parts = (row.list_opens, f"call {more}", row.list_closes, row.pad + row.closes if row.closes else "")
        self.rules.append(
            f"run: {self._literal(parts[0])} {parts[1]} {self._literal(parts[2])} {self._literal(parts[3])}"
        )
        self.rules.append("call: " + " | ".join(f"tool_{number}" for number in range(len(tools))))
        for number, tool in enumerate(tools):
            self.rules.append(f"tool_{number}: {self._call(number, tool)}")

    def _call(self, number: int, tool: Tool) -> str:
        syntax, schema = self.row.call, _schema(tool)
        match syntax:
            case JsonCall(name_key, arguments_key):
                head = f'{{"{name_key}": {json.dumps(tool.name)}, "{arguments_key}": '
                return f"{quoted(head)} {self._json(number, 'all', schema, tool)} {quoted('}')}"
            case HeadedCall(before, between, after, after_name):
                head = self._literal(before + tool.name + after_name + between)
                return f"{head} {self._json(number, 'all', schema, tool)} {self._literal(after)}"
            case PythonCall():
                return self._python(number, tool, schema)
            case TaggedCall():
                return self._tagged(number, tool, schema, syntax)

    def _json(self, number: int, part: Any, schema: Any, tool: Tool) -> str:
        name = f"value_{number}_{part}"
        self.rules.append(f"{name}: %json {schema_text(schema, lenient=not tool.is_strict)}")
        return name

    def _python(self, number: int, tool: Tool, schema: dict[str, Any]) -> str:
        """Arguments in the order of the schema. `first` rules: none has been written yet; `later` ones come after a comma."""
        properties, required = _properties(schema)
        count = len(properties)
        for kind in ("first", "later"):
            self.rules.append(f'{kind}_{number}_{count}: ""')
        for place in reversed(range(count)):
            key = properties[place]
            value = self._json(number, place, _with_defs(schema, key), tool)
            for kind, comma in (("first", ""), ("later", ", ")):
                item = f"{quoted(f'{comma}{key}=')} {value} later_{number}_{place + 1}"
                skip = "" if key in required else f" | {kind}_{number}_{place + 1}"
                self.rules.append(f"{kind}_{number}_{place}: {item}{skip}")
        return f"{quoted(tool.name + '(')} first_{number}_0 {quoted(')')}"

    def _tagged(self, number: int, tool: Tool, schema: dict[str, Any], syntax: TaggedCall) -> str:
        properties, required = _properties(schema)
        parts = [self._literal(syntax.before + tool.name + syntax.after_name)]
        for place, key in enumerate(properties):
            own = _with_defs(schema, key)
            head = self._literal(syntax.key_opens + key + syntax.key_closes + syntax.value_opens + syntax.pad)
            end = syntax.pad + syntax.value_closes
            if own.get("type") == "string" and not {"enum", "const", "pattern", "format"} & own.keys():
                symbol, rules = self._markers.until(f"text_{number}_{place}", end)
                self.rules += rules
                item = f"{head} {symbol}"
            elif own.get("type") == "string" and isinstance(own.get("enum"), list):
                values = " | ".join(quoted(str(value)) for value in own["enum"])
                item = f"{head} ({values}) {self._literal(end)}"
            else:
                item = f"{head} {self._json(number, place, own, tool)} {self._literal(end)}"
            parts.append(item if key in required else f"({item})?")
        parts.append(self._literal(syntax.after))
        return " ".join(parts)

    def _literal(self, text: str | None) -> str:
        return self._markers.literal(text or "")


def _schema(tool: Tool) -> dict[str, Any]:
    """The schema of a tool's arguments: an object, whatever was sent."""
    schema = closed(parse_schema(json.dumps(dict(tool.parameters or {}))))
    schema.setdefault("type", "object")
    if not {"$ref", "anyOf", "oneOf", "allOf", "additionalProperties", "patternProperties"} & schema.keys():
        schema["additionalProperties"] = False  # arguments that nobody has described help nobody
    return dict(schema)


def _properties(schema: Mapping[str, Any]) -> tuple[list[str], frozenset[str]]:
    properties, required = schema.get("properties"), schema.get("required")
    names = list(properties) if isinstance(properties, dict) else []
    return names, frozenset(required if isinstance(required, list) else ())


def _with_defs(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    """One property's schema, with what it may refer to."""
    own = schema["properties"][key]
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    return {**shared, **own} if isinstance(own, dict) else dict(shared)


def _class(character: str) -> str:
    return "\\" + character
