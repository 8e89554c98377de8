"""Calls whose answers are the best of more: of several that are drawn, or of the beams of a search.

Which they are is known when all have ended: a stream stays silent until then. Each step of a search asks the engine what may
follow every living beam, as requests of one token. The prefix cache holds what beams share, so that a step computes little more
than its new tokens. Knows no dialect.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.errors import RequestError
from penstock.runtime.core.batch import Delta, Finish, FinishReason
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.engine.client import EngineClient
from penstock.runtime.text.beam import Beam, BeamRules, Ranked, TokenIds, searching
from penstock.runtime.text.stream.stream import TextRules
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer
from penstock.service.server.calls.call import CANCELLED, Call, Failure, Piece, Pipe, Reporting, Writer
from penstock.service.server.calls.generation import Beams
from penstock.service.server.http.faults import invalid
from penstock.service.server.served import ServedModel


class BestCall(Call):
    """Of the answers that are drawn for a prompt, the `num_kept` likeliest are told, by the mean log probability of their
    tokens."""

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        requests: Sequence[Request],
        rules: TextRules,
        num_kept: int,
        *,
        shows_logprobs: bool,
    ) -> None:
        super().__init__(client, tokenizer, requests, rules)
        self._num_kept = num_kept
        self._shows_logprobs = shows_logprobs
        self._drawn: list[list[Piece]] = [[] for _ in self.writers]

    @property
    def shown(self) -> Sequence[Writer]:
        """None until all have ended: elsewhere they are drawn anew, since what is not shown cannot be compared there."""
        return self.writers if self.is_over else ()

    async def news(self) -> list[Piece]:
        return self._taken(await super().news())

    def resume(self, tokens: Mapping[int, Sequence[int]]) -> list[Piece]:
        return self._taken(super().resume(tokens))

    def _taken(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Nothing until all have ended; then all pieces of the answers kept, numbered as if no others had been drawn."""
        for piece in pieces:
            self._drawn[piece.choice].append(piece)
        if not self.is_over:
            return []
        size = self.num_choices
        by_prompt = [self._drawn[first : first + size] for first in range(0, len(self._drawn), size)]
        kept = [one for drawn in by_prompt for one in sorted(drawn, key=_mean_logprob, reverse=True)[: self._num_kept]]
        return [self._renumbered(piece, choice) for choice, pieces in enumerate(kept) for piece in pieces]

    def _renumbered(self, piece: Piece, choice: int) -> Piece:
        return piece._replace(choice=choice, logprobs=piece.logprobs if self._shows_logprobs else ())


def _mean_logprob(pieces: list[Piece]) -> float:
    logprobs = [entry.logprob for piece in pieces for entry in piece.logprobs]
    return sum(logprobs) / max(len(logprobs), 1)


class BeamCall(Call):
    """`n` of the requests are the best beams that are told; the search keeps `search.width`."""

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        requests: Sequence[Request],
        rules: TextRules,
        search: BeamRules,
    ) -> None:
        super().__init__(client, tokenizer, requests, rules)
        self._rules = search
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
            request_id = self.requests[number].request_id
            deltas = [Delta(request_id, choice, *_ended(beam)) for choice, beam in enumerate(beams)]
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
                return found[: self.num_choices]

    async def _likeliest(self, prompt: TokenIds) -> Ranked:
        params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=self._rules.num_asked)
        request = replace(
            self.requests[0],
            request_id=self._client.next_id(),
            prompt=prompt,
            params=params,
            session="",
            pins=(),
            prediction=(),
            speculate=0,
            peer="",
        )
        self._asked.add(request.request_id)
        stream = self._client.submit(request)
        while True:
            for delta in await stream.take():
                if delta.logprobs:
                    self._asked.discard(request.request_id)
                    return delta.logprobs[0].top
                if delta.finish is not None:
                    raise Failure(delta.finish)


def beam_search(model: ServedModel, requests: Sequence[Request], rules: TextRules, beams: Beams) -> BeamCall:
    asked = requests[0].params
    if asked.grammar is not None or asked.logprobs is not None or asked.banned_sequences:
        fault = "a beam search with a grammar, tools, bad_words or logprobs is not supported; leave one of them out"
        raise invalid(fault, "use_beam_search", "unsupported_parameter")
    longest = model.facts.max_context - max(len(request.prompt) for request in requests)
    max_tokens = longest if asked.max_tokens is None else asked.max_tokens
    try:
        search = BeamRules(beams.width, max(max_tokens, 1), beams.length_penalty, frozenset(asked.stop_token_ids))
    except RequestError as error:
        raise invalid(str(error), error.param) from None
    return BeamCall(model.client, model.tokenizer, requests, rules, search)


def _ended(beam: Beam) -> tuple[TokenIds, Finish]:
    if beam.is_ended:
        return beam.token_ids, Finish(FinishReason.STOP, stop_token_id=beam.token_ids[-1])
    return beam.token_ids, Finish(FinishReason.LENGTH)
