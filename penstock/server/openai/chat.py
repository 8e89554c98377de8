"""/v1/chat/completions: messages in, a message or its chunks out."""

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from penstock.server.front import Counted, Front
from penstock.server.http import sse
from penstock.server.http.call import Call
from penstock.server.http.faults import ApiError, invalid, unsupported
from penstock.server.openai.logprobs import chat_entries
from penstock.server.openai.parameters import prompt_of_messages, wishes_of
from penstock.server.openai.protocol import ChatBody
from penstock.server.openai.usage import usage_value
from penstock.server.openai.writer import Piece
from penstock.text.tokenizer.tokenizer import Tokenizer

TIER_PRIORITY = {"flex": -1, "priority": 1, "fast": 1}


async def complete_chat(request: Request) -> Counted:
    front: Front = request.app.state.front
    body, ignored = await front.begin(request, ChatBody)
    _refuse_what_is_not_served(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    if body.max_completion_tokens is not None:
        body.max_tokens = body.max_completion_tokens
    if body.priority is None:
        body.priority = TIER_PRIORITY.get(body.service_tier or "", 0)
    prompt = await prompt_of_messages(front, body)
    num_top = (body.top_logprobs or 0) if body.logprobs else None
    wishes = wishes_of(front, request, body, prompt_text=prompt.text, num_logprobs=num_top)
    call = front.call([prompt.token_ids], wishes, param="messages")
    voice = ChatVoice(front, body, num_top)
    return front.answer(call, voice, body, ignored)


def _refuse_what_is_not_served(body: ChatBody) -> None:
    if body.tools:
        raise unsupported("tools", "describe what to call in the messages")
    if body.tool_choice not in (None, "none", "auto"):
        raise unsupported("tool_choice", "leave it out")
    if body.response_format and body.response_format.get("type") != "text":
        raise unsupported("response_format", 'ask for the form in the messages, or send {"type": "text"}')
    if body.modalities not in (None, [], ["text"]):
        raise unsupported("modalities", 'ask for ["text"]')
    if body.verbosity not in (None, "medium"):
        raise unsupported("verbosity", "ask for the length in the messages")
    if body.store:
        raise unsupported("store", "answers are not kept; send false")


class ChatVoice:
    def __init__(self, front: Front, body: ChatBody, num_top: int | None) -> None:
        self._tokenizer: Tokenizer = front.tokenizer
        self._num_top = num_top
        self._num_choices = body.n or 1
        self._has_usage = bool(body.stream_options and body.stream_options.include_usage)
        self._tells_ids = bool(body.return_token_ids)
        self._tier = {"service_tier": "default"} if body.service_tier else {}
        self._head: dict[str, Any] = {
            "id": front.new_id("chatcmpl-"),
            "object": "chat.completion",
            "created": front.unix_time(),
            "model": front.model,
            "system_fingerprint": front.fingerprint,
        }
        self._kept: list[list[Piece]] = [[] for _ in range(self._num_choices)]
        chunk_head = sse.quoted(self._head | {"object": "chat.completion.chunk"} | self._tier)
        usage = b',"usage":null' if self._has_usage else b""
        self._begin = b"data: " + chunk_head[:-1] + b',"choices":'
        self._starts = [self._begin + b'[{"index":%d,"delta":{"content":' % index for index in range(self._num_choices)]
        self._end = b"}]" + usage + b"}\n\n"
        self._plain_end = b'},"logprobs":null,"finish_reason":null' + self._end

    def opening(self) -> bytes:
        delta = b'{"role":"assistant","content":"","refusal":null}'
        return b"".join(self._event(index, delta, b"null", b"null") for index in range(self._num_choices))

    def telling(self, pieces: Sequence[Piece]) -> bytes:
        if len(pieces) == 1:
            piece = pieces[0]
            if piece.finish_reason is None and not piece.logprobs and not piece.reasoning and not self._tells_ids:
                return self._starts[piece.choice] + sse.quoted(piece.content) + self._plain_end
        return b"".join(map(self._tell, pieces))

    def closing(self, call: Call, timings: dict[str, float] | None) -> bytes:
        if not self._has_usage:
            return sse.DONE
        return self._begin + b'[],"usage":' + sse.quoted(usage_value(call, timings)) + b"}\n\n" + sse.DONE

    def failing(self, error: ApiError) -> bytes:
        return sse.error_event(error)

    def keep(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self._kept[piece.choice].append(piece)

    def whole(self, call: Call, timings: dict[str, float] | None) -> dict[str, Any]:
        choices = [self._choice(index, kept) for index, kept in enumerate(self._kept)]
        return self._head | {"choices": choices, "usage": usage_value(call, timings)} | self._tier

    def _choice(self, index: int, kept: list[Piece]) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "".join(piece.content for piece in kept),
            "refusal": None,
        }
        reasoning = "".join(piece.reasoning for piece in kept)
        if reasoning:
            message["reasoning_content"] = reasoning
        logprobs = None
        if self._num_top is not None:
            entries = [entry for piece in kept for entry in self._entries(piece)]
            logprobs = {"content": entries, "refusal": None}
        choice = {
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": kept[-1].finish_reason if kept else None,
        }
        if self._tells_ids:
            choice["token_ids"] = [token for piece in kept for token in piece.token_ids]
        return choice

    def _tell(self, piece: Piece) -> bytes:
        """Text first, then an empty delta that carries the finish."""
        events = []
        if piece.content or piece.reasoning or piece.logprobs or (self._tells_ids and piece.token_ids):
            delta: dict[str, Any] = {"reasoning_content": piece.reasoning} if piece.reasoning else {}
            if piece.content or not piece.reasoning:
                delta["content"] = piece.content
            if self._tells_ids:
                delta["token_ids"] = piece.token_ids
            logprobs = b"null"
            if self._num_top is not None and piece.logprobs:
                logprobs = sse.quoted({"content": self._entries(piece), "refusal": None})
            events.append(self._event(piece.choice, sse.quoted(delta), logprobs, b"null"))
        if piece.finish_reason is not None:
            events.append(self._event(piece.choice, b"{}", b"null", sse.quoted(piece.finish_reason)))
        return b"".join(events)

    def _event(self, index: int, delta: bytes, logprobs: bytes, finish: bytes) -> bytes:
        choice = b'[{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b' % (index, delta, logprobs, finish)
        return self._begin + choice + self._end

    def _entries(self, piece: Piece) -> list[dict[str, Any]]:
        return chat_entries(self._tokenizer, piece.logprobs, self._num_top or 0)
