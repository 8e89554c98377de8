"""From a body of Ollama's API to a generation."""

import math

import msgspec

from penstock.runtime.text.tools.grammar import Tool
from penstock.service.server.calls.generation import (
    TEXT,
    CacheHints,
    CachePin,
    Chat,
    ChatMessage,
    Generation,
    OutputForm,
    SamplingOptions,
    Texts,
    ToolCall,
)
from penstock.service.server.http.faults import OLLAMA_NAMES, checked_name, invalid, unsupported
from penstock.service.server.ollama.protocol import (
    CallOfTool,
    FunctionOfTool,
    GenerateBody,
    OllamaChatBody,
    OllamaMessage,
    OllamaSampling,
    Options,
)
from penstock.service.server.pool.config import duration_s

DEFAULTS = Options()
LONGEST_PIN_S = 86_400.0
"""Prefixes of a model that is kept for ever."""


def chat_generation(body: OllamaChatBody) -> Generation:
    messages = tuple(_message(message, number) for number, message in enumerate(body.messages or ()))
    is_prefill = bool(messages) and messages[-1].role == "assistant" and not messages[-1].tool_calls
    tools = tuple(_tool(tool.function, number) for number, tool in enumerate(body.tools or ()))
    chat = Chat(
        messages=messages,
        tools=tools,
        variables=_variables(body),
        adds_generation_prompt=not is_prefill,
        continues_final=is_prefill,
    )
    return _generation(body, chat, len(messages), "messages")


def prompt_generation(body: GenerateBody, context: tuple[int, ...] = ()) -> Generation:
    """`raw` takes the prompt as it is; otherwise the model's template writes it, as a question after what `context` holds."""
    if body.images:
        raise unsupported("images", "send text")
    if body.template:
        raise unsupported("template", "the model's own is used; send raw: true and the whole text")
    if body.raw:
        return _generation(body, Texts(given=body.prompt or ""), 0, "prompt")
    messages = [ChatMessage(role="user", content=body.prompt or "")]
    if body.system:
        messages.insert(0, ChatMessage(role="system", content=body.system))
    chat = Chat(messages=tuple(messages), variables=_variables(body), earlier=context)
    return _generation(body, chat, len(messages), "prompt")


def _generation(body: OllamaSampling, prompt: Chat | Texts, num_messages: int, param: str) -> Generation:
    options = body.options or DEFAULTS
    stops = () if options.stop is None else (options.stop,) if isinstance(options.stop, str) else tuple(options.stop)
    ttl_s = keep_alive_s(body.keep_alive)
    if ttl_s is not None and ttl_s < 0.0:
        ttl_s = LONGEST_PIN_S
    pins = (CachePin(num_messages, ttl_s),) if ttl_s and num_messages else ()
    return Generation(
        prompt=prompt,
        sampling=SamplingOptions(
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p or None,
            min_p=options.min_p,
            presence_penalty=options.presence_penalty,
            frequency_penalty=options.frequency_penalty,
            repetition_penalty=options.repeat_penalty,
            seed=options.seed,
            max_tokens=body.max_answer,
            stops=stops,
            num_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        ),
        output=_output(body),
        cache=CacheHints(pins=pins),
        param=param,
    )


def keep_alive_s(given: str | float | int | None) -> float | None:
    """Seconds of a duration as Go writes it (`10m`, `1h30m`) or a number of seconds; below 0 means for ever."""
    if given is None:
        return None
    seconds = duration_s(given) if isinstance(given, str) else float(given)
    if seconds is None or not math.isfinite(seconds):
        raise invalid('keep_alive must be a duration such as "10m", or a number of seconds', "keep_alive")
    return seconds


def _message(message: OllamaMessage, number: int) -> ChatMessage:
    if message.images:
        raise unsupported(f"messages[{number}].images", "send text")
    calls = tuple(
        _call(call, f"messages[{number}].tool_calls[{place}]") for place, call in enumerate(message.tool_calls or ())
    )
    return ChatMessage(
        role=message.role,
        content=None if message.content is None and calls else message.content or "",
        reasoning=message.thinking or "",
        tool_calls=calls,
        tool_call_id=message.tool_call_id or "",
        name=message.tool_name or "",
    )


def _tool(function: FunctionOfTool, number: int) -> Tool:
    name = checked_name(function.name, OLLAMA_NAMES, f"tools[{number}].function.name")
    return Tool(name, function.description or "", function.parameters or {"type": "object"})


def _call(call: CallOfTool, where: str) -> ToolCall:
    name = checked_name(call.function.name, OLLAMA_NAMES, f"{where}.function.name")
    return ToolCall(call.id or "", name, msgspec.json.encode(call.function.arguments).decode())


def _variables(body: OllamaSampling) -> dict[str, object]:
    if body.think is None:
        return {}
    if isinstance(body.think, str):
        return {"enable_thinking": True, "reasoning_effort": body.think}
    return {"enable_thinking": body.think}


def _output(body: OllamaSampling) -> OutputForm:
    if body.format is None or body.format == "":
        return TEXT
    if body.format == "json":
        return OutputForm("json", None, "format")
    if isinstance(body.format, str):
        raise invalid('format must be "json" or a JSON schema', "format")
    return OutputForm("schema", body.format, "format")
