"""What a client asked for: immutable, checked once, the same for engine and simulator."""

import json
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from reprlib import repr as short_repr
from typing import Any

from penstock.errors import RequestError

MAX_CHOICES = 128
MAX_LOGPROBS = 128
MAX_TOKEN_LIST = 4096
MAX_SEED = 2**63
MAX_TOKEN_ID = 2**31 - 1
MAX_TIME_S = 1e12
MAX_SPECULATE = 64
MAX_GRAMMAR_CHARACTERS = 1 << 20
MAX_MIXED = 4
MAX_SCALE = 4.0
MIX_MARK = "\0"
"""Between the paths and scales of adapters that a request names together; no path has it."""


def mix_of(name: str, paths: Mapping[str, str]) -> str | None:
    """Adapters named together, `one*0.5+other`, as a request's `adapter`; None if one of them is not among `paths`."""
    pieces = [piece.partition("*") for piece in name.split("+")]
    if not all(own in paths for own, _, _ in pieces):
        return None
    if len(pieces) > MAX_MIXED:
        raise RequestError(
            f"{len(pieces)} adapters are named together; at most {MAX_MIXED} are laid over a model at once"
        )
    parts = sorted((paths[own], _scale(text) if mark else 1.0) for own, mark, text in pieces)
    return MIX_MARK.join(f"{path}{MIX_MARK}{scale}" for path, scale in parts)


def mix_parts(adapter: str) -> list[tuple[str, float]]:
    """Paths and scales that an `adapter` names: one path alone, or what `mix_of` made."""
    words = adapter.split(MIX_MARK)
    return [(adapter, 1.0)] if len(words) == 1 else [(path, float(text)) for path, text in zip(words[::2], words[1::2])]


def _scale(text: str) -> float:
    """In hundredths, so that few adapters differ by their scale alone."""
    try:
        scale = round(float(text), 2)
    except ValueError:
        scale = math.nan
    if not 0 < abs(scale) <= MAX_SCALE:
        raise RequestError(f"an adapter's scale is {text[:20]!r}; write 0.01 to {MAX_SCALE:g}, as in helper*0.5")
    return scale


@dataclass(frozen=True, slots=True)
class Grammar:
    """A language that an answer must belong to: a source, and its kind. `text.grammar` knows what it means."""

    kind: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn and when to end. A temperature of 0 takes the likeliest token."""

    temperature: float = 1.0
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    """Only these may be drawn; empty allows all."""
    banned_sequences: tuple[tuple[int, ...], ...] = ()
    """Token runs that may never be completed (bad words)."""
    seed: int = 0
    max_tokens: int | None = None
    """None generates until the context or the cache is full."""
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    """Strings that end the text; matched outside the core, on text."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the sequence, the model's own end-of-text tokens included."""
    ignore_eos: bool = False
    """`stop_token_ids` do not end the sequence."""
    logprobs: int | None = None
    """Report the log probability of each drawn token and of this many likeliest."""
    prompt_logprobs: int | None = None
    n: int = 1
    grammar: Grammar | None = None
    """What the answer must be. There are four ways to state it: this, or one of the next three."""
    schema: Any = None
    """A JSON schema, as an object or as text. Becomes the grammar, as do the next two."""
    regex: str | None = None
    choice: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.schema is not None or self.regex is not None or self.choice is not None:
            grammar = _grammar(self.grammar, self.schema, self.regex, self.choice)
            for name, value in (("grammar", grammar), ("schema", None), ("regex", None), ("choice", None)):
                object.__setattr__(self, name, value)
        if self.grammar is not None and len(self.grammar.source) > MAX_GRAMMAR_CHARACTERS:
            raise RequestError(
                f"the grammar has {len(self.grammar.source):,} characters, of at most {MAX_GRAMMAR_CHARACTERS:,}",
                param="grammar",
            )
        _check_number("temperature", self.temperature, 0.0, 100.0)
        _check_number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_number("repetition_penalty", self.repetition_penalty, 0.0, 100.0, open_low=True)
        _check_int("top_k", self.top_k, 0, 2**31)
        _check_int("seed", self.seed, -MAX_SEED, MAX_SEED - 1)
        _check_int("n", self.n, 1, MAX_CHOICES)
        _check_int("min_tokens", self.min_tokens, 0, 2**31)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1, 2**31)
            if self.min_tokens > self.max_tokens:
                raise RequestError(
                    f"min_tokens is {self.min_tokens} but max_tokens is {self.max_tokens}; lower min_tokens",
                    param="min_tokens",
                )
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            _check_int("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        for name in ("logit_bias", "allowed_token_ids", "banned_sequences", "stop", "stop_token_ids"):
            if len(getattr(self, name)) > MAX_TOKEN_LIST:
                raise RequestError(f"{name} has more than {MAX_TOKEN_LIST} entries; send fewer", param=name)
        for _, bias in self.logit_bias:
            _check_number("logit_bias", bias, -100.0, 100.0)
        _check_token_ids("logit_bias", [token_id for token_id, _ in self.logit_bias])
        _check_token_ids("allowed_token_ids", self.allowed_token_ids)
        _check_token_ids("stop_token_ids", self.stop_token_ids)
        for token_ids in self.banned_sequences:
            _check_token_ids("banned_sequences", token_ids)
        if any(not text for text in self.stop):
            raise RequestError("stop has an empty string, which would match everywhere; remove it", param="stop")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)

    @property
    def reads_history(self) -> bool:
        """Drawing a token needs to know the tokens before it."""
        return self.has_penalties or bool(self.banned_sequences)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call: a prompt and its sampling parameters. `request_id` is never reused; times are on the engine's clock."""

    request_id: int
    prompt: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    arrival_s: float = 0.0
    priority: int = 0
    """Larger goes first under the priority order."""
    deadline_s: float | None = None
    """When the answer stops being wanted."""
    tenant: str = ""
    """Who is charged under the fair order."""
    session: str = ""
    """Whose conversation it is; routers may keep a session where its prefix lies."""
    salt: str = ""
    """Prefix cache namespace: requests share blocks only under equal salts."""
    prediction: tuple[int, ...] = ()
    """What the client expects the answer to be; used for drafts if speculation is on."""
    speculate: int | None = None
    """Drafts to verify in each step; 0 for none, None leaves it to the engine."""
    pins: tuple[tuple[int, float], ...] = ()
    """(tokens, seconds): the prompt's first tokens stay in the prefix cache for so long after they are computed."""
    is_batch: bool = False
    """A batch request: it runs only while no interactive request does."""
    adapter: str = ""
    """Identity of the weights laid over the model; part of every block's hash."""
    resumed: tuple[tuple[int, ...], ...] = ()
    """Tokens of each choice that another engine has drawn: generation goes on after them. Empty if it begins here."""
    peer: str = ""
    """Another engine that has blocks of the prompt or computes them now; they may be fetched from there."""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise RequestError("the prompt is empty; send at least one token", param="prompt")
        _check_token_ids("prompt", self.prompt)
        _check_int("request_id", self.request_id, 0, 2**63)
        _check_token_ids("prediction", self.prediction)
        if self.speculate is not None:
            _check_int("speculate", self.speculate, 0, MAX_SPECULATE)
        _check_int("priority", self.priority, -(2**31), 2**31)
        for num_tokens, ttl_s in self.pins:
            _check_int("pins", num_tokens, 0, len(self.prompt))
            _check_number("pins", ttl_s, 0.0, MAX_TIME_S)
        _check_number("arrival_s", self.arrival_s, -MAX_TIME_S, MAX_TIME_S)
        if self.deadline_s is not None:
            _check_number("deadline_s", self.deadline_s, -MAX_TIME_S, MAX_TIME_S)
        if self.resumed:
            if len(self.resumed) != self.params.n:
                raise RequestError(f"{len(self.resumed)} choices go on but n is {self.params.n}", param="resumed")
            for token_ids in self.resumed:
                _check_token_ids("resumed", token_ids)


def _grammar(given: Grammar | None, schema: Any, regex: str | None, choice: Sequence[str] | None) -> Grammar:
    if sum(way is not None for way in (given, schema, regex, choice)) > 1:
        raise RequestError(
            "an answer can be held to one of grammar, schema, regex and choice; give one", param="grammar"
        )
    if schema is not None:
        try:
            return Grammar("json_schema", schema if isinstance(schema, str) else json.dumps(schema))
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"the schema is no JSON value: {str(error)[:200]}", param="schema") from error
    if regex is not None:
        return Grammar("regex", regex)
    return Grammar("choice", json.dumps(list(choice or ())))


def _check_number(name: str, value: Any, low: float, high: float, *, open_low: bool = False) -> None:
    """Written as `not (low <= value <= high)` so that NaN fails too."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (low <= value <= high) or (open_low and value == low):
        bracket = "above" if open_low else "from"
        raise RequestError(f"{name} is {_shown(value)}; it must be a number {bracket} {low:g} to {high:g}", param=name)


def _check_int(name: str, value: Any, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not (low <= value <= high):
        raise RequestError(f"{name} is {_shown(value)}; it must be a whole number from {low} to {high}", param=name)


def _check_token_ids(name: str, token_ids: Any) -> None:
    try:
        array("I", token_ids)  # takes nothing but whole numbers from 0
        is_valid = max(token_ids, default=0) <= MAX_TOKEN_ID
    except (TypeError, OverflowError):
        is_valid = False
    if not is_valid:
        raise RequestError(
            f"{name} has something that is no token id; ids are whole numbers from 0 to {MAX_TOKEN_ID}", param=name
        )


def _shown(value: Any) -> str:
    """A value as a message shows it: short, whatever was sent."""
    try:
        return short_repr(value)
    except ValueError:
        return "a number of thousands of digits"
