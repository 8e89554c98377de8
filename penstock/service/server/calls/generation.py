"""What a client asks for, in no dialect: every dialect turns its bodies into these values, and nothing below reads a body.

`None` means that the client left it to us. Knows no engine, no token and no wire format; `prepare` turns a generation into a
call of one model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from penstock.runtime.text.tools.grammar import Tool
from penstock.service.marks import TokenBound


class ToolCall(NamedTuple):
    """A call that an earlier answer made. `arguments` is JSON text, as the model wrote it."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    role: str
    content: str | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    """Which call this is the result of."""
    name: str = ""


class ToolChoice(NamedTuple):
    """`required` with names allows only those."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()
    is_parallel: bool = True
    """More than one call in an answer is welcome."""


ANY_TOOL = ToolChoice()


FormKind = Literal["text", "json", "schema", "regex", "choice", "grammar"]


class OutputForm(NamedTuple):
    """What the content must be. `value` is the schema, the expression, the choices or the grammar."""

    kind: FormKind = "text"
    value: Any = None
    param: str = "response_format"
    """How its dialect calls the form, for errors."""
    is_lenient: bool = False
    """Of a schema: keywords that an answer cannot be held to are passed over."""


TEXT = OutputForm()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A prompt that the model's template writes."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ANY_TOOL
    variables: Mapping[str, Any] = field(default_factory=dict)
    """What the template is given beside messages and tools. It refuses names that are not a client's to set."""
    adds_generation_prompt: bool = True
    continues_final: bool = False
    """The answer goes on where the last message ends."""
    earlier: tuple[int, ...] = ()
    """Tokens that stand before all of it: a conversation that the client kept as tokens."""
    begun: tuple[int, ...] = ()
    """Tokens that the answer begins with, as they are: no text that would be made into others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Prompts as they are: a text, token ids, or several of one kind."""

    given: str | Sequence[Any]
    adds_special: bool = True


def reasoning_variables(effort: str) -> dict[str, Any]:
    """What templates read of an effort: some its name, others only whether there is any."""
    return {"reasoning_effort": effort, "enable_thinking": effort != "none"}


class CachePin(NamedTuple):
    """Keep the prompt's first messages in the prefix cache. 0 messages mean what stands before the first: the tools."""

    num_messages: int
    ttl_s: float


class CacheHints(NamedTuple):
    salt: str = ""
    """Requests share cached prefixes only under equal salts."""
    key: str = ""
    """Requests with one key begin alike: send them to one replica."""
    pins: tuple[CachePin, ...] = ()


NO_HINTS = CacheHints()


class Beams(NamedTuple):
    """A beam search in place of drawing: the n best of so many beams are told."""

    width: int
    length_penalty: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How tokens are drawn and when to end, as far as the client said."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[str, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    seed: int | None = None
    n: int | None = None
    best_of: int | None = None
    """So many are drawn, and the n likeliest told."""
    beams: "Beams | None" = None
    bad_words: tuple[str, ...] = ()
    max_tokens: int | None = None
    min_tokens: int | None = None
    stops: tuple[str, ...] = ()
    stop_token_ids: Sequence[int] | None = None
    includes_stop: bool = False
    ignores_eos: bool = False
    skips_special: bool = True
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One call's request. `param` is how its dialect calls the prompt, for errors."""

    prompt: Chat | Texts
    sampling: SamplingOptions = SamplingOptions()
    output: OutputForm = TEXT
    cache: CacheHints = NO_HINTS
    priority: int = 0
    is_flex: bool = False
    """It waits for every request that is not, as those of batches do."""
    deadline_ms: float | None = None
    kept_prompt_tokens: int | None = None
    """Only the last tokens of a longer prompt are kept."""
    prediction: str = ""
    """What the answer is expected to be."""
    speculate: int | None = None
    """Drafts to check in each step; 0 for none."""
    max_reasoning_tokens: int | None = None
    """The reasoning is made to end after so many."""
    is_budget_advice: bool = False
    """A model whose reasoning cannot be made to end answers all the same."""
    param: str = "messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """How the answer is to be sent."""

    is_stream: bool = False
    reports_progress: bool = False
    """Say how far a call that waits has come, as events of its own."""
    reports_timings: bool = False
    keep_alive_s: float | None = None
    """How long the model stays loaded after the answer, below 0 for ever; None leaves that as it is."""
    is_unload: bool = False
    """Nothing is asked but that the model be unloaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks: what is known of a request beside its body."""

    tenant: str = ""
    deadline_ms: float | None = None
    request_id: str = ""
    priority: int = 0
    """A router's tier, which counts beside what the request says of itself."""
    peer: str = ""
    """Another replica that has blocks of the prompt, or computes them."""
    most: TokenBound | None = None
    """Tokens that a gateway set money aside for."""
    account: str = ""
    """Under which it is billed where its tokens are made after the answer; empty where nobody pays."""
    is_batch: bool = False
    """A batch request: it is answered whenever no interactive request needs the engine."""
