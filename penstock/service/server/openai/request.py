"""From OpenAI's bodies to a generation."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from penstock.runtime.text.tools.grammar import Tool
from penstock.service.server.calls.generation import (
    TEXT,
    Beams,
    CacheHints,
    CachePin,
    Chat,
    ChatMessage,
    FormKind,
    Generation,
    OutputForm,
    SamplingOptions,
    ToolCall,
    ToolChoice,
    reasoning_variables,
)
from penstock.service.server.http.faults import OPENAI_NAMES, checked_name, invalid, unsupported
from penstock.service.server.openai.protocol import ChatBody, ContentPart, Message, Sampling

TIER_PRIORITY = {"priority": 1, "fast": 1}
WORDS = {"text": "text", "input_text": "text", "refusal": "refusal"}
"""Where a part of each type has its words."""
RESULTS = {"tool": "tool_call_id", "function": "name"}
"""Roles of messages that carry a call's result, and the field that names the call."""
RETENTION_S = {"in_memory": None, "in-memory": None, "24h": 24 * 3600.0}
"""How long the prompt is kept on purpose; None for as long as there is room."""
_TTL = re.compile(r"([1-9][0-9]{0,5})(s|m|h)")
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
FORMS: dict[str, FormKind] = {
    "guided_json": "schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "grammar": "grammar",
    "json_schema": "schema",
}
"""Fields that hold one."""
STRUCTURED: dict[str, FormKind] = {
    "json": "schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
    "json_object": "json",
}
"""Keys of vLLM's `structured_outputs`."""
PASSED_OVER = ("disable_fallback", "disable_any_whitespace", "whitespace_pattern", "backend", "_backend")
"""How another engine does it, not what the answer is."""
SAME = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("logit_bias", "allowed_token_ids", "seed", "n", "min_tokens", "stop_token_ids"),
)
"""Fields that a generation has under the same names."""
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
        prediction="" if body.prediction is None else _text(body.prediction.content, "prediction.content"),
        speculate=body.speculate,
        param="messages",
    )


def sampling_options(
    body: Sampling, *, max_tokens: int | None, num_logprobs: int | None, num_prompt_logprobs: int | None = None
) -> SamplingOptions:
    stops = () if body.stop is None else (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    return SamplingOptions(
        **{name: getattr(body, name) for name in SAME},
        best_of=_best_of(body),
        beams=_beams(body),
        bad_words=tuple(body.bad_words or ()),
        max_tokens=max_tokens,
        stops=stops,
        includes_stop=bool(body.include_stop_str_in_output),
        ignores_eos=bool(body.ignore_eos),
        skips_special=body.skip_special_tokens is not False,
        num_logprobs=num_logprobs,
        num_prompt_logprobs=num_prompt_logprobs,
    )


def _best_of(body: Sampling) -> int | None:
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
    content = None if message.content is None else _text(message.content, where)
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


def _text(content: str | list[ContentPart], where: str) -> str:
    if isinstance(content, str):
        return content
    return "".join(_words(part, where, place) for place, part in enumerate(content))


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


# The form of an answer, also in the words of vLLM and llama.cpp


def output_form(body: Sampling) -> OutputForm:
    """The one form that a body asks for; plain text if it asks for none."""
    asked = [(name, kind, getattr(body, name)) for name, kind in FORMS.items()]
    for name, value in (body.structured_outputs or {}).items():
        if name in STRUCTURED:
            asked.append((f"structured_outputs.{name}", STRUCTURED[name], None if value is False else value))
        elif value is not None and name not in PASSED_OVER:
            raise invalid(f"structured_outputs.{name[:40]} is not supported; leave it out", "structured_outputs")
    found = [OutputForm(kind, value, name) for name, kind, value in asked if value is not None]
    if body.response_format is not None and (form := response_form(body.response_format)) is not TEXT:
        found.insert(0, form)
    if len(found) > 1:
        names = " and ".join(form.param for form in found)
        raise invalid(f"{names} ask for different forms of one answer; send one", found[1].param)
    return found[0] if found else TEXT


def response_form(given: dict[str, Any]) -> OutputForm:
    kind = given.get("type", "text")
    if kind == "text":
        return TEXT
    if kind == "json_object":
        # llama.cpp's servers take a schema here.
        schema = given.get("schema")
        return OutputForm("json") if schema is None else OutputForm("schema", schema)
    if kind == "json_schema":
        match given.get("json_schema"):
            case {"schema": dict(schema), **described}:
                return OutputForm("schema", schema, is_lenient=described.get("strict") is False)
        raise invalid("response_format.json_schema.schema must be a JSON schema", "response_format")
    raise invalid("response_format.type must be text, json_object or json_schema", "response_format")


# Tools, as bodies describe them today and, as `functions`, before


def tools_and_choice(body: ChatBody) -> tuple[tuple[Tool, ...], ToolChoice]:
    """What may be called, and what of it must be."""
    if body.functions is None:
        if body.function_call is not None:
            raise invalid("function_call needs functions; send them, or tools with tool_choice", "function_call")
        return tools_of(body.tools), tool_choice_of(body.tool_choice, body.parallel_tool_calls)
    if body.tools is not None or body.tool_choice is not None:
        raise invalid("functions and tools are two ways of one thing; send tools", "functions")
    tools = tuple(_function(each, f"functions[{number}]") for number, each in enumerate(body.functions))
    choice = _function_choice(body.function_call)
    if not {tool.name for tool in tools}.issuperset(choice.names):
        raise invalid(
            f"function_call names {choice.names[0][:64]!r}, which is not among the functions", "function_call"
        )
    return tools, choice


def _function_choice(choice: str | dict[str, Any] | None) -> ToolChoice:
    """`auto`, `none` or one function by its name; never more than one call."""
    if choice in (None, "auto", "none"):
        return ToolChoice(choice or "auto", (), is_parallel=False)  # type: ignore[arg-type]
    if isinstance(choice, dict) and isinstance(choice.get("name"), str):
        return ToolChoice("required", (choice["name"],), is_parallel=False)
    raise invalid("function_call must be auto, none, or a function by its name", "function_call")


def tools_of(given: Sequence[dict[str, Any]] | None) -> tuple[Tool, ...]:
    return tuple(_tool(tool, f"tools[{number}]") for number, tool in enumerate(given or ()))


def tool_choice_of(choice: str | dict[str, Any] | None, is_parallel: bool | None) -> ToolChoice:
    """`auto`, `none`, `required`, one function by its name, or those that are allowed."""
    parallel = is_parallel is not False
    if choice in (None, "auto", "none", "required"):
        return ToolChoice(choice or "auto", (), parallel)  # type: ignore[arg-type]
    match choice:
        case {"type": "function", "function": {"name": str(name)}}:
            return ToolChoice("required", (name,), parallel)
        case {"type": "allowed_tools", **given}:
            allowed: Any = given.get("allowed_tools", given)
            names = tuple(map(_allowed_name, allowed.get("tools") or ())) if isinstance(allowed, dict) else ()
            if names and (mode := allowed.get("mode", "auto")) in ("auto", "required"):
                return ToolChoice(mode, names, parallel)
    raise invalid("tool_choice must be auto, none, required, a function by its name, or allowed_tools", "tool_choice")


def _allowed_name(tool: Any) -> str:
    match tool:
        case {"function": {"name": str(name)}} | {"name": str(name)}:
            return name
    raise invalid("tool_choice allows a tool without a name; name it", "tool_choice")


def _tool(tool: dict[str, Any], where: str) -> Tool:
    if tool.get("type", "function") != "function":
        raise unsupported(f"{where} of type {str(tool.get('type'))[:40]}", "describe it as a function")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise invalid(f"{where}.function is missing; send it", f"{where}.function", "missing_required_parameter")
    return _function(function, f"{where}.function")


def _function(function: dict[str, Any], where: str) -> Tool:
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not name:
        raise invalid(f"{where}.name is missing; send it", f"{where}.name")
    checked_name(name, OPENAI_NAMES, f"{where}.name")
    if parameters is not None and not isinstance(parameters, dict):
        raise invalid(f"{where}.parameters must be a JSON schema", f"{where}.parameters")
    return Tool(name, str(function.get("description") or ""), parameters, bool(function.get("strict")))
