"""The server under load: what it is called, which fields it takes, what words cost in its tokens. Found out by asking it.

Nothing about a particular engine is assumed: what a server does not offer is done without, and the report says so.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import msgspec

from penstock.errors import ConfigError
from penstock.tools.bench.client.answer import Answer, AnswerReader, Event, body_message
from penstock.tools.bench.client.http import Client
from penstock.tools.bench.client.prompts import FILLERS, WORDS, PromptWords, Segment

Route = Literal["chat", "completions"]
PATHS: Mapping[Route, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
MODELS = "/v1/models"
COPIES = 8
PROBE_TOKENS = (24, 88)
PROBE_ANSWER = 4
NUM_TOKENIZERS = 16

USAGE = {"stream_options": {"include_usage": True}}
EXACT = {"ignore_eos": True}


@dataclass(frozen=True, slots=True)
class ServerDialect:
    """Fields of a request that a server may or may not take."""

    limit: str = "max_tokens"
    extra: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0.0, **EXACT, **USAGE})
    is_exact: bool = True
    """`ignore_eos` and `min_tokens` are taken: answers should be as long as asked."""

    def fields(self, num_answer: int) -> dict[str, Any]:
        least = {"min_tokens": num_answer} if self.is_exact else {}
        return {"stream": True, self.limit: num_answer, **self.extra, **least}


DIALECTS = (
    ServerDialect(),
    ServerDialect(extra={"temperature": 0.0, **USAGE}, is_exact=False),
    ServerDialect(limit="max_completion_tokens", extra=USAGE, is_exact=False),
    ServerDialect(extra={}, is_exact=False),
)
"""From the one that measures best to the plainest: the first that is not refused is used."""


class RemoteTokenizer(NamedTuple):
    """A route that turns text into tokens, and what it is sent."""

    path: str
    body: Callable[[str, str], dict[str, Any]]


TOKENIZERS = (
    RemoteTokenizer("/tokenize", lambda model, text: {"model": model, "prompt": text, "add_special_tokens": False}),
    RemoteTokenizer("/tokenize", lambda model, text: {"content": text}),
    RemoteTokenizer("/extras/tokenize", lambda model, text: {"model": model, "input": text}),
)


@dataclass(frozen=True, slots=True)
class TargetServer:
    model: str
    route: Route
    dialect: ServerDialect
    vocabulary: PromptWords
    reports_usage: bool
    """At the end of a stream."""
    has_tokenizer: bool
    is_calibrated: bool = False
    """What it adds to a prompt is known, from its own count."""
    server: str = ""
    """What it calls itself."""

    @property
    def path(self) -> str:
        return PATHS[self.route]

    def prompt(self, segments: Sequence[Segment]) -> str | list[int]:
        if self.route == "completions" and self.vocabulary.token_ids:
            return self.vocabulary.ids(segments)
        return self.vocabulary.text(segments)

    def body(
        self,
        prompt: str | list[int],
        num_answer: int,
        history: Sequence[Mapping[str, str]] = (),
        *,
        is_streamed: bool = True,
    ) -> bytes:
        content: dict[str, Any] = {"prompt": prompt}
        if self.route == "chat":
            content = {"messages": [*history, {"role": "user", "content": prompt}]}
        fields = self.dialect.fields(num_answer)
        if not is_streamed:
            fields = {name: value for name, value in fields.items() if name not in ("stream", "stream_options")}
        return msgspec.json.encode({"model": self.model, **content, **fields})


async def find_target(client: Client, model: str, route: Route, nonce: str) -> TargetServer:
    """Ask the server what it is. It is sent a handful of short requests."""
    try:
        name = model or await _first_model(client)
        costs, token_ids = await _word_costs(client, name)
        # Until its own counts are known, a word is taken for a token.
        pieces = tuple(costs) or tuple(f" {word}" for word in WORDS)
        known = tuple(costs.values()) or (1.0,) * len(pieces)
        target = TargetServer(name, route, DIALECTS[0], PromptWords(pieces, known, nonce=nonce), True, bool(costs))
        target = await _with_dialect(client, target)
        target = await _calibrated(client, target)
        if route == "completions" and token_ids:
            target = await _with_token_ids(client, target, token_ids)
    except ConnectionError as error:
        raise ConfigError(f"{error}; is the server running?") from None
    return target


async def _first_model(client: Client) -> str:
    status, body = await client.fetch("GET", MODELS)
    if status in (401, 403):
        raise ConfigError(f"{client.address.url} answers {status}; give --api-key")
    if status == 503:
        raise ConfigError(f"{client.address.url} is not ready ({body_message(body)}); wait until it serves")
    try:
        return str(msgspec.json.decode(body)["data"][0]["id"])
    except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError):
        raise ConfigError(f"{client.address.url}{MODELS} names no model (status {status}); give --model") from None


async def _word_costs(client: Client, model: str) -> tuple[dict[str, float], tuple[int, ...]]:
    """Tokens of each word after another one, and plain tokens; nothing where there is no tokenizer to ask."""
    for form in TOKENIZERS:
        base = await _tokens(client, form, model, "a")
        if base:
            break
    else:
        return {}, ()
    semaphore = asyncio.Semaphore(NUM_TOKENIZERS)
    ids: set[int] = set()

    async def cost(piece: str, copies: int) -> tuple[str, float]:
        async with semaphore:
            tokens = await _tokens(client, form, model, "a" + piece * copies)
        ids.update(tokens[len(base) :])
        return piece, (len(tokens) - len(base)) / copies

    wanted = [(f" {word}", COPIES) for word in WORDS] + [(piece, 1) for piece in FILLERS]
    found = await asyncio.gather(*(cost(piece, copies) for piece, copies in wanted))
    return {piece: cost for piece, cost in found if cost >= 1.0 and cost.is_integer()}, tuple(sorted(ids))


async def _tokens(client: Client, form: RemoteTokenizer, model: str, text: str) -> list[int]:
    """The tokens of a text by the server's own tokenizer; none if it has no such route."""
    status, data = await client.fetch("POST", form.path, msgspec.json.encode(form.body(model, text)))
    if status != 200:
        return []
    try:
        tokens = msgspec.json.decode(data)["tokens"]
    except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError):
        return []
    return list(tokens) if tokens and all(type(token) is int for token in tokens) else []


async def _ask(client: Client, target: TargetServer, prompt: str | list[int], name: str) -> tuple[Answer, str]:
    """One short request; what it answered, and what the server calls itself."""
    answer = Answer(0, 0.0, 0, PROBE_ANSWER)
    reader = AnswerReader(answer, client.clock())
    try:
        async with asyncio.timeout(120.0):
            response = await client.request("POST", target.path, target.body(prompt, PROBE_ANSWER), reader.body)
    except TimeoutError:
        raise ConfigError(f"{client.address.url} has not answered {name} within two minutes") from None
    reader.end(response.status, client.clock())
    return answer, response.headers.get(b"server", b"").decode("latin-1")


async def _with_dialect(client: Client, target: TargetServer) -> TargetServer:
    answer = None
    for dialect in DIALECTS:
        tried = replace(target, dialect=dialect)
        prompt = target.vocabulary.text([Segment("dialect", 8)])
        answer, server = await _ask(client, tried, prompt, "a first request")
        if not answer.error:
            return replace(tried, server=server, reports_usage=answer.num_prompt is not None)
        if answer.status not in (400, 404, 422):
            break
    raise ConfigError(f"{client.address.url}{target.path} does not answer: {answer.error if answer else ''}")


async def _calibrated(client: Client, target: TargetServer) -> TargetServer:
    """What the server adds to a prompt; and, where it has no tokenizer to ask, what a word costs on the average."""
    seen: list[tuple[float, int]] = []
    for count in PROBE_TOKENS:
        prompt = target.vocabulary.text([Segment(f"calibration {count}", count)])
        num_prompt = await _num_prompt(client, target, prompt, count)
        if num_prompt is None:
            return target
        seen.append((count, num_prompt))
    vocabulary = target.vocabulary
    if not target.has_tokenizer:
        (few, few_tokens), (many, many_tokens) = seen
        cost = (many_tokens - few_tokens) / (many - few)
        if not cost > 0.0:
            return replace(target, reports_usage=False)
        vocabulary = replace(vocabulary, costs=(cost,) * len(vocabulary.pieces))
        overhead = round(few_tokens - cost * few)
    else:
        overhead = min(tokens - int(count) for count, tokens in seen)
    return replace(target, vocabulary=replace(vocabulary, overhead=max(overhead, 0)), is_calibrated=True)


async def _num_prompt(client: Client, target: TargetServer, prompt: str | list[int], count: int) -> int | None:
    """Tokens of a prompt as the server counts them. Some count only where an answer is not streamed."""
    if target.reports_usage:
        answer, _ = await _ask(client, target, prompt, "a short prompt")
        if answer.error:
            raise ConfigError(f"{client.address.url} failed on a prompt of {count} words: {answer.error}")
        return answer.num_prompt
    status, data = await client.fetch("POST", target.path, target.body(prompt, 1, is_streamed=False), 120.0)
    try:
        usage = msgspec.json.decode(data, type=Event).usage if status == 200 else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return (usage and usage.prompt_tokens) or None


async def _with_token_ids(client: Client, target: TargetServer, token_ids: tuple[int, ...]) -> TargetServer:
    """Prompts as numbers, if the server takes them: their length is then exact."""
    vocabulary = replace(target.vocabulary, token_ids=token_ids, overhead=0)
    tried = replace(target, vocabulary=vocabulary)
    prompt = vocabulary.ids([Segment("numbers", 40)])
    answer, _ = await _ask(client, tried, prompt, "a prompt of token ids")
    if answer.error or answer.num_prompt is None or not 0 <= answer.num_prompt - len(prompt) <= 8:
        return target
    return replace(tried, vocabulary=replace(vocabulary, overhead=answer.num_prompt - len(prompt)))
