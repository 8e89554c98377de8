"""What clients of Ollama's API may send, as types: field names, kinds and bounds.

Options that shape how a model is loaded (`num_gpu`, `num_thread`, ...) are the operator's here: they are accepted and change
nothing. Unknown options likewise, since every version of Ollama has others.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from penstock.service.server.openai.protocol import MAX_ITEMS, Fraction, Name, Penalty, TokenIds

Whole = Annotated[int, Meta(ge=-(2**31), le=2**31)]
KeepAlive = str | float | int


class Options(Struct, kw_only=True):
    num_ctx: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    num_predict: Whole | None = None
    """At most so many tokens; below 0 until the model ends."""
    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] | None = None
    top_k: Whole | None = None
    top_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    min_p: Fraction | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | Annotated[list[str], Meta(max_length=64)] | None = None
    repeat_penalty: Annotated[float, Meta(gt=0.0, le=100.0)] | None = None
    repeat_last_n: Whole | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None


class CalledFunction(Struct, kw_only=True):
    name: Name
    arguments: dict[str, Any] = field(default_factory=dict)


class CallOfTool(Struct, kw_only=True):
    function: CalledFunction
    id: Name | None = None


class OllamaMessage(Struct, kw_only=True):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: Annotated[list[CallOfTool], Meta(max_length=MAX_ITEMS)] | None = None
    tool_name: Name | None = None
    tool_call_id: Name | None = None


class FunctionOfTool(Struct, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class OllamaTool(Struct, kw_only=True):
    function: FunctionOfTool
    type: Name | None = None


class OllamaSampling(Struct, kw_only=True):
    """Fields that chat and generate share. Answers are streamed unless `stream` is false."""

    model: Name
    stream: bool | None = None
    options: Options | None = None
    format: str | dict[str, Any] | None = None
    think: bool | Literal["low", "medium", "high"] | None = None
    keep_alive: KeepAlive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    include_progress: bool | None = None
    """Ours: say how far a call that waits has come, in lines of their own."""

    @property
    def max_answer(self) -> int | None:
        """Tokens the answer may have; None is until the model ends."""
        asked = self.options.num_predict if self.options is not None else None
        return asked if asked is not None and asked > 0 else None


class OllamaChatBody(OllamaSampling, kw_only=True):
    """A chat. Without messages the model is loaded, or with `keep_alive` 0 unloaded."""

    messages: Annotated[list[OllamaMessage], Meta(max_length=10_000)] | None = None
    tools: Annotated[list[OllamaTool], Meta(max_length=1024)] | None = None
    truncate: bool | None = None
    shift: bool | None = None

    @property
    def asks(self) -> bool:
        return bool(self.messages)


class GenerateBody(OllamaSampling, kw_only=True):
    """A prompt to be answered, or with `raw` continued."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    raw: bool | None = None
    context: TokenIds | None = None
    images: list[Any] | None = None
    truncate: bool | None = None
    shift: bool | None = None

    @property
    def asks(self) -> bool:
        return bool(self.prompt or self.suffix)


class EmbedBody(Struct, kw_only=True):
    model: Name
    input: str | Annotated[list[str], Meta(max_length=MAX_ITEMS)]
    truncate: bool | None = None
    dimensions: Annotated[int, Meta(ge=1, le=65536)] | None = None
    options: Options | None = None
    keep_alive: KeepAlive | None = None


class LegacyEmbedBody(Struct, kw_only=True):
    model: Name
    prompt: str
    options: Options | None = None
    keep_alive: KeepAlive | None = None


class NameBody(Struct, kw_only=True):
    """A model by its name; old clients say `name`."""

    model: Name | None = None
    name: Name | None = None
    verbose: bool | None = None
    stream: bool | None = None
    insecure: bool | None = None
    options: Options | None = None


REFUSED = {"width": "ask for text", "height": "ask for text", "steps": "ask for text"}
