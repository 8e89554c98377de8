"""A call as Ollama words it: lines of JSON, the last of which says that it is done and how long each part took."""

import time
from collections.abc import Sequence
from typing import Any

from penstock.runtime.text.stream.segments import (
    Segment,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    arguments_of,
    content_of,
    reasoning_of,
)
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer
from penstock.service.server.calls.call import LENGTH, Call, Piece
from penstock.service.server.calls.usage import usage_of, what_is_forgotten
from penstock.service.server.dialect import AnswerEncoder
from penstock.service.server.ollama.dialect import DIALECT, line_of, stamp_of
from penstock.service.server.openai.logprobs import chat_entries


class OllamaEncoder(AnswerEncoder):
    """`is_chat`: words come in a `message`; otherwise in `response`, with the tokens of it all at the end."""

    dialect = DIALECT

    def __init__(self, model: str, tokenizer: Tokenizer, *, is_chat: bool, num_top: int | None) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._is_chat = is_chat
        self._num_top = num_top
        self._kept: list[Piece] = []
        self._calls: dict[int, tuple[str, list[str]]] = {}
        """Names, and what has come of the arguments."""
        self._finish_reason: str | None = None

    def reporting(self, pieces: Sequence[Piece]) -> bytes:
        return b"".join(map(self._line, pieces))

    def closing(self, call: Call, timings: dict[str, float] | None) -> bytes:
        return line_of(self._head() | self._words((), ()) | self._end(call, timings))

    def keep(self, pieces: Sequence[Piece]) -> None:
        self._kept.extend(pieces)

    def whole(self, call: Call, timings: dict[str, float] | None) -> dict[str, Any]:
        segments = [segment for piece in self._kept for segment in piece.segments]
        self._finish_reason = self._kept[-1].finish_reason if self._kept else None
        words = self._words(segments, self._take_calls(segments))
        value = self._head() | words | self._end(call, timings)
        if self._num_top is not None:
            value["logprobs"] = [entry for piece in self._kept for entry in self._logprobs(piece)]
        return value

    def _head(self) -> dict[str, Any]:
        return {"model": self._model, "created_at": stamp_of(time.time())}

    def _line(self, piece: Piece) -> bytes:
        if piece.finish_reason is not None:
            self._finish_reason = piece.finish_reason
        calls = self._take_calls(piece.segments)
        words = self._words(piece.segments, calls)
        has_words = calls or content_of(piece.segments) or reasoning_of(piece.segments)
        if not has_words and not (self._num_top is not None and piece.logprobs):
            return b""
        line = self._head() | words | {"done": False}
        if self._num_top is not None:
            line["logprobs"] = self._logprobs(piece)
        return line_of(line)

    def _words(self, segments: Sequence[Segment], calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
        content, thinking = content_of(segments), reasoning_of(segments)
        if not self._is_chat:
            return {"response": content} | ({"thinking": thinking} if thinking else {})
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if thinking:
            message["thinking"] = thinking
        if calls:
            message["tool_calls"] = list(calls)
        return {"message": message}

    def _take_calls(self, segments: Sequence[Segment]) -> list[dict[str, Any]]:
        """Calls that are complete: their arguments are told as an object, so only when all of them are there."""
        calls = []
        for segment in segments:
            match segment:
                case ToolCallStart(index, name, _):
                    self._calls[index] = name, []
                case ToolCallArguments(index, text):
                    self._calls[index][1].append(text)
                case ToolCallEnd(index):
                    name, parts = self._calls.pop(index)
                    arguments = arguments_of("".join(parts))
                    calls.append({"function": {"index": index, "name": name, "arguments": arguments}})
        return calls

    def _end(self, call: Call, timings: dict[str, float] | None) -> dict[str, Any]:
        usage = usage_of(call)
        times = timings or {}
        end: dict[str, Any] = {"done": True, "done_reason": "length" if self._finish_reason == LENGTH else "stop"}
        if not self._is_chat:
            end["context"] = [*call.prompts[0], *call.writers[0].token_ids]
        return end | {
            "total_duration": _nanoseconds(times.get("total_ms")),
            "load_duration": _nanoseconds(times.get("load_ms", 0.0) + times.get("queue_ms", 0.0)),
            "prompt_eval_count": usage.num_prompt,
            "prompt_eval_duration": _nanoseconds(times.get("prefill_ms")),
            "eval_count": usage.num_output,
            "eval_duration": _nanoseconds(times.get("decode_ms")),
            "prompt_cached_count": usage.num_cached,
            **what_is_forgotten(call),
        }

    def _logprobs(self, piece: Piece) -> list[dict[str, Any]]:
        return chat_entries(self._tokenizer, piece.logprobs, self._num_top or 0)


def _nanoseconds(milliseconds: float | None) -> int:
    return max(round((milliseconds or 0.0) * 1e6), 0)
