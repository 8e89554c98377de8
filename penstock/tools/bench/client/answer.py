"""One request as the client saw it: what was asked, when each piece of the answer came, and how it ended.

TTFT is the first piece that holds text, reasoning included: an opening event without text is no token. The number of tokens is
the server's own count (usage) where it tells one; else the number of pieces.
"""

from array import array
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.metrics.timeline import Outcome, Timeline
from penstock.tools.bench.client.sse import EventParser

MAX_ERROR_BYTES = 2000


class TokenDetails(msgspec.Struct):
    cached_tokens: int | None = None


class ReportedUsage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: TokenDetails | None = None


class AnswerPiece(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None


class AnswerChoice(msgspec.Struct):
    delta: AnswerPiece | None = None
    text: str | None = None
    finish_reason: str | None = None


class Event(msgspec.Struct):
    choices: list[AnswerChoice] | None = None
    usage: ReportedUsage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(Event)


@dataclass(slots=True)
class Answer:
    """Times are seconds from the start of the run."""

    number: int
    scheduled_s: float
    """When it should have been sent: all latencies count from here."""
    num_prompt_asked: int
    num_answer_asked: int
    sent_s: float | None = None
    end_s: float | None = None
    piece_times: "array[float]" = field(default_factory=lambda: array("d"))
    """Of each piece that held text."""
    status: int = 0
    error: str = ""
    finish_reason: str | None = None
    usage: ReportedUsage | None = None
    num_reasoning_pieces: int = 0
    ask: int = 0
    """Number of its conversation in the plan, and of its turn in that."""
    turn: int = 0
    text: str = ""
    """Only what a later turn needs: kept where `keeps_text`."""
    keeps_text: bool = False

    @property
    def is_success(self) -> bool:
        return self.end_s is not None and not self.error

    @property
    def is_refused(self) -> bool:
        return self.status >= 400

    @property
    def is_lost(self) -> bool:
        """It failed without a whole response: the connection broke, was never made, or time ran out."""
        return bool(self.error) and not self.status

    @property
    def num_tokens(self) -> int:
        counted = self.usage.completion_tokens if self.usage is not None else None
        return len(self.piece_times) if counted is None else counted

    @property
    def num_prompt(self) -> int | None:
        """As the server counted it."""
        return self.usage.prompt_tokens if self.usage is not None and self.usage.prompt_tokens else None

    @property
    def num_cached(self) -> int | None:
        details = self.usage.prompt_tokens_details if self.usage is not None else None
        return details.cached_tokens if details is not None else None

    def timeline(self) -> Timeline:
        """The same value that engine and simulator fill."""
        timeline = Timeline(self.scheduled_s, self.num_prompt or self.num_prompt_asked)
        timeline.num_cached = self.num_cached or 0
        timeline.num_unended = 0
        timeline.end_s = self.end_s
        timeline.num_tokens = self.num_tokens
        if self.piece_times:
            timeline.first_token_s, timeline.last_token_s = self.piece_times[0], self.piece_times[-1]
        elif self.is_success:
            timeline.first_token_s = timeline.last_token_s = self.end_s
        if self.is_success:
            timeline.outcome = Outcome.LENGTH if self.finish_reason == "length" else Outcome.STOP
        elif self.end_s is None:
            timeline.outcome = Outcome.CANCELLED
        else:
            timeline.outcome = Outcome.REFUSED if self.status in (429, 503) else Outcome.ERROR
        return timeline


@dataclass(slots=True)
class AnswerReader:
    """Fills an answer from the bytes of a streamed response."""

    answer: Answer
    start_s: float
    _events: EventParser = field(default_factory=EventParser)
    _is_over: bool = False
    _refusal: bytes = b""

    def body(self, data: bytes, now: float) -> None:
        if not data.startswith(b"data:") and len(self._refusal) < MAX_ERROR_BYTES and not self.answer.piece_times:
            self._refusal += data[:MAX_ERROR_BYTES]
        for event in self._events.feed(data):
            if event == b"[DONE]":
                self._is_over = True
            else:
                self._take(_DECODER.decode(event), now - self.start_s)

    def _take(self, event: Event, now_s: float) -> None:
        answer = self.answer
        if event.error is not None:
            answer.error = f"error in the stream: {_message(event.error)}"
        if event.usage is not None:
            answer.usage = event.usage
        has_text = False
        for choice in event.choices or ():
            if choice.finish_reason is not None:
                answer.finish_reason = choice.finish_reason
            delta = choice.delta
            text = choice.text or (delta.content if delta is not None else None)
            if text:
                has_text = True
                if answer.keeps_text:
                    answer.text += text
            elif delta is not None and (
                delta.reasoning_content or delta.reasoning or delta.refusal or delta.tool_calls
            ):
                has_text = True
                answer.num_reasoning_pieces += bool(delta.reasoning_content or delta.reasoning)
        if has_text:
            answer.piece_times.append(now_s)

    def end(self, status: int, now: float) -> None:
        """The response is complete: decide whether it was an answer."""
        answer = self.answer
        answer.status = status
        answer.end_s = now - self.start_s
        if answer.error:
            return
        if status != 200:
            answer.error = f"status {status}: {body_message(self._refusal)}"
        elif answer.finish_reason is None and not self._is_over:
            answer.error = "the stream ended before the answer did"
        elif not answer.num_tokens:
            answer.error = "an answer without a token"

    def fail(self, error: str, now: float) -> None:
        self.answer.end_s = now - self.start_s
        self.answer.error = error


def _message(error: Any) -> str:
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:300]


def body_message(body: bytes) -> str:
    """What a refusal says."""
    try:
        data = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body.decode("utf-8", "replace")[:300]
    if isinstance(data, dict):
        return _message(data.get("error", data))
    return str(data)[:300]
