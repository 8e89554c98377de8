"""From a checked body to what the engine is asked: prompts as tokens, sampling parameters, deadlines."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from starlette.requests import Request

from penstock.core.request import SamplingParams
from penstock.server.front import Front
from penstock.server.http.call import Wishes
from penstock.server.http.faults import invalid, unsupported
from penstock.server.openai.protocol import MAX_ITEMS, ChatBody, Message, Part, Sampling, TokenizeBody
from penstock.text.stream.stop import StopSet
from penstock.text.stream.stream import TextRules
from penstock.text.tokenizer.tokenizer import Tokenizer

INLINE_CHARACTERS = 16_384
"""Longer texts are tokenized on another thread, so that nobody waits for them."""
DEADLINE_HEADER = "x-request-timeout-ms"


class Prompt(NamedTuple):
    text: str
    token_ids: tuple[int, ...]


async def encode(tokenizer: Tokenizer, text: str, *, special: bool) -> tuple[int, ...]:
    if len(text) <= INLINE_CHARACTERS:
        return tuple(tokenizer.encode(text, special=special))
    return tuple(await asyncio.to_thread(tokenizer.encode, text, special=special))


async def prompt_of_messages(front: Front, body: ChatBody | TokenizeBody) -> Prompt:
    """The chat as the model's template writes it, and its tokens."""
    template = front.text.template
    if template is None:
        raise invalid("this model has no chat template; use /v1/completions", "messages", "unsupported_model")
    messages = [_plain(message, number) for number, message in enumerate(body.messages or ())]
    options: dict[str, Any] = {"now": datetime.now(), "add_generation_prompt": body.add_generation_prompt is not False}
    if isinstance(body, ChatBody):
        options |= _template_options(body)
    size = sum(len(message.get("content") or "") for message in messages)
    if size <= INLINE_CHARACTERS:
        text = template.render(messages, **options)
    else:
        text = await asyncio.to_thread(template.render, messages, **options)
    token_ids = await encode(front.tokenizer, text, special=False)
    return Prompt(text, truncated(token_ids, body.truncate_prompt_tokens) if isinstance(body, ChatBody) else token_ids)


async def prompts_of(
    front: Front, given: Any, param: str, *, special: bool = True, max_items: int = MAX_ITEMS
) -> list[tuple[int, ...]]:
    """One or many prompts, as texts or as token ids."""
    if isinstance(given, str) or (given and all(isinstance(item, int) for item in given)):
        given = [given]
    if not given:
        raise invalid(f"{param} is empty; send a text or token ids", param)
    if len(given) > max_items:
        raise invalid(f"{param} has {len(given):,} items; send at most {max_items:,}", param)
    if len({type(item) for item in given}) > 1 or isinstance(given[0], int):
        raise invalid(f"{param} mixes texts and token ids; send one kind", param)
    prompts = []
    for item in given:
        if isinstance(item, str):
            prompts.append(await encode(front.tokenizer, item, special=special))
        else:
            _check_ids(item, front.vocab_size, param)
            prompts.append(tuple(item))
    if not all(prompts):
        raise invalid(f"{param} holds an empty prompt; send at least one token", param)
    return prompts


def wishes_of(
    front: Front,
    request: Request,
    body: Sampling,
    *,
    prompt_text: str = "",
    num_logprobs: int | None = None,
    num_prompt_logprobs: int | None = None,
    continues: bool = False,
) -> Wishes:
    tokenizer, style = front.tokenizer, front.text.style
    stops = () if body.stop is None else (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    ends = () if body.ignore_eos else tokenizer.eos_ids
    params = SamplingParams(
        temperature=_or(body.temperature, 1.0),
        top_k=max(_or(body.top_k, 0), 0),
        top_p=_or(body.top_p, 1.0),
        min_p=_or(body.min_p, 0.0),
        presence_penalty=_or(body.presence_penalty, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        repetition_penalty=_or(body.repetition_penalty, 1.0),
        logit_bias=_logit_bias(body.logit_bias, front.vocab_size),
        allowed_token_ids=_token_set(body.allowed_token_ids, front.vocab_size, "allowed_token_ids"),
        seed=secrets.randbits(63) if body.seed is None else body.seed,
        max_tokens=body.max_tokens,
        min_tokens=_or(body.min_tokens, 0),
        stop=stops,
        stop_token_ids=tuple(
            {*ends, *_token_set(body.stop_token_ids, front.vocab_size, "stop_token_ids")},
        ),
        logprobs=num_logprobs,
        prompt_logprobs=num_prompt_logprobs,
        n=_or(body.n, 1),
    )
    rules = TextRules(
        stops=StopSet(stops),
        include_stop=bool(body.include_stop_str_in_output),
        min_tokens=params.min_tokens,
        style=None if continues else style,
        is_open=not continues and style is not None and style.is_open(prompt_text),
        skip_special=body.skip_special_tokens is not False,
        at_start=not continues,
    )
    tenant = request.scope.get("penstock.tenant", "")
    return Wishes(
        params=params,
        rules=rules,
        priority=_or(body.priority, 0),
        deadline_s=_deadline_s(request, body.deadline_ms),
        tenant=tenant,
        salt=f"{tenant}/{body.cache_salt or ''}",
    )


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _plain(message: Message, number: int) -> dict[str, Any]:
    """A message as templates read it. Parts that are not text are refused: nothing of them would reach the model."""
    content = message.content
    if isinstance(content, list):
        content = "".join(_words(part, f"messages[{number}].content", place) for place, part in enumerate(content))
    plain: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role, "content": content}
    reasoning = message.reasoning_content or message.reasoning
    if reasoning:
        plain["reasoning_content"] = reasoning
    for name in ("name", "tool_calls", "tool_call_id"):
        value = getattr(message, name)
        if value is not None:
            plain[name] = value
    if content is None and message.role != "assistant":
        raise invalid(f"messages[{number}] has no content; send some text", f"messages[{number}].content")
    return plain


WORDS = {"text": "text", "input_text": "text", "refusal": "refusal"}
"""Where a part of each type has its words."""


def _words(part: Part, content: str, place: int) -> str:
    name = WORDS.get(part.type)
    if name is None:
        raise unsupported(f"{content} of type {part.type[:40]}", "send text")
    words: str | None = getattr(part, name)
    if words is None:
        raise invalid(f"{content}[{place}] of type {part.type} has no {name}; send it", f"{content}[{place}].{name}")
    return words


def _template_options(body: ChatBody) -> dict[str, Any]:
    """What the template is told beside the messages. It refuses names that are not a client's to set."""
    variables = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        variables["reasoning_effort"] = body.reasoning_effort
    options: dict[str, Any] = {"variables": variables}
    if body.continue_final_message:
        if body.add_generation_prompt:
            raise invalid("set continue_final_message or add_generation_prompt, not both", "continue_final_message")
        options |= {"add_generation_prompt": False, "continue_final_message": True}
    return options


def truncated(token_ids: tuple[int, ...], kept: int | None) -> tuple[int, ...]:
    return token_ids if kept is None else token_ids[-kept:]


def _logit_bias(given: dict[str, float] | None, vocab_size: int) -> tuple[tuple[int, float], ...]:
    pairs = []
    for key, bias in (given or {}).items():
        if not key.isdecimal() or not key.isascii() or int(key) >= vocab_size:
            raise invalid(f"logit_bias has the key {key!r}; keys are token ids below {vocab_size}", "logit_bias")
        pairs.append((int(key), bias))
    return tuple(pairs)


def _token_set(given: Sequence[int] | None, vocab_size: int, param: str) -> tuple[int, ...]:
    _check_ids(given or (), vocab_size, param)
    return tuple(given or ())


def _check_ids(token_ids: Sequence[int], vocab_size: int, param: str) -> None:
    if token_ids and max(token_ids) >= vocab_size:
        raise invalid(f"{param} has the token id {max(token_ids)}; ids are below {vocab_size}", param)


def _deadline_s(request: Request, deadline_ms: float | None) -> float | None:
    header = request.headers.get(DEADLINE_HEADER)
    if header is not None:
        try:
            told = float(header)
        except ValueError:
            told = -1.0
        if not 0.0 < told <= 86_400_000.0:
            raise invalid(f"{DEADLINE_HEADER} must be a number of milliseconds above 0, at most a day", DEADLINE_HEADER)
        deadline_ms = told if deadline_ms is None else min(told, deadline_ms)
    return None if deadline_ms is None else time.monotonic() + deadline_ms / 1000
