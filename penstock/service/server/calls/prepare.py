"""From a generation to a call of one model: prompts as tokens, sampling parameters, text rules, deadline.

Everything that can be wrong with a request is found here, before the first byte of an answer. Knows no dialect.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from penstock.errors import RequestError
from penstock.runtime.core.request import MAX_TOKEN_LIST, Grammar, Request, SamplingParams
from penstock.runtime.text.stream.stop import StopSet
from penstock.runtime.text.stream.stream import TextRules
from penstock.runtime.text.template.shape import object_in
from penstock.runtime.text.template.shield import PromptTokens, tokenize_chat
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer
from penstock.service.edge.memory import trim_memory
from penstock.service.server.calls.best import BestCall, beam_search
from penstock.service.server.calls.call import Call
from penstock.service.server.calls.forms import answer_form
from penstock.service.server.calls.generation import (
    CachePin,
    Caller,
    Chat,
    ChatMessage,
    Generation,
    SamplingOptions,
)
from penstock.service.server.calls.usage import within
from penstock.service.server.http.body import MAX_CHARACTERS_PER_TOKEN
from penstock.service.server.http.exchange import random_seed
from penstock.service.server.http.faults import Overflow, invalid
from penstock.service.server.http.large import TENANT, Turns, stand_back
from penstock.service.server.served import ServedModel
from penstock.service.server.text import SamplingDefaults

R = TypeVar("R")

PROBE = "\x02"
"""A message that no chat has: where prompts with it part is where its place begins."""
INLINE_CHARACTERS = 16_384
"""Longer texts are tokenized on another thread, so that nobody waits for them."""
NUM_THREADS = 2
LONG_TEXTS = ThreadPoolExecutor(NUM_THREADS, "text", initializer=stand_back)
LONG_TURNS = Turns(NUM_THREADS)
SLICE_CHARACTERS = 1 << 18
"""Of many texts, so many are tokenized together: what a tokenizer makes of them on its way is many times larger."""
MAX_ITEMS = 2048
MAX_CHOICES = 1024
"""Choices of one call, over all its prompts."""
MAX_ID_DIGITS = 12
"""Of a token id; Python itself refuses to read thousands of digits."""
CHOSEN = (*SamplingDefaults._fields, "presence_penalty", "frequency_penalty", "min_tokens")
"""What a client may choose, and a model's makers or we choose otherwise."""


async def prepare(model: ServedModel, caller: Caller, generation: Generation) -> Call:
    """The call, checked against the model's limits."""
    facts, text = model.facts, model.text
    if not facts.can_generate:
        raise invalid("this model makes vectors and generates no text", "model", "unsupported_model")
    prompt, asked, hints = generation.prompt, generation.sampling, generation.cache
    salt = f"{caller.tenant}/{hints.salt}"
    if isinstance(prompt, Chat):
        rendered = await prompt_of_chat(model, prompt)
        prompts, written, continues = [rendered.token_ids], rendered.text, False
        is_begun = bool(prompt.begun)
        pins = await _pins(model, caller.tenant, salt, prompt, rendered, hints.pins) if hints.pins else ()
    else:
        _check_choices(prompt.given, asked.best_of or asked.n or 1)
        prompts = await prompts_of(model, prompt.given, generation.param, special=prompt.adds_special)
        written, continues, is_begun, pins = "", True, True, ()
    if generation.kept_prompt_tokens is not None:
        prompts = [token_ids[-generation.kept_prompt_tokens :] for token_ids in prompts]
    style = None if continues else text.style
    is_open = style is not None and style.is_open(written)
    form = await answer_form(text, generation, is_open=is_open)
    sampling = sampling_params(model, asked, form.grammar)
    if caller.most is not None:
        sampling = within(caller.most, prompts, sampling)
    guess = await encode(text.tokenizer, generation.prediction, special=False) if generation.prediction else ()
    deadlines_ms = [each for each in (caller.deadline_ms, generation.deadline_ms) if each is not None]
    now = time.monotonic()
    ask = partial(
        Request,
        params=sampling,
        arrival_s=now,
        priority=generation.priority + caller.priority,
        deadline_s=now + min(deadlines_ms) / 1000 if deadlines_ms else None,
        tenant=caller.tenant,
        adapter=model.adapter,
        salt=salt,
        session=hints.key,
        pins=pins,
        is_batch=caller.is_batch or generation.is_flex,
        prediction=guess,
        speculate=generation.speculate,
        peer=caller.peer,
    )
    requests = [ask(request_id=model.client.next_id(), prompt=token_ids) for token_ids in prompts]
    _check(requests, model, generation.param)
    if not caller.is_batch:
        model.admission.reserve(prompts, sampling, caller.tenant)
    rules = TextRules(
        stops=StopSet(asked.stops) if asked.stops else None,
        include_stop=asked.includes_stop,
        min_tokens=asked.min_tokens or 0,
        style=style,
        is_open=is_open,
        skip_special=asked.skips_special,
        at_start=not is_begun,
        make_parser=form.make_parser,
        markers=form.markers,
    )
    if asked.beams is not None:
        return beam_search(model, requests, rules, asked.beams)
    if asked.best_of is not None:
        shows_logprobs = asked.num_logprobs is not None
        return BestCall(model.client, text.tokenizer, requests, rules, asked.n or 1, shows_logprobs=shows_logprobs)
    return Call(model.client, text.tokenizer, requests, rules)


def _check_choices(given: Any, num_choices: int) -> None:
    """Before any of the prompts is made tokens."""
    num_prompts = len(given) if isinstance(given, list) and given and not isinstance(given[0], int) else 1
    if num_prompts * num_choices > MAX_CHOICES:
        raise invalid(f"prompts times n is more than {MAX_CHOICES}; send several calls", "n")


async def _pins(
    model: ServedModel, tenant: str, salt: str, chat: Chat, prompt: PromptTokens, pins: Sequence[CachePin]
) -> tuple[tuple[int, float], ...]:
    """What of the prompt is kept in the prefix cache, and how long: as asked, as far as there is room."""
    if chat.earlier:
        return ()
    wanted = tuple([(await _num_tokens_of(model, chat, prompt, pin.num_messages), pin.ttl_s) for pin in pins])
    facts = model.facts
    return model.pins.grant(
        tenant,
        salt,
        prompt.token_ids,
        wanted,
        num_blocks=facts.num_blocks,
        block_size=facts.block_size,
        now=time.monotonic(),
    )


async def _num_tokens_of(model: ServedModel, chat: Chat, prompt: PromptTokens, num_messages: int) -> int:
    """How many tokens the chat's first messages are: as far as another chat that begins with them has the same prompt."""
    if num_messages >= len(chat.messages):
        return len(prompt.token_ids)
    probe = ChatMessage(role="user", content=PROBE)
    other = replace(
        chat,
        messages=(*chat.messages[:num_messages], probe),
        adds_generation_prompt=False,
        continues_final=False,
        begun=(),
    )
    num_shared = _num_alike(prompt.text, (await prompt_of_chat(model, other)).text)
    token_ids = await encode(model.tokenizer, prompt.text[:num_shared], special=False)
    return _num_alike(token_ids, prompt.token_ids)


def _num_alike(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How far two begin alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _check(requests: Sequence[Request], model: ServedModel, param: str) -> None:
    """Raise the error of a client whose request could never be served."""
    try:
        for request in requests:
            model.client.check(request)
    except RequestError as error:
        if error.code != "context_length_exceeded":
            raise invalid(str(error), error.param, error.code) from None
        longest = max(len(request.prompt) for request in requests)
        overflow = Overflow(longest, requests[0].params.max_tokens or 1, model.facts.max_context)
        raise invalid(str(error), param, error.code, overflow=overflow) from None


# How tokens are drawn


def sampling_params(model: ServedModel, asked: SamplingOptions, grammar: Grammar | None) -> SamplingParams:
    """What the client left open is as the model's makers would have it; ids are checked against the vocabulary."""
    asked_for = {name: value for name in CHOSEN if (value := getattr(asked, name)) is not None}
    vocab_size, text = model.facts.vocab_size, model.text
    chosen = text.defaults._asdict() | asked_for
    chosen["top_k"] = max(chosen["top_k"], 0)  # clients send -1 for all
    check_ids(asked.stop_token_ids or (), vocab_size, "stop_token_ids")
    check_ids(asked.allowed_token_ids or (), vocab_size, "allowed_token_ids")
    ends = () if asked.ignores_eos else text.tokenizer.eos_ids
    seed = random_seed() if asked.seed is None else asked.seed
    return SamplingParams(
        **chosen,
        logit_bias=_logit_bias(asked.logit_bias, vocab_size) if asked.logit_bias else (),
        allowed_token_ids=tuple(asked.allowed_token_ids or ()),
        seed=seed if model.watermark is None else model.watermark.seed(seed),
        max_tokens=asked.max_tokens,
        stop=asked.stops,
        stop_token_ids=tuple({*ends, *(asked.stop_token_ids or ())}),
        logprobs=0 if asked.best_of and asked.num_logprobs is None else asked.num_logprobs,
        prompt_logprobs=asked.num_prompt_logprobs,
        banned_sequences=text.tokenizer.spellings(asked.bad_words),
        n=asked.best_of or asked.n or 1,
        grammar=grammar,
    )


def _logit_bias(given: Mapping[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    if len(given) > MAX_TOKEN_LIST:
        raise invalid(f"logit_bias has more than {MAX_TOKEN_LIST:,} entries; send fewer", "logit_bias")
    for key in given:
        if not key.isdecimal() or not key.isascii() or len(key) > MAX_ID_DIGITS or int(key) >= vocab_size:
            raise invalid(
                f"logit_bias has the key {key[:40]!r}; keys are token ids, 0 to {vocab_size - 1:,}", "logit_bias"
            )
    return tuple((int(key), bias) for key, bias in given.items())


def check_ids(token_ids: Sequence[int], vocab_size: int, param: str) -> None:
    if token_ids and max(token_ids) >= vocab_size:
        raise invalid(f"{param} has the token id {max(token_ids)}; ids are below {vocab_size}", param)


# Prompts


async def encode(tokenizer: Tokenizer, text: str, *, special: bool, parse_special: bool = True) -> tuple[int, ...]:
    encoding = partial(tokenizer.encode, text, special=special, parse_special=parse_special)
    return tuple(encoding() if len(text) <= INLINE_CHARACTERS else await off_loop(encoding))


async def encode_all(tokenizer: Tokenizer, texts: Sequence[str], *, special: bool) -> list[tuple[int, ...]]:
    """Slice by slice, so that others get their turn between two."""

    def encoding(part: Sequence[str]) -> list[tuple[int, ...]]:
        return [tuple(token_ids) for token_ids in tokenizer.encode_batch(part, special=special)]

    if sum(map(len, texts)) <= INLINE_CHARACTERS:
        return encoding(texts)
    prompts: list[tuple[int, ...]] = []
    while len(prompts) < len(texts):
        start = end = len(prompts)
        size = 0
        while end < len(texts) and (end == start or size + len(texts[end]) <= SLICE_CHARACTERS):
            size += len(texts[end])
            end += 1
        prompts += await off_loop(partial(encoding, texts[start:end]))
    return prompts


async def off_loop(work: Callable[[], R]) -> R:
    """Long work on texts: on a thread, few at a time and tenants in turn, so that neither the event loop nor memory is theirs
    alone."""
    loop = asyncio.get_running_loop()
    async with LONG_TURNS.take(TENANT.get()):
        try:
            return await loop.run_in_executor(LONG_TEXTS, work)
        finally:
            loop.run_in_executor(LONG_TEXTS, trim_memory)


def check_size(model: ServedModel, texts: Iterable[str], param: str) -> None:
    """Refuse texts that are longer than any context, before any work is done on them."""
    max_context = model.facts.max_context
    max_characters = max_context * MAX_CHARACTERS_PER_TOKEN
    for text in texts:
        least = 0 if len(text) > max_characters else model.tokenizer.at_least(text)
        if least > max_context or len(text) > max_characters:
            message = (
                f"This model's maximum context length is {max_context:,} tokens. However, {param} has a text of "
                f"{len(text):,} characters, at least {max(least, max_context + 1):,} tokens; shorten it"
            )
            overflow = Overflow(max(least, max_context + 1), 0, max_context)
            raise invalid(message, param, "context_length_exceeded", overflow=overflow)


async def prompt_of_chat(model: ServedModel, chat: Chat) -> PromptTokens:
    """The chat as the model's template writes it, and its tokens."""
    text = model.text
    template = text.template
    if template is None:
        raise invalid("this model has no chat template; use /v1/completions", "messages", "unsupported_model")
    tools = chat.tools if chat.tool_choice.mode != "none" else ()
    texts = [message.content for message in chat.messages if message.content]
    size = sum(map(len, texts))
    if size > INLINE_CHARACTERS:
        check_size(model, ["".join(texts)], "messages")
    rendering = partial(
        tokenize_chat,
        template,
        text.tokenizer,
        [*map(template_message, chat.messages)],
        tools=[tool.described for tool in tools] or None,
        now=datetime.now(),
        add_generation_prompt=chat.adds_generation_prompt and not chat.continues_final,
        continue_final_message=chat.continues_final,
        variables=chat.variables,
    )
    rendered = rendering() if size <= INLINE_CHARACTERS else await off_loop(rendering)
    if chat.begun:
        check_ids(chat.begun, model.facts.vocab_size, "continue_token_ids")
        begun = text.tokenizer.decode(chat.begun, skip_special=False)
        rendered = rendered._replace(token_ids=(*rendered.token_ids, *chat.begun), text=rendered.text + begun)
    return rendered._replace(token_ids=(*chat.earlier, *rendered.token_ids)) if chat.earlier else rendered


def template_message(message: ChatMessage) -> dict[str, Any]:
    """A message as templates read it."""
    content = message.content if message.tool_calls else message.content or ""
    plain: dict[str, Any] = {"role": message.role, "content": content}
    if message.reasoning:
        plain["reasoning_content"] = message.reasoning
    if message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": object_in(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        plain["tool_call_id"] = message.tool_call_id
    if message.name:
        plain["name"] = message.name
    return plain


async def prompts_of(
    model: ServedModel, given: Any, param: str, *, special: bool = True, max_items: int = MAX_ITEMS
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
    if isinstance(given[0], str):
        check_size(model, given, param)
        prompts = await encode_all(model.tokenizer, given, special=special)
    else:
        for item in given:
            check_ids(item, model.facts.vocab_size, param)
        prompts = [tuple(item) for item in given]
    if not all(prompts):
        raise invalid(f"{param} holds an empty prompt; send at least one token", param)
    return prompts
