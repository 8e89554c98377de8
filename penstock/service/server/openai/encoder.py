"""What answers of chats and completions share: their head, the frame around their chunks, what they used, and `best_of`.

Of `best_of` more answers are drawn than are told; the likeliest, by the mean log probability of their tokens, are. Which they
are is known when all have ended: a stream tells them then.
"""

from collections.abc import Sequence
from typing import Any

from penstock.service.server.dialect import AnswerEncoder, Dialect
from penstock.service.server.front import Front
from penstock.service.server.http import sse
from penstock.service.server.http.call import Call, Piece
from penstock.service.server.http.faults import ApiError
from penstock.service.server.http.relay import random_hex, unix_time
from penstock.service.server.openai.dialect import DIALECT
from penstock.service.server.openai.protocol import Sampling
from penstock.service.server.openai.request import best_of
from penstock.service.server.served import ServedModel
from penstock.service.server.usage import usage_of, what_is_forgotten


class ChoicesEncoder:
    """An answer of choices. `kind` is the object's name, `chunk` what its chunks say beside the head."""

    dialect: Dialect = DIALECT

    def __init__(
        self, front: Front, model: ServedModel, body: Sampling, prefix: str, kind: str, chunk: dict[str, Any]
    ) -> None:
        self._tokenizer = model.tokenizer
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
        self._begin = b"data: " + sse.quoted(self._head | chunk)[:-1] + b',"choices":'
        self._end = b"}]" + (b',"usage":null' if self._has_usage else b"") + b"}\n\n"

    def closing(self, call: Call, timings: dict[str, float] | None) -> bytes:
        if not self._has_usage:
            return sse.DONE
        return self._begin + b'[],"usage":' + sse.quoted(self._usage(call, timings)) + b"}\n\n" + sse.DONE

    def failing(self, error: ApiError) -> bytes:
        return DIALECT.error_event(error, "")

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


class BestOf:
    """Stands before the encoder that words the answers kept: `num_kept` of every `num_drawn`."""

    def __init__(self, encoder: AnswerEncoder, num_drawn: int, num_kept: int, *, shows_logprobs: bool) -> None:
        self._encoder = encoder
        self._num_drawn = num_drawn
        self._num_kept = num_kept
        self._shows_logprobs = shows_logprobs
        self._drawn: dict[int, list[Piece]] = {}

    @property
    def dialect(self) -> Dialect:
        return self._encoder.dialect

    def opening(self, call: Call) -> bytes:
        return self._encoder.opening(call)

    def reporting(self, pieces: Sequence[Piece]) -> bytes:
        self.keep(pieces)
        return b""

    def closing(self, call: Call, timings: dict[str, float] | None) -> bytes:
        return self._encoder.reporting(self._best()) + self._encoder.closing(call, timings)

    def failing(self, error: ApiError) -> bytes:
        return self._encoder.failing(error)

    def keep(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self._drawn.setdefault(piece.choice, []).append(piece)

    def whole(self, call: Call, timings: dict[str, float] | None) -> dict[str, Any]:
        self._encoder.keep(self._best())
        return self._encoder.whole(call, timings)

    def _best(self) -> list[Piece]:
        """All pieces of the answers kept, numbered as if no others had been drawn."""
        best: list[Piece] = []
        for prompt in range(-(-len(self._drawn) // self._num_drawn)):
            first = prompt * self._num_drawn
            drawn = [self._drawn.get(first + place, []) for place in range(self._num_drawn)]
            drawn.sort(key=_mean_logprob, reverse=True)
            for rank, pieces in enumerate(drawn[: self._num_kept]):
                best += [self._told(piece, prompt * self._num_kept + rank) for piece in pieces]
        return best

    def _told(self, piece: Piece, choice: int) -> Piece:
        return piece._replace(choice=choice, logprobs=piece.logprobs if self._shows_logprobs else ())


def _mean_logprob(pieces: list[Piece]) -> float:
    logprobs = [entry.logprob for piece in pieces for entry in piece.logprobs]
    return sum(logprobs) / max(len(logprobs), 1)


def with_best(encoder: AnswerEncoder, body: Sampling, num_logprobs: int | None) -> AnswerEncoder:
    """The encoder, told the likeliest answers alone where more are drawn."""
    num_drawn = best_of(body)
    if num_drawn is None:
        return encoder
    return BestOf(encoder, num_drawn, body.n or 1, shows_logprobs=num_logprobs is not None)
