"""A call as the Responses API words it: an object with output items, or the events that build it.

Every event has a `sequence_number` from 0 and those of items say which item and part they belong to. Whole answers are built
by the same steps, with the events thrown away.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from penstock.errors import StoreError
from penstock.runtime.text.stream.segments import (
    ContentText,
    ReasoningText,
    Segment,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer
from penstock.service.server.calls.call import LENGTH, Call, Piece
from penstock.service.server.calls.usage import usage_of, what_is_forgotten
from penstock.service.server.dialect import AnswerEncoder
from penstock.service.server.http import sse
from penstock.service.server.http.exchange import random_hex
from penstock.service.server.http.faults import ApiError
from penstock.service.server.openai.dialect import RESPONSES
from penstock.service.server.openai.logprobs import chat_entries
from penstock.service.server.responses.items import new_id

Fields = dict[str, Any]
OnEnd = Callable[[Fields], "Sequence[Future[None]]"]


class ResponseEncoder(AnswerEncoder):
    """`head` is what of the response is known before anything is generated. `on_end` is given the response when it is over, and
    hands back what is being written of it: a client that waits is told if that fails.
    """

    dialect = RESPONSES

    def __init__(self, head: Fields, tokenizer: Tokenizer, *, num_top: int | None, on_end: OnEnd) -> None:
        self.head = head
        self.output: list[Fields] = []
        self.num_events = 0
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._on_end = on_end
        self._finish_reason: str | None = None
        self._usage: Fields | None = None
        self._item: Fields | None = None
        """The item that is open; the last of `output`."""
        self._unplaced: list[Fields] = []
        """Log probabilities of tokens that have shown no text yet."""
        self._ended: Fields | None = None
        """The response, once it is kept."""
        self._unsent: list[bytes] = []
        """Events."""

    async def before_end(self, call: Call) -> None:
        """Keep the response before its client hears that it is over."""
        response = self._ended = self._finished(call)
        try:
            for one in self._on_end(response):
                await asyncio.wrap_future(one)
        except StoreError as error:
            response |= {"store": False, "store_error": {"code": "storage_unavailable", "message": str(error)}}

    def opening(self, call: Call) -> bytes:
        for name in ("response.created", "response.in_progress"):
            self._event(name, {"response": self.response("in_progress")})
        return self._payload()

    def reporting(self, pieces: Sequence[Piece]) -> bytes:
        for piece in pieces:
            self._unplaced += self._logprobs(piece)
            for segment in piece.segments:
                self._take(segment)
            if piece.finish_reason is not None:
                self._finish_reason = piece.finish_reason
        return self._payload()

    def closing(self, call: Call, timings: dict[str, float] | None) -> bytes:
        response = self._over(call)
        name = "response.incomplete" if response["status"] == "incomplete" else "response.completed"
        self._event(name, {"response": response})
        return self._payload()

    def failing(self, error: ApiError) -> bytes:
        self._event("response.failed", {"response": self.failed(error)})
        return self._payload()

    def failed(self, error: ApiError) -> Fields:
        """The response of a call that broke off."""
        code = error.code if error.status < 500 and error.code else "server_error"
        response = self.response("failed") | {"error": {"code": code, "message": error.message}}
        self._on_end(response)
        return response

    def keep(self, pieces: Sequence[Piece]) -> None:
        self.reporting(pieces)

    def whole(self, call: Call, timings: dict[str, float] | None) -> Fields:
        return self._over(call)

    def response(self, status: str) -> Fields:
        return self.head | {"status": status, "output": [dict(item) for item in self.output], "usage": self._usage}

    def _event(self, name: str, fields: Fields) -> None:
        self._unsent.append(sse.named_event(name, {"type": name, "sequence_number": self.num_events} | fields))
        self.num_events += 1

    def _payload(self) -> bytes:
        data = b"".join(self._unsent)
        self._unsent.clear()
        return data

    def _over(self, call: Call) -> Fields:
        """The response, kept from now on at the latest."""
        if self._ended is None:
            self._ended = self._finished(call)
            self._on_end(self._ended)
        return self._ended

    # Taking in

    def _finished(self, call: Call) -> Fields:
        is_cut = self._finish_reason == LENGTH
        self._close("incomplete" if is_cut else "completed")
        self._usage = _usage(call)
        response = self.response("incomplete" if is_cut else "completed")
        if is_cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        response["completed_at"] = None if is_cut else int(time.time())
        return response

    def _take(self, segment: Segment) -> None:
        if not isinstance(segment, ContentText):
            self._unplaced = []
        match segment:
            case ContentText(text):
                self._add_text("message", text)
            case ReasoningText(text):
                self._add_text("reasoning", text)
            case ToolCallStart(_, name, call_id):
                item = {"type": "function_call", "id": new_id("function_call"), "name": name, "arguments": ""}
                self._open(item | {"call_id": call_id or f"call_{random_hex()}"})
            case ToolCallArguments(_, text):
                if self._item is not None:
                    self._item["arguments"] += text
                    self._item_event("response.function_call_arguments.delta", {"delta": text})
            case ToolCallEnd():
                self._close("completed")

    def _add_text(self, kind: str, text: str) -> None:
        item = self._item
        if item is None or item["type"] != kind:
            self._open_text(kind)
            item = self.output[-1]
        part = item["content"][0]
        part["text"] += text
        if kind == "reasoning":
            self._part_event("response.reasoning_text.delta", {"delta": text})
            return
        logprobs, self._unplaced = self._unplaced, []
        part["logprobs"].extend(logprobs)
        self._part_event("response.output_text.delta", {"delta": text, "logprobs": logprobs})

    def _open_text(self, kind: str) -> None:
        if kind == "message":
            item: Fields = {"type": kind, "id": new_id(kind), "role": "assistant", "content": []}
            part: Fields = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        else:
            item = {"type": kind, "id": new_id(kind), "summary": [], "content": []}
            part = {"type": "reasoning_text", "text": ""}
        self._open(item)
        self._part_event("response.content_part.added", {"part": part})
        self.output[-1]["content"] = [dict(part)]

    def _open(self, item: Fields) -> None:
        self._close("completed")
        self._item = item | {"status": "in_progress"}
        self.output.append(self._item)
        self._event("response.output_item.added", {"output_index": self._index, "item": self._item})

    def _close(self, status: str) -> None:
        item = self._item
        if item is None:
            return
        if item["type"] == "function_call":
            done = {"name": item["name"], "arguments": item["arguments"]}
            self._item_event("response.function_call_arguments.done", done)
        else:
            part = item["content"][0]
            if item["type"] == "message":
                part["logprobs"].extend(self._unplaced)
                self._unplaced = []
            name = "response.output_text.done" if item["type"] == "message" else "response.reasoning_text.done"
            done = {"text": part["text"]} | ({"logprobs": part["logprobs"]} if item["type"] == "message" else {})
            self._part_event(name, done)
            self._part_event("response.content_part.done", {"part": part})
        item["status"] = status
        self._event("response.output_item.done", {"output_index": self._index, "item": item})
        self._item = None

    @property
    def _index(self) -> int:
        return len(self.output) - 1

    def _item_event(self, name: str, fields: Fields) -> None:
        self._event(name, {"item_id": self.output[-1]["id"], "output_index": self._index} | fields)

    def _part_event(self, name: str, fields: Fields) -> None:
        self._item_event(name, {"content_index": 0} | fields)

    def _logprobs(self, piece: Piece) -> list[Fields]:
        if self._num_top is None:
            return []
        entries = chat_entries(self._tokenizer, piece.logprobs, self._num_top)
        rivals = [rival for entry in entries for rival in entry["top_logprobs"]]
        for one in (*entries, *rivals):
            one["bytes"] = one["bytes"] or []
        return entries


def _usage(call: Call) -> Fields:
    usage = usage_of(call)
    return {
        "input_tokens": usage.num_prompt,
        "input_tokens_details": {
            "cached_tokens": usage.num_cached,
            "cache_write_tokens": usage.num_written,
            **what_is_forgotten(call),
        },
        "output_tokens": usage.num_output,
        "output_tokens_details": {"reasoning_tokens": usage.num_reasoning},
        "total_tokens": usage.num_prompt + usage.num_output,
    }
