"""/v1/chat/completions: messages in, a message or its chunks out."""

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from penstock.runtime.text.stream.segments import (
    ContentText,
    Segment,
    content_of,
    joined,
    reasoning_of,
)
from penstock.service.server.front import Counted, Front, Prepared
from penstock.service.server.generation import Caller
from penstock.service.server.http import sse
from penstock.service.server.http.call import Call, Piece
from penstock.service.server.openai.calls import FUNCTION_WORDS, TOOL_WORDS
from penstock.service.server.openai.encoder import ChoicesEncoder, with_best
from penstock.service.server.openai.logprobs import chat_entries
from penstock.service.server.openai.protocol import REFUSED, ChatBody
from penstock.service.server.openai.request import chat_generation, check_strictly, delivery_of
from penstock.service.server.prepare import prepare
from penstock.service.server.served import ServedModel


async def complete_chat(request: Request) -> Counted:
    front: Front = request.app.state.front
    begun = await front.begin(request, ChatBody, REFUSED, delivery_of)
    return front.answer(await prepare_chat(front, begun.model, begun.caller, begun.body), begun)


async def prepare_chat(front: Front, model: ServedModel, caller: Caller, body: ChatBody) -> Prepared:
    if front.config.strict:
        check_strictly(body)
    generation = chat_generation(body)
    call = await prepare(model, caller, generation)
    encoder = ChatEncoder(front, model, body, generation.sampling.num_logprobs)
    return Prepared(model, call, with_best(encoder, body, generation.sampling.num_logprobs), delivery_of(body))


class ChatEncoder(ChoicesEncoder):
    """A chat completion, or its chunks."""

    def __init__(self, front: Front, model: ServedModel, body: ChatBody, num_top: int | None) -> None:
        tier = "flex" if body.service_tier == "flex" else "default"
        self._tier = {"service_tier": tier} if body.service_tier else {}
        chunk = {"object": "chat.completion.chunk"} | self._tier
        super().__init__(front, model, body, "chatcmpl", "chat.completion", chunk)
        self._num_top = num_top
        self._calls = FUNCTION_WORDS if body.functions else TOOL_WORDS
        self._kept: list[list[Piece]] = [[] for _ in range(self._num_choices)]
        self._starts = [self._begin + b'[{"index":%d,"delta":{"content":' % index for index in range(self._num_choices)]
        self._plain_end = b'},"logprobs":null,"finish_reason":null' + self._end

    def opening(self, call: Call) -> bytes:
        delta = b'{"role":"assistant","content":"","refusal":null}'
        return b"".join(self._event(index, delta, b"null", b"null") for index in range(self._num_choices))

    def reporting(self, pieces: Sequence[Piece]) -> bytes:
        if len(pieces) == 1:
            piece = pieces[0]
            segments = piece.segments
            if (
                len(segments) == 1
                and type(segments[0]) is ContentText
                and piece.finish_reason is None
                and not piece.logprobs
                and not self._reports_ids
            ):
                return self._starts[piece.choice] + sse.quoted(segments[0].text) + self._plain_end
        return b"".join(map(self._report, pieces))

    def keep(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self._kept[piece.choice].append(piece)

    def whole(self, call: Call, timings: dict[str, float] | None) -> dict[str, Any]:
        choices = [self._choice(index, kept) for index, kept in enumerate(self._kept)]
        return self._head | {"choices": choices, "usage": self._usage(call, timings)} | self._tier

    def _choice(self, index: int, kept: list[Piece]) -> dict[str, Any]:
        segments = joined([segment for piece in kept for segment in piece.segments])
        content, calls = content_of(segments), self._calls.message(segments)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content if content or not calls else None,
            "refusal": None,
        }
        reasoning = reasoning_of(segments)
        if reasoning:
            message["reasoning_content"] = reasoning
        message |= calls
        logprobs = None
        if self._num_top is not None:
            entries = [entry for piece in kept for entry in self._entries(piece)]
            logprobs = {"content": entries, "refusal": None}
        choice = {
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": self._calls.reason(kept[-1].finish_reason) if kept else None,
        }
        if self._reports_ids:
            choice["token_ids"] = [token for piece in kept for token in piece.token_ids]
            if any(piece.drafts for piece in kept):
                choice["accepted_drafts"] = [is_draft for piece in kept for is_draft in piece.are_drafts]
        return choice

    def _report(self, piece: Piece) -> bytes:
        """Text first, then an empty delta that carries the finish."""
        words = _words(piece.segments)
        deltas = [*([words] if words else ()), *self._calls.deltas(piece.segments)]
        if not deltas and (piece.logprobs or (self._reports_ids and piece.token_ids)):
            deltas = [{"content": ""}]
        if deltas and self._reports_ids:
            deltas[0]["token_ids"] = piece.token_ids
            if piece.drafts:
                deltas[0]["accepted_drafts"] = piece.are_drafts
        events = []
        for number, delta in enumerate(deltas):
            logprobs = b"null"
            if not number and self._num_top is not None and piece.logprobs:
                logprobs = sse.quoted({"content": self._entries(piece), "refusal": None})
            events.append(self._event(piece.choice, sse.quoted(delta), logprobs, b"null"))
        if piece.finish_reason is not None:
            events.append(
                self._event(piece.choice, b"{}", b"null", sse.quoted(self._calls.reason(piece.finish_reason)))
            )
        return b"".join(events)

    def _event(self, index: int, delta: bytes, logprobs: bytes, finish: bytes) -> bytes:
        choice = b'[{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b' % (index, delta, logprobs, finish)
        return self._begin + choice + self._end

    def _entries(self, piece: Piece) -> list[dict[str, Any]]:
        return chat_entries(self._tokenizer, piece.logprobs, self._num_top or 0, has_ids=self._reports_ids)


def _words(segments: Sequence[Segment]) -> dict[str, Any]:
    """Reasoning and content of one piece stand in one delta."""
    words: dict[str, Any] = {}
    reasoning, content = reasoning_of(segments), content_of(segments)
    if reasoning:
        words["reasoning_content"] = reasoning
    if content:
        words["content"] = content
    return words
