"""What clients of the Responses API may send, as types: field names, kinds and bounds."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from penstock.service.server.openai.protocol import MAX_ITEMS, Count, Name

Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
Item = dict[str, Any]
"""An input or output item as the client sent it; `items` reads it."""
Items = Annotated[list[Item], Meta(max_length=10_000)]


class TextFormat(Struct, kw_only=True):
    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextConfig(Struct, kw_only=True):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningConfig(Struct, kw_only=True):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Name | None = None
    context: Name | None = None


class FunctionTool(Struct, kw_only=True):
    """A function the model may call; tools of other types would be run by the server, and are refused."""

    type: Name
    name: Annotated[str, Meta(max_length=128)] | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseStreamOptions(Struct, kw_only=True):
    include_obfuscation: bool | None = None
    include_progress: bool | None = None


class ConversationParam(Struct, kw_only=True):
    id: Name


class InputBody(Struct, kw_only=True):
    """What makes up the prompt."""

    model: Name | None = None
    input: str | Items | None = None
    instructions: str | None = None
    previous_response_id: Name | None = None
    conversation: str | ConversationParam | None = None
    reasoning: ReasoningConfig | None = None
    text: TextConfig | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=1024)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None

    @property
    def conversation_id(self) -> str:
        """Empty where it names none."""
        named = self.conversation
        return named.id if isinstance(named, ConversationParam) else named or ""


class ResponseBody(InputBody, kw_only=True):
    """A response to be made."""

    background: bool | None = None
    include: Annotated[list[Name], Meta(max_length=64)] | None = None
    max_output_tokens: Count | None = None
    max_tool_calls: Count | None = None
    metadata: Metadata | None = None
    prompt_cache_key: Name | None = None
    prompt_cache_retention: Name | None = None
    prompt_cache_options: dict[str, Any] | None = None
    safety_identifier: Name | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    user: Name | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    """Ours: the same draws every time."""

    @property
    def max_answer(self) -> int | None:
        """Tokens the answer may have; None is until the model ends."""
        return self.max_output_tokens


class ConversationBody(Struct, kw_only=True):
    items: Annotated[list[Item], Meta(max_length=20)] | None = None
    metadata: Metadata | None = None


class ConversationItemsBody(Struct, kw_only=True):
    items: Annotated[list[Item], Meta(min_length=1, max_length=MAX_ITEMS)]


REFUSED = {
    "prompt": "write the instructions out",
    "moderation": "check texts elsewhere",
    "context_management": "shorten the input on your side",
}
"""Known fields that are not served, with the way out."""
