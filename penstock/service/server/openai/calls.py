"""Calls of tools as OpenAI's answers word them: the way of today, and the deprecated one of clients that send `functions`.

Knows segments and JSON; what is called and when it is over is not decided here.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock.runtime.text.stream.segments import Segment, ToolCallArguments, ToolCallStart
from penstock.service.server.http.call import TOOL_CALLS
from penstock.service.server.http.exchange import random_hex


class CallWords(NamedTuple):
    """How one generation of clients reads calls."""

    finish_reason: str
    deltas: Callable[[Sequence[Segment]], list[dict[str, Any]]]
    """What of a stream's deltas is about calls, one each."""
    message: Callable[[Sequence[Segment]], dict[str, Any]]
    """What a whole message has of them; empty if there are none."""

    def reason(self, reason: str | None) -> str | None:
        return self.finish_reason if reason == TOOL_CALLS else reason


def _tool_deltas(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    """Id, type and name come once; what follows has the index and more of the arguments."""
    deltas: list[dict[str, Any]] = []
    for segment in segments:
        match segment:
            case ToolCallStart(index, name, call_id):
                function = {"name": name, "arguments": ""}
                start = {"index": index, "id": call_id or _new_call_id(), "type": "function", "function": function}
                deltas.append({"tool_calls": [start]})
            case ToolCallArguments(index, text):
                deltas.append({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
    return deltas


def _tool_message(segments: Sequence[Segment]) -> dict[str, Any]:
    calls: list[dict[str, Any]] = []
    for segment in segments:
        match segment:
            case ToolCallStart(_, name, call_id):
                function = {"name": name, "arguments": ""}
                calls.append({"id": call_id or _new_call_id(), "type": "function", "function": function})
            case ToolCallArguments(_, text):
                calls[-1]["function"]["arguments"] += text
    return {"tool_calls": calls} if calls else {}


def _function_deltas(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = []
    for segment in segments:
        match segment:
            case ToolCallStart(_, name, _):
                deltas.append({"function_call": {"name": name, "arguments": ""}})
            case ToolCallArguments(_, text):
                deltas.append({"function_call": {"arguments": text}})
    return deltas


def _function_message(segments: Sequence[Segment]) -> dict[str, Any]:
    calls = _tool_message(segments).get("tool_calls")
    return {"function_call": calls[0]["function"]} if calls else {}


def _new_call_id() -> str:
    return f"call_{random_hex()}"


TOOL_WORDS = CallWords(TOOL_CALLS, _tool_deltas, _tool_message)
FUNCTION_WORDS = CallWords("function_call", _function_deltas, _function_message)
