"""A call as the Messages API words it: one message, or its events in their order.

    message_start  ( content_block_start  content_block_delta*  content_block_stop )*  message_delta  message_stop

Neighbouring text of one kind is one block; a tool call is a block of its own.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from penstock.runtime.text.stream.segments import (
    ContentText,
    ReasoningText,
    Segment,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    arguments_of,
)
from penstock.service.server.anthropic.dialect import DIALECT
from penstock.service.server.calls.call import LENGTH, TOOL_CALLS, Call, Piece
from penstock.service.server.calls.usage import usage_of, what_is_forgotten
from penstock.service.server.dialect import AnswerEncoder, Dialect
from penstock.service.server.http.exchange import random_hex
from penstock.service.server.http.faults import ApiError

_SIGNING_KEY = secrets.token_bytes(32)


@dataclass(slots=True)
class MessageEncoder(AnswerEncoder):
    """One answer, whole or as its events."""

    dialect: ClassVar[Dialect] = DIALECT

    _id: str
    _model: str
    _max_tokens: int
    """0: the cache was to be filled, and what had to be drawn for it is kept back."""
    _request_id: str
    _reports_miss: bool
    _blocks: list[dict[str, Any]] = field(default_factory=list)
    _open: str | None = None
    """Kind of the block that is open, the last."""
    _texts: list[str] = field(default_factory=list)
    """What has come of it."""
    _finish_reason: str | None = None
    _stop: str | None = None
    _unsent: list[bytes] = field(default_factory=list)
    """Events."""

    def opening(self, call: Call) -> bytes:
        message = self._message(call, [], None) | {"stop_sequence": None}
        return DIALECT.event("message_start", {"message": message})

    def reporting(self, pieces: Sequence[Piece]) -> bytes:
        for piece in pieces:
            for segment in piece.segments if self._max_tokens else ():
                self._write(segment)
            self._take_finish(piece)
        return self._payload()

    def closing(self, call: Call, timings: dict[str, float] | None) -> bytes:
        self._close_block()
        delta = {"stop_reason": self._stop_reason(call), "stop_sequence": self._stop}
        self._event("message_delta", {"delta": delta, "usage": self._usage(call)})
        self._event("message_stop", {})
        return self._payload()

    def failing(self, error: ApiError) -> bytes:
        return DIALECT.error_event(error, self._request_id)

    def keep(self, pieces: Sequence[Piece]) -> None:
        self.reporting(pieces)

    def whole(self, call: Call, timings: dict[str, float] | None) -> dict[str, Any]:
        self._close_block()
        return self._message(call, self._blocks, self._stop_reason(call)) | {"stop_sequence": self._stop}

    # The message

    def _message(self, call: Call, content: list[dict[str, Any]], stop_reason: str | None) -> dict[str, Any]:
        message: dict[str, Any] = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": stop_reason,
            "usage": self._usage(call) | {"service_tier": "standard"},
        }
        if self._reports_miss:
            message["diagnostics"] = {"cache_miss_reason": call.writers[0].cache_miss or None}
        return message

    def _usage(self, call: Call) -> dict[str, Any]:
        """What was found in the cache and what was put there are counted apart from the rest of the prompt."""
        usage = usage_of(call)
        by_ttl = {300.0: 0, 3600.0: 0}
        for ttl_s, count in usage.written_by_ttl:
            by_ttl[ttl_s] = by_ttl.get(ttl_s, 0) + count
        return {
            "input_tokens": usage.num_prompt - usage.num_cached - usage.num_written,
            "cache_creation_input_tokens": usage.num_written,
            "cache_read_input_tokens": usage.num_cached,
            "cache_creation": {
                "ephemeral_5m_input_tokens": by_ttl[300.0],
                "ephemeral_1h_input_tokens": by_ttl[3600.0],
            },
            "output_tokens": usage.num_output if self._max_tokens else 0,
            "output_tokens_details": {"thinking_tokens": usage.num_reasoning},
            **what_is_forgotten(call),
        }

    def _take_finish(self, piece: Piece) -> None:
        if piece.finish_reason is not None:
            self._finish_reason = piece.finish_reason
            self._stop = piece.stop

    def _stop_reason(self, call: Call) -> str | None:
        reason = self._finish_reason
        if reason is None:
            return None
        if reason == LENGTH:
            is_full = call.writers[0].num_tokens >= self._max_tokens
            return "max_tokens" if is_full else "model_context_window_exceeded"
        if reason == TOOL_CALLS:
            return "tool_use"
        return "end_turn" if self._stop is None else "stop_sequence"

    # Events

    def _write(self, segment: Segment) -> None:
        match segment:
            case ContentText(text):
                self._enter_block("text", {"type": "text", "text": ""})
                self._add(text, {"type": "text_delta", "text": text})
            case ReasoningText(text):
                self._enter_block("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                self._add(text, {"type": "thinking_delta", "thinking": text})
            case ToolCallStart(_, name, call_id):
                self._close_block()
                call = {"type": "tool_use", "id": call_id or f"toolu_{random_hex()}", "name": name, "input": {}}
                self._enter_block("tool_use", call)
            case ToolCallArguments(_, text):
                self._add(text, {"type": "input_json_delta", "partial_json": text})
            case ToolCallEnd():
                self._close_block()

    def _enter_block(self, kind: str, block: dict[str, Any]) -> None:
        if self._open == kind:
            return
        self._close_block()
        self._open = kind
        self._blocks.append(block)
        self._event("content_block_start", {"index": len(self._blocks) - 1, "content_block": block})

    def _add(self, text: str, delta: dict[str, Any]) -> None:
        self._texts.append(text)
        self._delta(delta)

    def _close_block(self) -> None:
        if self._open is None:
            return
        text = "".join(self._texts)
        match self._open:
            case "text":
                self._blocks[-1]["text"] = text
            case "thinking":
                self._blocks[-1] |= {"thinking": text, "signature": _signature(text)}
                self._delta({"type": "signature_delta", "signature": self._blocks[-1]["signature"]})
            case "tool_use":
                self._blocks[-1]["input"] = arguments_of(text)
        self._event("content_block_stop", {"index": len(self._blocks) - 1})
        self._open = None
        self._texts.clear()

    def _delta(self, delta: dict[str, Any]) -> None:
        self._event("content_block_delta", {"index": len(self._blocks) - 1, "delta": delta})

    def _event(self, name: str, fields: dict[str, Any]) -> None:
        self._unsent.append(DIALECT.event(name, fields))

    def _payload(self) -> bytes:
        data = b"".join(self._unsent)
        self._unsent.clear()
        return data


def _signature(thoughts: str) -> str:
    """Clients send it back with the thoughts; it says that this process wrote them."""
    return base64.b64encode(hmac.digest(_SIGNING_KEY, thoughts.encode(), hashlib.sha256)).decode()
