"""From a body of the Responses API to a generation."""

from collections.abc import Sequence
from typing import Any

from penstock.runtime.text.tools.grammar import Tool
from penstock.service.server.calls.generation import (
    TEXT,
    Chat,
    ChatMessage,
    Generation,
    OutputForm,
    SamplingOptions,
    ToolChoice,
    reasoning_variables,
)
from penstock.service.server.http.faults import OPENAI_NAMES, checked_name, invalid, unsupported
from penstock.service.server.openai.request import TIER_PRIORITY, cache_hints, tool_choice_of
from penstock.service.server.responses.items import messages_of
from penstock.service.server.responses.protocol import FunctionTool, InputBody, Item, ResponseBody

LOGPROBS = "message.output_text.logprobs"


def generation_of(body: ResponseBody, items: Sequence[Item]) -> Generation:
    chat = chat_of(body, items)
    hints = cache_hints(body, len(chat.messages))
    return Generation(
        prompt=chat,
        sampling=SamplingOptions(
            temperature=body.temperature,
            top_p=body.top_p,
            seed=body.seed,
            max_tokens=body.max_answer,
            num_logprobs=num_top_of(body),
        ),
        output=_output(body),
        cache=hints._replace(key=hints.key or body.conversation_id or body.previous_response_id or ""),
        priority=TIER_PRIORITY.get(body.service_tier or "", 0),
        is_flex=body.service_tier == "flex",
        param="input",
    )


def chat_of(body: InputBody, items: Sequence[Item]) -> Chat:
    messages = messages_of(items)
    if body.instructions:
        messages.insert(0, ChatMessage(role="system", content=body.instructions))
    if not messages:
        raise invalid("input is empty; send a text or items", "input", "missing_required_parameter")
    if body.text is not None and body.text.verbosity not in (None, "medium"):
        raise unsupported("text.verbosity", "ask for the length in the instructions")
    variables: dict[str, Any] = {}
    if body.reasoning is not None and body.reasoning.effort is not None:
        variables = reasoning_variables(body.reasoning.effort)
    return Chat(
        messages=tuple(messages),
        tools=tuple(_tool(tool, number) for number, tool in enumerate(body.tools or ())),
        tool_choice=_tool_choice(body),
        variables=variables,
    )


def num_top_of(body: ResponseBody) -> int | None:
    if LOGPROBS in (body.include or ()) or body.top_logprobs:
        return body.top_logprobs or 0
    return None


def _tool(tool: FunctionTool, number: int) -> Tool:
    if tool.type != "function":
        raise unsupported(f"tools[{number}] of type {tool.type[:40]}", "describe it as a function")
    if not tool.name:
        raise invalid(f"tools[{number}].name is missing; send it", f"tools[{number}].name")
    name = checked_name(tool.name, OPENAI_NAMES, f"tools[{number}].name")
    return Tool(name, tool.description or "", tool.parameters or {"type": "object"}, bool(tool.strict))


def _tool_choice(body: InputBody) -> ToolChoice:
    choice = body.tool_choice
    if isinstance(choice, dict) and choice.get("type") == "function":
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    return tool_choice_of(choice, body.parallel_tool_calls)


def _output(body: InputBody) -> OutputForm:
    form = body.text.format if body.text is not None else None
    if form is None or form.type == "text":
        return TEXT
    if form.type == "json_object":
        return OutputForm("json", None, "text.format")
    if form.schema is None:
        raise invalid("text.format.schema is missing; send it", "text.format.schema", "missing_required_parameter")
    return OutputForm("schema", form.schema, "text.format")
