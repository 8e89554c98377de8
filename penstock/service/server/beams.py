"""A call that is answered by beam search.

Each step of the search asks the engine what may follow every living beam, as requests of one token. The prefix cache holds
what beams share, so that a step computes little more than its new tokens. The answers are known when the search ends: a stream
stays silent until then. Knows no dialect.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from penstock.errors import RequestError
from penstock.runtime.core.batch import Delta, Finish, FinishReason
from penstock.runtime.core.request import Request, SamplingParams
from penstock.runtime.engine.client import EngineClient
from penstock.runtime.text.beam import Beam, BeamRules, Ranked, TokenIds, searching
from penstock.runtime.text.stream.stream import TextRules
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer
from penstock.service.server.generation import Beams
from penstock.service.server.http.call import CANCELLED, Call, Failure, Piece, Pipe, Reporting
from penstock.service.server.http.faults import invalid
from penstock.service.server.served import ServedModel


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


def _told(beam: Beam) -> tuple[TokenIds, Finish]:
    if beam.is_ended:
        return beam.token_ids, Finish(FinishReason.STOP, stop_token_id=beam.token_ids[-1])
    return beam.token_ids, Finish(FinishReason.LENGTH)
