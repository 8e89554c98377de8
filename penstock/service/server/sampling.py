"""How tokens are drawn, from what a client asks to what the engine is told: its parameters, or a call answered by beam search.

What the client left open gets its default here, and ids are checked against the model's vocabulary. Each step of a beam search
asks the engine what may follow every living beam, as requests of one token. The prefix cache holds what beams share, so that a
step computes little more than its new tokens. The answers are known when the search ends: a stream stays silent until then.
Knows no dialect.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from penstock.errors import RequestError
from penstock.runtime.core.batch import Delta, Finish, FinishReason
from penstock.runtime.core.request import MAX_TOKEN_LIST, SamplingParams
from penstock.runtime.engine.client import EngineClient
from penstock.runtime.text.beam import Beam, BeamRules, Ranked, TokenIds, searching
from penstock.runtime.text.tokenizer.banned import banned_sequences
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer
from penstock.service.server.generation import Beams, SamplingOptions
from penstock.service.server.http.call import CANCELLED, Call, CallParameters, Failure, Pipe, Reporting
from penstock.service.server.http.faults import invalid
from penstock.service.server.http.relay import random_seed
from penstock.service.server.served import ServedModel
from penstock.service.server.writer import Piece

MAX_ID_DIGITS = 12
"""Of a token id; Python itself refuses to read thousands of digits."""


def sampling_params(model: ServedModel, asked: SamplingOptions) -> SamplingParams:
    vocab_size, defaults = model.vocab_size, model.text.defaults
    ends = () if asked.ignores_eos else model.tokenizer.eos_ids
    stop_token_ids = {*ends, *_token_set(asked.stop_token_ids, vocab_size, "stop_token_ids")}
    seed = random_seed() if asked.seed is None else asked.seed
    return SamplingParams(
        temperature=_or(asked.temperature, defaults.temperature),
        top_k=max(_or(asked.top_k, defaults.top_k), 0),
        top_p=_or(asked.top_p, defaults.top_p),
        min_p=_or(asked.min_p, defaults.min_p),
        presence_penalty=_or(asked.presence_penalty, 0.0),
        frequency_penalty=_or(asked.frequency_penalty, 0.0),
        repetition_penalty=_or(asked.repetition_penalty, defaults.repetition_penalty),
        logit_bias=_logit_bias(asked, vocab_size),
        allowed_token_ids=_token_set(asked.allowed_token_ids, vocab_size, "allowed_token_ids"),
        seed=seed if model.watermark is None else model.watermark.seed(seed),
        max_tokens=asked.max_tokens,
        min_tokens=_or(asked.min_tokens, 0),
        stop=asked.stops,
        stop_token_ids=tuple(stop_token_ids),
        logprobs=0 if asked.best_of and asked.num_logprobs is None else asked.num_logprobs,
        prompt_logprobs=asked.num_prompt_logprobs,
        banned_sequences=banned_sequences(model.tokenizer, asked.bad_words),
        n=asked.best_of or asked.n or 1,
    )


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _logit_bias(asked: SamplingOptions, vocab_size: int) -> tuple[tuple[int, float], ...]:
    pairs = []
    if len(asked.logit_bias or ()) > MAX_TOKEN_LIST:
        raise invalid(f"logit_bias has more than {MAX_TOKEN_LIST:,} entries; send fewer", "logit_bias")
    for key, bias in (asked.logit_bias or {}).items():
        if not key.isdecimal() or not key.isascii() or len(key) > MAX_ID_DIGITS or int(key) >= vocab_size:
            raise invalid(
                f"logit_bias has the key {key[:40]!r}; keys are token ids, 0 to {vocab_size - 1:,}", "logit_bias"
            )
        pairs.append((int(key), bias))
    return tuple(pairs)


def _token_set(given: Sequence[int] | None, vocab_size: int, param: str) -> tuple[int, ...]:
    check_ids(given or (), vocab_size, param)
    return tuple(given or ())


def check_ids(token_ids: Sequence[int], vocab_size: int, param: str) -> None:
    if token_ids and max(token_ids) >= vocab_size:
        raise invalid(f"{param} has the token id {max(token_ids)}; ids are below {vocab_size}", param)


class BeamCall(Call):
    """`n` of the parameters are the best beams that are told; the search keeps `rules.width`."""

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        prompts: Sequence[TokenIds],
        parameters: CallParameters,
        rules: BeamRules,
    ) -> None:
        super().__init__(client, tokenizer, prompts, parameters)
        self._rules = rules
        self._asked: set[int] = set()
        self._search: asyncio.Task[list[list[Beam]]] | None = None

    def start(self) -> None:
        self._search = asyncio.ensure_future(self._searched())

    async def news(self) -> list[Piece]:
        """All of the answer, once."""
        if self._search is None:
            return []
        await asyncio.wait((self._search,))
        if self._search.cancelled():
            raise Failure(CANCELLED)
        pieces = []
        for number, beams in enumerate(self._search.result()):
            request_id = self._requests[number].request_id
            deltas = [Delta(request_id, choice, *_told(beam)) for choice, beam in enumerate(beams)]
            pieces += self._written(number, deltas)
        return pieces

    def report_at_once(self, pipe: Pipe, reporting: Reporting) -> None:
        """Nothing is there before all is."""

    def cancel(self) -> None:
        self.close()

    def close(self) -> None:
        if self._search is not None:
            self._search.cancel()
        for request_id in self._asked:
            self._client.cancel(request_id)
        self._asked.clear()

    async def _searched(self) -> list[list[Beam]]:
        return list(await asyncio.gather(*map(self._best_of, self.prompts)))

    async def _best_of(self, prompt: TokenIds) -> list[Beam]:
        search = searching(self._rules)
        answers = next(search)
        while True:
            ranked = await asyncio.gather(*(self._likeliest(prompt + answer) for answer in answers))
            try:
                answers = search.send(ranked)
            except StopIteration as done:
                found: list[Beam] = done.value
                return found[: self._num_choices]

    async def _likeliest(self, prompt: TokenIds) -> Ranked:
        params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=self._rules.num_asked)
        request = replace(
            self.parameters, sampling=params, session="", pins=(), prediction=(), speculate=0, peer=""
        ).request(self._client.next_id(), prompt, self.arrival_s)
        self._asked.add(request.request_id)
        stream = self._client.submit(request)
        while True:
            for delta in await stream.take():
                if delta.logprobs:
                    self._asked.discard(request.request_id)
                    return delta.logprobs[0].top
                if delta.finish is not None:
                    raise Failure(delta.finish)


def beam_search(
    model: ServedModel, prompts: Sequence[tuple[int, ...]], parameters: CallParameters, beams: Beams
) -> BeamCall:
    asked = parameters.sampling
    if asked.grammar is not None or asked.logprobs is not None or asked.banned_sequences:
        fault = "a beam search with a grammar, tools, bad_words or logprobs is not supported; leave one of them out"
        raise invalid(fault, "use_beam_search", "unsupported_parameter")
    longest = model.facts.max_context - max(map(len, prompts))
    max_tokens = longest if asked.max_tokens is None else asked.max_tokens
    try:
        rules = BeamRules(beams.width, max(max_tokens, 1), beams.length_penalty, frozenset(asked.stop_token_ids))
    except RequestError as error:
        raise invalid(str(error), error.param) from None
    return BeamCall(model.client, model.tokenizer, prompts, parameters, rules)


def _told(beam: Beam) -> tuple[TokenIds, Finish]:
    if beam.is_ended:
        return beam.token_ids, Finish(FinishReason.STOP, stop_token_id=beam.token_ids[-1])
    return beam.token_ids, Finish(FinishReason.LENGTH)
