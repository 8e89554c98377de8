"""What clients of Anthropic's Messages API may send, as types: field names, kinds and bounds.

Fields that ask for what we do not have (containers, server tools) are refused by name; others that are unknown are ignored
and named in the answer's `x-penstock-ignored` header.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from penstock.service.server.openai.protocol import MAX_ITEMS, Fraction, Name


class CacheControl(Struct, kw_only=True):
    type: Literal["ephemeral"] = "ephemeral"
    ttl: Literal["5m", "1h"] | None = None


class BlockSource(Struct, kw_only=True):
    """Where a document or image comes from."""

    type: Name
    data: str | None = None
    media_type: Name | None = None
    url: str | None = None
    content: Any = None


class Block(Struct, kw_only=True):
    """One block of a message's content; which fields count is the type's business."""

    type: Name
    text: str | None = None
    id: Name | None = None
    name: Name | None = None
    input: dict[str, Any] | None = None
    tool_use_id: Name | None = None
    content: "str | Annotated[list[Block], Meta(max_length=MAX_ITEMS)] | None" = None
    is_error: bool | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    source: BlockSource | None = None
    title: str | None = None
    context: str | None = None
    citations: Any = None
    cache_control: CacheControl | None = None


Blocks = Annotated[list[Block], Meta(max_length=MAX_ITEMS)]


class MessageTurn(Struct, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: str | Blocks


class ToolParam(Struct, kw_only=True):
    """A function the model may call; tools that the server would run itself have other types and are refused."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    type: Name | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None
    input_examples: list[Any] | None = None
    eager_input_streaming: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[Any] | None = None


class ToolChoiceParam(Struct, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct, kw_only=True):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Meta(ge=1024, le=2**31)] | None = None
    display: Name | None = None


class OutputFormat(Struct, kw_only=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct, kw_only=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None
    task_budget: Any = None


class Diagnostics(Struct, kw_only=True):
    """Asked for, the answer says why the prefix cache had no more of the prompt."""

    previous_message_id: Name | None = None


class CountBody(Struct, kw_only=True):
    """Messages whose tokens are to be counted."""

    messages: Annotated[list[MessageTurn], Meta(min_length=1, max_length=100_000)]
    model: Name
    system: str | Blocks | None = None
    tools: Annotated[list[ToolParam], Meta(max_length=1024)] | None = None
    tool_choice: ToolChoiceParam | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None


class MessagesBody(CountBody, kw_only=True):
    """A message to be answered."""

    max_tokens: Annotated[int, Meta(ge=0, le=2**31)]
    """0 fills the prefix cache and generates nothing."""
    temperature: Fraction | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    stop_sequences: Annotated[list[str], Meta(max_length=1024)] | None = None
    stream: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    speed: Literal["standard", "fast"] | None = None
    inference_geo: Name | None = None
    workspace_id: Name | None = None
    diagnostics: Diagnostics | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    """Ours: the same draws every time."""
    include_progress: bool | None = None
    """Ours: say how far a call that waits has come, in events of their own."""

    @property
    def max_answer(self) -> int | None:
        """Tokens the answer may have: one at least is drawn."""
        return self.max_tokens or 1


REFUSED = {
    "container": "run code on your side",
    "mcp_servers": "call them on your side and send tool results",
    "context_management": "shorten the messages on your side",
}
"""Known fields that are not served, with the way out."""
