"""From OpenAI's bodies of chats and completions to a generation."""

import re
from dataclasses import replace
from typing import Any, Protocol

from penstock.service.server.generation import (
    Beams,
    CacheHints,
    CachePin,
    Chat,
    ChatMessage,
    Delivery,
    Generation,
    SamplingOptions,
    Texts,
    ToolCall,
    reasoning_variables,
)
from penstock.service.server.http.faults import OPENAI_NAMES, checked_name, invalid, unsupported
from penstock.service.server.openai.forms import output_form
from penstock.service.server.openai.protocol import (
    ChatBody,
    CompletionBody,
    ContentPart,
    Message,
    Sampling,
    TokenizeBody,
)
from penstock.service.server.openai.tools import tools_and_choice

TIER_PRIORITY = {"priority": 1, "fast": 1}
WORDS = {"text": "text", "input_text": "text", "refusal": "refusal"}
"""Where a part of each type has its words."""
RESULTS = {"tool": "tool_call_id", "function": "name"}
"""Roles of messages that carry a call's result, and the field that names the call."""
RETENTION_S = {"in_memory": None, "in-memory": None, "24h": 24 * 3600.0}
"""How long the prompt is kept on purpose; None for as long as there is room."""
_TTL = re.compile(r"([1-9][0-9]{0,5})(s|m|h)")
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
MAX_STOPS = 4
"""Values that OpenAI takes."""


def check_strictly(body: Sampling) -> None:
    """Refuse what OpenAI refuses although it could be served."""
    if isinstance(body.stop, list) and len(body.stop) > MAX_STOPS:
        raise invalid(f"stop has {len(body.stop)} texts; send at most {MAX_STOPS}", "stop")
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options needs stream: true; send it or leave the options out", "stream_options")


def chat_generation(body: ChatBody) -> Generation:
    _refuse_what_is_not_served(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    if body.continue_final_message and body.add_generation_prompt:
        raise invalid("set continue_final_message or add_generation_prompt, not both", "continue_final_message")
    variables = {} if body.reasoning_effort is None else reasoning_variables(body.reasoning_effort)
    variables |= body.chat_template_kwargs or {}
    tools, choice = tools_and_choice(body)
    chat = Chat(
        messages=messages_of(body.messages),
        tools=tools,
        tool_choice=choice,
        variables=variables,
        adds_generation_prompt=body.add_generation_prompt is not False,
        continues_final=bool(body.continue_final_message),
        begun=tuple(body.continue_token_ids or ()),
    )
    tier = TIER_PRIORITY.get(body.service_tier or "", 0)
    return Generation(
        prompt=chat,
        sampling=sampling_options(
            body,
            max_tokens=body.max_answer,
            num_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        ),
        output=output_form(body),
        max_reasoning_tokens=body.max_reasoning_tokens,
        cache=cache_hints(body, len(chat.messages), body.cache_salt or ""),
        priority=tier if body.priority is None else body.priority,
        is_flex=body.service_tier == "flex",
        deadline_ms=body.deadline_ms,
        kept_prompt_tokens=body.truncate_prompt_tokens,
        prediction=prediction_of(body),
        speculate=body.speculate,
        param="messages",
    )


def text_generation(body: CompletionBody) -> Generation:
    if body.suffix:
        raise unsupported("suffix", "put the whole text into the prompt")
    max_tokens = body.max_answer
    if not max_tokens and not body.echo:
        raise invalid("max_tokens is 0, which asks for nothing without echo; raise it", "max_tokens")
    num_prompt_logprobs = body.prompt_logprobs
    if body.echo and body.logprobs is not None:
        num_prompt_logprobs = max(body.logprobs, num_prompt_logprobs or 0)
    sampling = sampling_options(
        body, max_tokens=max_tokens or 1, num_logprobs=body.logprobs, num_prompt_logprobs=num_prompt_logprobs
    )
    return Generation(
        prompt=Texts(given=body.prompt, adds_special=body.add_special_tokens is not False),
        sampling=sampling,
        output=output_form(body),
        cache=CacheHints(salt=body.cache_salt or ""),
        priority=body.priority or 0,
        deadline_ms=body.deadline_ms,
        kept_prompt_tokens=body.truncate_prompt_tokens,
        speculate=body.speculate,
        param="prompt",
    )


def tokenize_chat(body: TokenizeBody) -> Chat:
    return Chat(
        messages=messages_of(body.messages or []), adds_generation_prompt=body.add_generation_prompt is not False
    )


def delivery_of(body: Sampling) -> Delivery:
    return Delivery(
        is_stream=bool(body.stream),
        reports_progress=bool(body.stream_options and body.stream_options.include_progress),
        reports_timings=bool(body.return_timings),
    )


def sampling_options(
    body: Sampling, *, max_tokens: int | None, num_logprobs: int | None, num_prompt_logprobs: int | None = None
) -> SamplingOptions:
    stops = () if body.stop is None else (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    return SamplingOptions(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias=body.logit_bias,
        allowed_token_ids=body.allowed_token_ids,
        seed=body.seed,
        n=body.n,
        best_of=best_of(body),
        beams=_beams(body),
        bad_words=tuple(body.bad_words or ()),
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        stops=stops,
        stop_token_ids=body.stop_token_ids,
        includes_stop=bool(body.include_stop_str_in_output),
        ignores_eos=bool(body.ignore_eos),
        skips_special=body.skip_special_tokens is not False,
        num_logprobs=num_logprobs,
        num_prompt_logprobs=num_prompt_logprobs,
    )


def best_of(body: Sampling) -> int | None:
    """More than are told; None where there is nothing to choose. For a beam search it is another word for its width."""
    if body.best_of is not None and body.best_of < (body.n or 1):
        raise invalid(f"best_of is {body.best_of}, fewer than n; raise it", "best_of")
    return None if body.use_beam_search or body.best_of == (body.n or 1) else body.best_of


def _beams(body: Sampling) -> Beams | None:
    if not body.use_beam_search:
        if body.beam_width is not None or body.length_penalty is not None:
            name = "length_penalty" if body.beam_width is None else "beam_width"
            raise invalid(f"{name} needs use_beam_search: true", name)
        return None
    width = body.beam_width or body.best_of or body.n or 1
    if width < (body.n or 1):
        raise invalid(f"beam_width is {width}, fewer than n; raise it", "beam_width")
    return Beams(width, 1.0 if body.length_penalty is None else body.length_penalty)


def prediction_of(body: ChatBody) -> str:
    content = "" if body.prediction is None else body.prediction.content
    if isinstance(content, list):
        content = "".join(_words(part, "prediction.content", place) for place, part in enumerate(content))
    return content


def messages_of(messages: list[Message]) -> tuple[ChatMessage, ...]:
    read: list[ChatMessage] = []
    called: dict[str, str] = {}
    """Calls so far: the id of each, and the last one of every function, which is all that a function's message tells."""
    for number, given in enumerate(messages):
        message = _message(given, number)
        called.update({call.call_id: call.call_id for call in message.tool_calls})
        if given.function_call is not None:
            called[_function_key(message.tool_calls[-1].name)] = message.tool_calls[-1].call_id
        if message.role in RESULTS:
            call_id = called.get(_function_key(message.name) if message.role == "function" else message.tool_call_id)
            if call_id is None:
                raise invalid(
                    f"messages[{number}] answers a call that no message before it makes; put the call before its answer",
                    f"messages[{number}].{RESULTS[message.role]}",
                )
            message = replace(message, role="tool", tool_call_id=call_id)
        read.append(message)
    return tuple(read)


def _function_key(name: str) -> str:
    return f"functions.{name}"


def _message(message: Message, number: int) -> ChatMessage:
    """Parts that are not text are refused: nothing of them would reach the model."""
    where = f"messages[{number}].content"
    content = message.content
    if isinstance(content, list):
        content = "".join(_words(part, where, place) for place, part in enumerate(content))
    if content is None and message.role != "assistant":
        raise invalid(f"messages[{number}] has no content; send some text", where)
    calls = tuple(
        _tool_call(call, f"messages[{number}].tool_calls[{place}].function")
        for place, call in enumerate(message.tool_calls or ())
    )
    if message.function_call is not None:
        described = {"id": f"call_{number}", "function": message.function_call}
        calls += (_tool_call(described, f"messages[{number}].function_call"),)
    return ChatMessage(
        role="system" if message.role == "developer" else message.role,
        content=content,
        reasoning=message.reasoning_content or message.reasoning or "",
        tool_calls=calls,
        tool_call_id=message.tool_call_id or "",
        name=message.name or "",
    )


def _words(part: ContentPart, where: str, place: int) -> str:
    name = WORDS.get(part.type)
    if name is None:
        raise unsupported(f"{where} of type {part.type[:40]}", "send text")
    words: str | None = getattr(part, name)
    if words is None:
        raise invalid(f"{where}[{place}] of type {part.type} has no {name}; send it", f"{where}[{place}].{name}")
    return words


def _tool_call(call: dict[str, Any], where: str) -> ToolCall:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise invalid(f"{where} names no function; send its name", where)
    checked_name(function["name"], OPENAI_NAMES, f"{where}.name")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        raise invalid(f"{where}: arguments must be a JSON text", where)
    return ToolCall(str(call.get("id") or ""), function["name"], arguments)


def _refuse_what_is_not_served(body: ChatBody) -> None:
    if body.modalities not in (None, [], ["text"]):
        raise unsupported("modalities", 'ask for ["text"]')
    if body.verbosity not in (None, "medium"):
        raise unsupported("verbosity", "ask for the length in the messages")
    if body.store:
        raise unsupported("store", "answers are not kept; send false")


class CachingFields(Protocol):
    prompt_cache_key: str | None
    prompt_cache_retention: str | None
    prompt_cache_options: dict[str, Any] | None


def cache_hints(body: CachingFields, num_messages: int, salt: str = "") -> CacheHints:
    """A key that says which requests begin alike, and how long a prompt is kept."""
    ttl_s = None
    if body.prompt_cache_retention is not None:
        if body.prompt_cache_retention not in RETENTION_S:
            raise invalid("prompt_cache_retention must be in_memory or 24h", "prompt_cache_retention")
        ttl_s = RETENTION_S[body.prompt_cache_retention]
    ttl = (body.prompt_cache_options or {}).get("ttl")
    if ttl is not None:
        found = _TTL.fullmatch(ttl) if isinstance(ttl, str) else None
        if found is None:
            raise invalid('prompt_cache_options.ttl must be a duration such as "30m"', "prompt_cache_options.ttl")
        ttl_s = int(found.group(1)) * _UNIT_S[found.group(2)]
    pins = () if ttl_s is None else (CachePin(num_messages, ttl_s),)
    return CacheHints(salt=salt, key=body.prompt_cache_key or "", pins=pins)
