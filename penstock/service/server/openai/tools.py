"""Tools as OpenAI's bodies describe them, today and, as `functions`, before."""

from collections.abc import Sequence
from typing import Any

from penstock.service.server.generation import Tool, ToolChoice
from penstock.service.server.http.faults import OPENAI_NAMES, checked_name, invalid, unsupported
from penstock.service.server.openai.protocol import ChatBody


def tools_and_choice(body: ChatBody) -> tuple[tuple[Tool, ...], ToolChoice]:
    """What may be called, and what of it must be."""
    if body.functions is None:
        if body.function_call is not None:
            raise invalid("function_call needs functions; send them, or tools with tool_choice", "function_call")
        return tools_of(body.tools), tool_choice_of(body.tool_choice, body.parallel_tool_calls)
    if body.tools is not None or body.tool_choice is not None:
        raise invalid("functions and tools are two ways of one thing; send tools", "functions")
    tools = tuple(_function(each, f"functions[{number}]") for number, each in enumerate(body.functions))
    choice = _function_choice(body.function_call)
    if not {tool.name for tool in tools}.issuperset(choice.names):
        raise invalid(
            f"function_call names {choice.names[0][:64]!r}, which is not among the functions", "function_call"
        )
    return tools, choice


def _function_choice(choice: str | dict[str, Any] | None) -> ToolChoice:
    """`auto`, `none` or one function by its name; never more than one call."""
    if choice in (None, "auto", "none"):
        return ToolChoice(choice or "auto", (), is_parallel=False)  # type: ignore[arg-type]
    if isinstance(choice, dict) and isinstance(choice.get("name"), str):
        return ToolChoice("required", (choice["name"],), is_parallel=False)
    raise invalid("function_call must be auto, none, or a function by its name", "function_call")


def tools_of(given: Sequence[dict[str, Any]] | None) -> tuple[Tool, ...]:
    return tuple(_tool(tool, f"tools[{number}]") for number, tool in enumerate(given or ()))


def tool_choice_of(choice: str | dict[str, Any] | None, is_parallel: bool | None) -> ToolChoice:
    """`auto`, `none`, `required`, one function by its name, or those that are allowed."""
    parallel = is_parallel is not False
    if choice in (None, "auto", "none", "required"):
        return ToolChoice(choice or "auto", (), parallel)  # type: ignore[arg-type]
    if isinstance(choice, dict):
        function = choice.get("function")
        if choice.get("type") == "function" and isinstance(function, dict) and isinstance(function.get("name"), str):
            return ToolChoice("required", (function["name"],), parallel)
        if choice.get("type") == "allowed_tools":
            allowed = choice.get("allowed_tools", choice)
            mode = allowed.get("mode", "auto") if isinstance(allowed, dict) else None
            names = (
                tuple(_allowed_name(tool) for tool in allowed.get("tools") or ()) if isinstance(allowed, dict) else ()
            )
            if mode in ("auto", "required") and names:
                return ToolChoice(mode, names, parallel)
    raise invalid("tool_choice must be auto, none, required, a function by its name, or allowed_tools", "tool_choice")


def _allowed_name(tool: Any) -> str:
    function = tool.get("function", tool) if isinstance(tool, dict) else {}
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise invalid("tool_choice allows a tool without a name; name it", "tool_choice")
    return name


def _tool(tool: dict[str, Any], where: str) -> Tool:
    if tool.get("type", "function") != "function":
        raise unsupported(f"{where} of type {str(tool.get('type'))[:40]}", "describe it as a function")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise invalid(f"{where}.function is missing; send it", f"{where}.function", "missing_required_parameter")
    return _function(function, f"{where}.function")


def _function(function: dict[str, Any], where: str) -> Tool:
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not name:
        raise invalid(f"{where}.name is missing; send it", f"{where}.name")
    checked_name(name, OPENAI_NAMES, f"{where}.name")
    if parameters is not None and not isinstance(parameters, dict):
        raise invalid(f"{where}.parameters must be a JSON schema", f"{where}.parameters")
    return Tool(name, str(function.get("description") or ""), parameters, bool(function.get("strict")))
