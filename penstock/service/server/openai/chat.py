"""/v1/chat/completions: messages in, a message or its chunks out; and what its answers share with those of text completions:
their head, the frame around their chunks, what they used."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from starlette.requests import Request

from penstock.runtime.text.stream.segments import (
    ContentText,
    Segment,
    content_of,
    joined,
    reasoning_of,
)
from penstock.service.server.calls.call import Call, Piece
from penstock.service.server.calls.generation import Caller
from penstock.service.server.calls.prepare import prepare
from penstock.service.server.calls.usage import usage_of, what_is_forgotten
from penstock.service.server.dialect import AnswerEncoder
from penstock.service.server.front import Counted, Front, Prepared
from penstock.service.server.http import sse
from penstock.service.server.http.exchange import random_hex, unix_time
from penstock.service.server.openai.calls import FUNCTION_WORDS, TOOL_WORDS
from penstock.service.server.openai.dialect import DIALECT
from penstock.service.server.openai.logprobs import chat_entries
from penstock.service.server.openai.protocol import REFUSED, ChatBody, Sampling
from penstock.service.server.openai.request import chat_generation, check_strictly
from penstock.service.server.served import ServedModel


async def complete_chat(request: Request) -> Counted:
    front: Front = request.app.state.front
    begun = await front.begin(request, ChatBody, REFUSED)
    return Counted(front, await prepare_chat(front, begun.model, begun.caller, begun.body), begun)


async def prepare_chat(front: Front, model: ServedModel, caller: Caller, body: ChatBody) -> Prepared:
    if front.config.strict:
        check_strictly(body)
    generation = chat_generation(body)
    call = await prepare(model, caller, generation)
    encoder = ChatEncoder(front, model, body, generation.sampling.num_logprobs)
    return Prepared(model, call, encoder)


class ChoicesEncoder(AnswerEncoder):
    """An answer of choices. `kind` is the object's name, `chunk` what its chunks say beside the head."""

    dialect = DIALECT

    def __init__(
        self, front: Front, model: ServedModel, body: Sampling, prefix: str, kind: str, chunk: dict[str, Any]
    ) -> None:
        self._model = model
        self._num_choices = body.n or 1
        self._has_usage = bool(body.stream_options and body.stream_options.include_usage)
        self._reports_ids = bool(body.return_token_ids)
        self._head: dict[str, Any] = {
            "id": f"{prefix}-{random_hex()}",
            "object": kind,
            "created": unix_time(),
            "model": model.name,
            "system_fingerprint": front.fingerprint,
        }
        self._chunk = chunk
        self._tail: dict[str, Any] = {}
        """What a whole answer ends with."""
        self._kept: list[list[Piece]] = [[] for _ in range(self._num_choices)]
        self._end = b"}]" + (b',"usage":null' if self._has_usage else b"") + b"}\n\n"

    @cached_property
    def _begin(self) -> bytes:
        return b"data: " + sse.quoted(self._head | self._chunk)[:-1] + b',"choices":'

    def keep(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self._kept[piece.choice].append(piece)

    def whole(self, call: Call, timings: dict[str, float] | None) -> dict[str, Any]:
        choices = [self._choice(index, kept) for index, kept in enumerate(self._kept)]
        return self._head | {"choices": choices, "usage": self._usage(call, timings)} | self._tail

    def _choice(self, index: int, kept: list[Piece]) -> dict[str, Any]:
        raise NotImplementedError

    def closing(self, call: Call, timings: dict[str, float] | None) -> bytes:
        if not self._has_usage:
            return sse.DONE
        return self._begin + b'[],"usage":' + sse.quoted(self._usage(call, timings)) + b"}\n\n" + sse.DONE

    def _usage(self, call: Call, timings: dict[str, float] | None) -> dict[str, Any]:
        """With the times of the call, and why its prompt was not found in the cache, if they were asked for."""
        usage = usage_of(call)
        value: dict[str, Any] = {
            "prompt_tokens": usage.num_prompt,
            "completion_tokens": usage.num_output,
            "total_tokens": usage.num_prompt + usage.num_output,
            "prompt_tokens_details": {
                "cached_tokens": usage.num_cached,
                "cache_write_tokens": usage.num_written,
                "audio_tokens": 0,
                **what_is_forgotten(call),
            },
            "completion_tokens_details": {
                "reasoning_tokens": usage.num_reasoning,
                "audio_tokens": 0,
                "accepted_prediction_tokens": usage.num_accepted,
                "rejected_prediction_tokens": usage.num_rejected,
            },
        }
        tiers = [sum(writer.from_tiers[place] for writer in call.writers[:: call.num_choices]) for place in (0, 1)]
        if any(tiers):
            value["prompt_tokens_details"]["cached_tokens_by_tier"] = dict(zip(("host", "disk"), tiers))
        if timings is None:
            return value
        drafts = {"draft_tokens": usage.num_draft, "accepted_draft_tokens": usage.num_accepted_draft}
        if (miss := call.writers[0].cache_miss) != "":
            value["prompt_tokens_details"]["cache_miss_reason"] = miss
        return value | {"timings": timings | (drafts if usage.num_draft else {})}


class ChatEncoder(ChoicesEncoder):
    """A chat completion, or its chunks."""

    def __init__(self, front: Front, model: ServedModel, body: ChatBody, num_top: int | None) -> None:
        tier = "flex" if body.service_tier == "flex" else "default"
        tail = {"service_tier": tier} if body.service_tier else {}
        chunk = {"object": "chat.completion.chunk"} | tail
        super().__init__(front, model, body, "chatcmpl", "chat.completion", chunk)
        self._tail = tail
        self._num_top = num_top
        self._calls = FUNCTION_WORDS if body.functions else TOOL_WORDS
        self._plain_end = b'},"logprobs":null,"finish_reason":null' + self._end

    @cached_property
    def _starts(self) -> list[bytes]:
        return [self._begin + b'[{"index":%d,"delta":{"content":' % index for index in range(self._num_choices)]

    def whole(self, call: Call, timings: dict[str, float] | None) -> dict[str, Any]:
        asked = {"prompt_token_ids": call.prompts[0]} if self._reports_ids else {}
        return super().whole(call, timings) | asked

    def opening(self, call: Call) -> bytes:
        delta = b'{"role":"assistant","content":"","refusal":null}'
        events = b"".join(self._event(index, delta, b"null", b"null") for index in range(self._num_choices))
        if not self._reports_ids:
            return events
        return b'data: {"prompt_token_ids":' + sse.quoted(call.prompts[0]) + b"," + events.removeprefix(b"data: {")

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
        return choice | self._ids(kept)

    def _ids(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """The tokens themselves, where they were asked for, and which of them were guessed."""
        if not self._reports_ids:
            return {}
        ids = {"token_ids": [token for piece in pieces for token in piece.token_ids]}
        if not any(piece.drafts for piece in pieces):
            return ids
        return ids | {"accepted_drafts": [is_draft for piece in pieces for is_draft in piece.are_drafts]}

    def _report(self, piece: Piece) -> bytes:
        """Text first, then an empty delta that carries the finish."""
        words = _words(piece.segments)
        deltas = [*([words] if words else ()), *self._calls.deltas(piece.segments)]
        if not deltas and (piece.logprobs or (self._reports_ids and piece.token_ids)):
            deltas = [{"content": ""}]
        ids = b"," + sse.quoted(self._ids((piece,)))[1:-1] if self._reports_ids else b""
        events = []
        for number, delta in enumerate(deltas):
            logprobs = b"null"
            if not number and self._num_top is not None and piece.logprobs:
                logprobs = sse.quoted({"content": self._entries(piece), "refusal": None})
            events.append(self._event(piece.choice, sse.quoted(delta), logprobs, b"null" + (b"" if number else ids)))
        if piece.finish_reason is not None:
            events.append(
                self._event(piece.choice, b"{}", b"null", sse.quoted(self._calls.reason(piece.finish_reason)))
            )
        return b"".join(events)

    def _event(self, index: int, delta: bytes, logprobs: bytes, finish: bytes) -> bytes:
        choice = b'[{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b' % (index, delta, logprobs, finish)
        return self._begin + choice + self._end

    def _entries(self, piece: Piece) -> list[dict[str, Any]]:
        return chat_entries(self._model.tokenizer, piece.logprobs, self._num_top or 0, has_ids=self._reports_ids)


def _words(segments: Sequence[Segment]) -> dict[str, Any]:
    """Reasoning and content of one piece stand in one delta."""
    words: dict[str, Any] = {}
    reasoning, content = reasoning_of(segments), content_of(segments)
    if reasoning:
        words["reasoning_content"] = reasoning
    if content:
        words["content"] = content
    return words
