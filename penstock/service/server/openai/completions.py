"""/v1/completions: prompts in, their continuations out; with `echo` and `logprobs` as evaluation harnesses need them."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from starlette.requests import Request

from penstock.runtime.core.batch import Logprob
from penstock.service.server.calls.call import Call, Piece
from penstock.service.server.calls.generation import CacheHints, Caller, Generation, Texts
from penstock.service.server.calls.prepare import prepare
from penstock.service.server.front import Counted, Front, Prepared
from penstock.service.server.http import sse
from penstock.service.server.http.faults import invalid, unsupported
from penstock.service.server.openai.chat import ChoicesEncoder
from penstock.service.server.openai.logprobs import CompletionLogprobs
from penstock.service.server.openai.protocol import REFUSED, CompletionBody
from penstock.service.server.openai.request import check_strictly, output_form, sampling_options
from penstock.service.server.served import ServedModel


async def complete_text(request: Request) -> Counted:
    front: Front = request.app.state.front
    begun = await front.begin(request, CompletionBody, REFUSED)
    return Counted(front, await prepare_text(front, begun.model, begun.caller, begun.body), begun)


async def prepare_text(front: Front, model: ServedModel, caller: Caller, body: CompletionBody) -> Prepared:
    if front.config.strict:
        check_strictly(body)
    call = await prepare(model, caller, text_generation(body))
    encoder = CompletionEncoder(front, model, body, call.prompts)
    return Prepared(model, call, encoder)


def text_generation(body: CompletionBody) -> Generation:
    if body.suffix:
        raise unsupported("suffix", "put the whole text into the prompt")
    max_tokens = body.max_answer
    if not max_tokens and not body.echo:
        raise invalid("max_tokens is 0, which asks for nothing without echo; raise it", "max_tokens")
    num_prompt_logprobs = body.prompt_logprobs
    if body.echo and body.logprobs is not None:
        num_prompt_logprobs = max(body.logprobs, num_prompt_logprobs or 0)
    sampling = sampling_options(
        body, max_tokens=max_tokens or 1, num_logprobs=body.logprobs, num_prompt_logprobs=num_prompt_logprobs
    )
    return Generation(
        prompt=Texts(given=body.prompt, adds_special=body.add_special_tokens is not False),
        sampling=sampling,
        output=output_form(body),
        cache=CacheHints(salt=body.cache_salt or ""),
        priority=body.priority or 0,
        deadline_ms=body.deadline_ms,
        kept_prompt_tokens=body.truncate_prompt_tokens,
        speculate=body.speculate,
        param="prompt",
    )


def _hidden(piece: Piece) -> Piece:
    """The one token that had to be drawn is kept from a client that asked for none."""
    return piece._replace(segments=(), token_ids=(), logprobs=())


class CompletionEncoder(ChoicesEncoder):
    """A text completion, or its chunks."""

    def __init__(
        self, front: Front, model: ServedModel, body: CompletionBody, prompts: Sequence[tuple[int, ...]]
    ) -> None:
        super().__init__(front, model, body, "cmpl", "text_completion", {})
        self._shows_answer = body.max_tokens != 0
        self._prompts = prompts
        self._echoes = bool(body.echo)
        self._num_top = body.logprobs
        self._reports_prompt_logprobs = body.prompt_logprobs is not None
        self._kept = [[] for _ in range(len(prompts) * self._num_choices)]
        self._columns = [
            CompletionLogprobs(self._model.tokenizer, self._num_top or 0, has_ids=self._reports_ids) for _ in self._kept
        ]
        self._prompt_logprobs: list[list[Logprob]] = [[] for _ in prompts]
        self._plain_end = b',"logprobs":null,"finish_reason":null' + self._end

    @cached_property
    def _starts(self) -> list[bytes]:
        return [self._begin + b'[{"index":%d,"text":' % index for index in range(len(self._kept))]

    def opening(self, call: Call) -> bytes:
        """Nothing; with `echo`, the prompts, unless their log probabilities have to come with them."""
        if not self._echoes or self._num_top is not None:
            return b""
        return b"".join(
            self._starts[index] + sse.quoted(self._prompt_text(index)) + self._plain_end
            for index in range(len(self._kept))
        )

    def reporting(self, pieces: Sequence[Piece]) -> bytes:
        pieces = pieces if self._shows_answer else [_hidden(piece) for piece in pieces]
        if len(pieces) == 1:
            piece = pieces[0]
            if piece.finish_reason is None and self._num_top is None and not self._reports_ids:
                return self._starts[piece.choice] + sse.quoted(piece.content) + self._plain_end
        return b"".join(map(self._report, pieces))

    def keep(self, pieces: Sequence[Piece]) -> None:
        super().keep(pieces if self._shows_answer else [_hidden(piece) for piece in pieces])
        for piece in pieces:
            self._take_prompt_logprobs(piece)

    def _usage(self, call: Call, timings: dict[str, float] | None) -> dict[str, Any]:
        reported = super()._usage(call, timings)
        if not self._shows_answer:
            reported |= {"completion_tokens": 0, "total_tokens": reported["prompt_tokens"]}
        return reported

    def _choice(self, index: int, kept: list[Piece]) -> dict[str, Any]:
        text = "".join(piece.content for piece in kept)
        choice: dict[str, Any] = {
            "index": index,
            "text": self._prompt_text(index) + text if self._echoes else text,
            "logprobs": None,
            "finish_reason": kept[-1].finish_reason if kept else None,
        }
        if self._num_top is not None:
            columns = self._columns[index]
            self._echo_columns(index)
            for piece in kept:
                columns.add(piece.token_ids, piece.logprobs)
            choice["logprobs"] = columns.value
        if self._reports_prompt_logprobs:
            choice["prompt_logprobs"] = self._prompt_rows(index)
        if self._reports_ids:
            choice["token_ids"] = [token for piece in kept for token in piece.token_ids]
            choice["prompt_token_ids"] = self._prompts[index // self._num_choices]
        return choice

    def _report(self, piece: Piece) -> bytes:
        """Text first, then an empty one that carries the finish."""
        index = piece.choice
        self._take_prompt_logprobs(piece)
        events = []
        is_first = not self._kept[index]
        is_echo = is_first and self._echoes and self._num_top is not None
        if piece.token_ids or piece.content or (is_echo and self._is_scored(index)):
            text, logprobs = piece.content, b"null"
            if is_first:
                self._kept[index].append(piece)
            if is_echo:
                text = self._prompt_text(index) + text
                self._echo_columns(index)
            if self._num_top is not None:
                self._columns[index].add(piece.token_ids, piece.logprobs)
                logprobs = sse.quoted(self._columns[index].value)
                self._columns[index].clear()
            events.append(self._event(index, text, logprobs, b"null", piece.token_ids))
        if piece.finish_reason is not None:
            events.append(self._event(index, "", b"null", sse.quoted(piece.finish_reason), ()))
        return b"".join(events)

    def _event(self, index: int, text: str, logprobs: bytes, finish: bytes, token_ids: tuple[int, ...]) -> bytes:
        ids = b',"token_ids":' + sse.quoted(token_ids) if self._reports_ids else b""
        body = sse.quoted(text) + b',"logprobs":' + logprobs + b',"finish_reason":' + finish + ids
        return self._starts[index] + body + self._end

    def _prompt_text(self, index: int) -> str:
        return self._model.tokenizer.decode(self._prompts[index // self._num_choices], skip_special=False)

    def _take_prompt_logprobs(self, piece: Piece) -> None:
        if piece.prompt_logprobs and piece.choice % self._num_choices == 0:
            self._prompt_logprobs[piece.choice // self._num_choices].extend(piece.prompt_logprobs)

    def _is_scored(self, index: int) -> bool:
        """The log probabilities of the whole prompt are there; a long one is computed in several steps."""
        number = index // self._num_choices
        return len(self._prompt_logprobs[number]) + 1 == len(self._prompts[number])

    def _echo_columns(self, index: int) -> None:
        """The prompt's own tokens; the first has no log probability, since nothing came before it."""
        if not self._echoes:
            return
        number = index // self._num_choices
        first, *rest = self._prompts[number]
        self._columns[index].add_first(first)
        self._columns[index].add(rest, self._prompt_logprobs[number])

    def _prompt_rows(self, index: int) -> list[dict[str, Any] | None]:
        rows: list[dict[str, Any] | None] = [None]
        for one in self._prompt_logprobs[index // self._num_choices]:
            pairs = {one.token_id: one.logprob} | dict(one.top)
            rows.append({str(token_id): {"logprob": logprob} for token_id, logprob in pairs.items()})
        return rows
