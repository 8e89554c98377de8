"""What clients may send, as types: the one place where a field's name, kind and bounds are written.

The same types check bodies, fill the OpenAPI document and generate the tests of bad input. Fields may be null wherever they
may be left out. Fields listed in `REFUSED` are known but not served: they are refused by name. Others are ignored, and
listed in the answer's `x-penstock-ignored` header.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

MAX_TOKEN_ID = 2**31 - 1
MAX_ITEMS = 2048
DEFAULT_TOKENS = 16
"""Of a completion that asks for no number."""

Count = Annotated[int, Meta(ge=1, le=2**31)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
TokenIds = Annotated[list[TokenId], Meta(max_length=2_000_000)]
Name = Annotated[str, Meta(max_length=512)]
Stop = str | Annotated[list[str], Meta(max_length=16)]
Choices = Annotated[list[str], Meta(min_length=1, max_length=10_000)]
Prompt = str | Annotated[list[str | TokenId | list[TokenId]], Meta(max_length=2_000_000)]


class StreamOptions(Struct):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    include_progress: bool | None = None
    """Send queue position and prompt progress as events of their own."""


class Sampling(Struct, kw_only=True):
    """Fields that all kinds of generation share."""

    model: Name | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31)] | None = None
    min_p: Fraction | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0.0, le=100.0)] | None = None
    logit_bias: (
        Annotated[
            dict[Annotated[str, Meta(max_length=12)], Annotated[float, Meta(ge=-100.0, le=100.0)]],
            Meta(max_length=1024),
        ]
        | None
    ) = None
    allowed_token_ids: Annotated[list[TokenId], Meta(max_length=4096)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=128)] | None = None
    """Draw so many answers and tell the n likeliest."""
    use_beam_search: bool | None = None
    beam_width: Annotated[int, Meta(ge=1, le=64)] | None = None
    """Beams that a search keeps; told are the n best of them (default: n)."""
    length_penalty: Annotated[float, Meta(ge=-10.0, le=10.0)] | None = None
    """Of a beam search: above 1 favours longer answers."""
    bad_words: Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=256)] | None = None
    """Words that are never written, as the tokenizer writes them with and without a space before."""
    max_tokens: Count | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    stop: Stop | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=1024)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    """Add the ids of the answer's tokens, those in logprobs included, and where drafts were checked, which of them came
    from there."""
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None
    deadline_ms: Annotated[float, Meta(gt=0.0, le=86_400_000.0)] | None = None
    """How long the answer is wanted; the header `x-request-timeout-ms` says the same."""
    cache_salt: Name | None = None
    truncate_prompt_tokens: Count | None = None
    """Keep only the last tokens of a longer prompt."""
    user: Name | None = None
    speculate: Annotated[int, Meta(ge=0, le=64)] | None = None
    """Drafts to check in each step; 0 for none. The answer is the same, the time it takes is not."""
    response_format: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    structured_outputs: dict[str, Any] | None = None
    grammar: str | None = None
    """A grammar in Lark's syntax, or in llama.cpp's."""
    json_schema: dict[str, Any] | None = None
    return_timings: bool | None = None
    """Add the request's times to its usage."""


class ContentPart(Struct, kw_only=True):
    """One part of a message's content."""

    type: Name
    text: str | None = None
    refusal: str | None = None


class Message(Struct, kw_only=True):
    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[ContentPart], Meta(max_length=MAX_ITEMS)] | None = None
    name: Name | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: Name | None = None
    function_call: dict[str, Any] | None = None
    """A call, as clients that send `functions` write it."""
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None


class Prediction(Struct, kw_only=True):
    """What the answer is expected to be."""

    type: Literal["content"]
    content: str | Annotated[list[ContentPart], Meta(max_length=MAX_ITEMS)]


class ChatBody(Sampling, kw_only=True):
    """A chat completion."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=10_000)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=64)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    continue_token_ids: Annotated[list[TokenId], Meta(max_length=131_072)] | None = None
    """The answer begins with exactly these tokens and goes on from there."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    prediction: Prediction | None = None
    max_reasoning_tokens: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    """The reasoning is made to end after so many."""
    tools: Annotated[list[dict[str, Any]], Meta(max_length=1024)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    functions: Annotated[list[dict[str, Any]], Meta(max_length=1024)] | None = None
    """Tools as older clients describe them; the answer words its one call likewise."""
    function_call: str | dict[str, Any] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    modalities: list[Name] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: Name | None = None
    prompt_cache_retention: Name | None = None
    prompt_cache_options: dict[str, Any] | None = None
    safety_identifier: Name | None = None

    @property
    def max_answer(self) -> int | None:
        """Tokens a choice may have; None is until the model ends."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CompletionBody(Sampling, kw_only=True):
    """A text completion."""

    prompt: Prompt
    max_tokens: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    """0 only with echo: the prompt is judged and nothing is generated."""
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None

    @property
    def max_answer(self) -> int | None:
        return DEFAULT_TOKENS if self.max_tokens is None else self.max_tokens


class EmbeddingBody(Struct, kw_only=True):
    model: Name | None = None
    input: Prompt
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=65536)] | None = None
    user: Name | None = None


class RerankBody(Struct, kw_only=True):
    model: Name | None = None
    query: str
    documents: Annotated[list[str | dict[str, Any]], Meta(min_length=1, max_length=MAX_ITEMS)]
    top_n: Annotated[int, Meta(ge=1, le=MAX_ITEMS)] | None = None
    return_documents: bool | None = None


class TokenizeBody(Struct, kw_only=True):
    """Either a prompt or messages."""

    model: Name | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1, max_length=10_000)] | None = None
    add_special_tokens: bool | None = None
    parse_special: bool | None = None
    """Read text that spells a special token as that token (default: yes; the text of messages never is)"""
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Struct, kw_only=True):
    model: Name | None = None
    tokens: TokenIds
    skip_special_tokens: bool | None = None


REFUSED = {
    "audio": "ask for text",
    "moderation": "check texts elsewhere",
    "web_search_options": "put what the model should know into the messages",
    "prompt_embeds": "send text or token ids",
    "chat_template": "the model's own template is used",
    "documents": "put them into the messages",
    "lora": "name it as the model, with a scale as helper*0.5, several as helper*0.5+other",
}
"""Known fields that no body here has, with the way out."""
