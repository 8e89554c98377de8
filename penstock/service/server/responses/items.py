"""Input and output items of the Responses API, and the chat messages they are.

message               a message of its role
reasoning             goes with the assistant's next message or call
function_call         a call of the assistant; calls in a row are one message
function_call_output  a tool's message
"""

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.service.server.calls.generation import ChatMessage, ToolCall
from penstock.service.server.http.exchange import random_hex
from penstock.service.server.http.faults import OPENAI_NAMES, checked_name, invalid, unsupported
from penstock.service.server.responses.protocol import Item

TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal", "summary_text": "text"}
ID_PREFIX = {"message": "msg_", "function_call": "fc_", "function_call_output": "fco_", "reasoning": "rs_"}
ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}


def input_items(given: str | list[Item] | None) -> list[Item]:
    """The items a client sent, each with an id and in full."""
    if given is None:
        return []
    if isinstance(given, str):
        given = [{"type": "message", "role": "user", "content": given}]
    return [_normal(item, number) for number, item in enumerate(given)]


def new_id(kind: str) -> str:
    return ID_PREFIX.get(kind, "item_") + random_hex()


def messages_of(items: Iterable[Item]) -> list[ChatMessage]:
    messages: list[ChatMessage] = []
    calls: list[ToolCall] = []
    thoughts: list[str] = []

    def end_calls() -> None:
        if calls:
            last = messages[-1] if messages else None
            if last is not None and last.role == "assistant" and not last.tool_calls:
                messages.pop()
                content, reasoning = last.content, last.reasoning or "".join(thoughts)
            else:
                content, reasoning = None, "".join(thoughts)
            messages.append(
                ChatMessage(role="assistant", content=content, reasoning=reasoning, tool_calls=tuple(calls))
            )
            calls.clear()
            thoughts.clear()

    for number, item in enumerate(items):
        kind, where = item.get("type"), f"input[{number}]"
        if kind == "function_call":
            name = checked_name(_text(item, "name", where), OPENAI_NAMES, f"{where}.name")
            calls.append(ToolCall(_text(item, "call_id", where), name, item.get("arguments") or "{}"))
            continue
        end_calls()
        if kind == "reasoning":
            parts = item.get("content") or item.get("summary") or []
            thoughts.extend(part.get("text") or "" for part in parts if isinstance(part, dict))
        elif kind == "function_call_output":
            content = _words(item.get("output"), f"{where}.output")
            messages.append(ChatMessage(role="tool", content=content, tool_call_id=_text(item, "call_id", where)))
        else:
            role = ROLES[item["role"]]
            reasoning = "".join(thoughts) if role == "assistant" else ""
            thoughts.clear()
            content = _words(item.get("content"), f"{where}.content")
            messages.append(ChatMessage(role=role, content=content, reasoning=reasoning))
    end_calls()
    return messages


def _normal(item: Item, number: int) -> Item:
    where = f"input[{number}]"
    kind = item.get("type") or ("message" if "role" in item else None)
    if kind == "item_reference":
        raise unsupported(f"{where} of type item_reference", "send the item, or previous_response_id")
    if kind not in ID_PREFIX:
        raise unsupported(f"{where} of type {str(kind)[:40]}", "send messages, function calls and their outputs")
    item = {**item, "type": kind}
    if kind == "message":
        if item.get("role") not in ROLES:
            raise invalid(f"{where}.role must be one of {', '.join(ROLES)}", f"{where}.role")
        content = item.get("content")
        if isinstance(content, str):
            part = "output_text" if item["role"] == "assistant" else "input_text"
            item["content"] = [{"type": part, "text": content} | ({"annotations": []} if part == "output_text" else {})]
        _words(item.get("content"), f"{where}.content")
        item.setdefault("status", "completed")
    elif kind == "function_call":
        _text(item, "call_id", where)
        _text(item, "name", where)
        if not isinstance(item.get("arguments"), str):
            raise invalid(f"{where}.arguments must be a JSON text", f"{where}.arguments")
    elif kind == "function_call_output":
        _text(item, "call_id", where)
        _words(item.get("output"), f"{where}.output")
    if not isinstance(item.get("id"), str):
        item["id"] = new_id(kind)
    return item


def _text(item: Mapping[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not value:
        raise invalid(f"{where}.{name} is missing; send it", f"{where}.{name}", "missing_required_parameter")
    return value


def _words(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(f"{where} must be a text or a list of parts", where)
    words = []
    for place, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        name = TEXT_PARTS.get(str(kind))
        if name is None:
            raise unsupported(f"{where} of type {str(kind)[:40]}", "send text")
        text = part.get(name)
        if not isinstance(text, str):
            raise invalid(f"{where}[{place}].{name} is missing; send it", f"{where}[{place}].{name}")
        words.append(text)
    return "".join(words)
