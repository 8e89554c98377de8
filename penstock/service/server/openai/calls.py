"""Calls of tools as OpenAI's answers word them: the way of today, and the deprecated one of clients that send `functions`.

Knows segments and JSON; what is called and when it is over is not decided here.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock.runtime.text.stream.segments import Segment, ToolCallArguments, ToolCallStart
from penstock.service.server.calls.call import TOOL_CALLS
from penstock.service.server.http.exchange import random_hex


class CallWords(NamedTuple):
    """How one generation of clients reads calls."""

    finish_reason: str
    begun: Callable[[ToolCallStart], dict[str, Any]]
    more: Callable[[ToolCallArguments], dict[str, Any]]
    payload: Callable[[list[dict[str, Any]]], dict[str, Any]]
    """What a whole message has of its calls, each as OpenAI words one today."""

    def reason(self, reason: str | None) -> str | None:
        return self.finish_reason if reason == TOOL_CALLS else reason

    def deltas(self, segments: Sequence[Segment]) -> list[dict[str, Any]]:
        """What of a stream's deltas is about calls, one each: what a call is comes once, then more of its arguments."""
        return [
            self.begun(one) if isinstance(one, ToolCallStart) else self.more(one)
            for one in segments
            if isinstance(one, ToolCallStart | ToolCallArguments)
        ]

    def message(self, segments: Sequence[Segment]) -> dict[str, Any]:
        """What a whole message has of them; empty if there are none."""
        calls: list[dict[str, Any]] = []
        for segment in segments:
            match segment:
                case ToolCallStart():
                    calls.append(_call(segment))
                case ToolCallArguments(_, text):
                    calls[-1]["function"]["arguments"] += text
        return self.payload(calls) if calls else {}


def _call(start: ToolCallStart) -> dict[str, Any]:
    function = {"name": start.name, "arguments": ""}
    return {"id": start.call_id or f"call_{random_hex()}", "type": "function", "function": function}


TOOL_WORDS = CallWords(
    TOOL_CALLS,
    begun=lambda start: {"tool_calls": [{"index": start.call} | _call(start)]},
    more=lambda more: {"tool_calls": [{"index": more.call, "function": {"arguments": more.text}}]},
    payload=lambda calls: {"tool_calls": calls},
)
FUNCTION_WORDS = CallWords(
    "function_call",
    begun=lambda start: {"function_call": {"name": start.name, "arguments": ""}},
    more=lambda more: {"function_call": {"arguments": more.text}},
    payload=lambda calls: {"function_call": calls[0]["function"]},
)
