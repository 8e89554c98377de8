"""From a generation to a call of one model: prompts as tokens, sampling parameters, text rules, deadline.

Everything that can be wrong with a request is found here, before the first byte of an answer. Knows no dialect.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from penstock.errors import RequestError
from penstock.runtime.core.request import SamplingParams
from penstock.runtime.text.stream.stop import StopSet
from penstock.runtime.text.stream.stream import TextRules
from penstock.runtime.text.template.shape import object_in
from penstock.runtime.text.template.shield import PromptTokens, tokenize_chat
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer
from penstock.runtime.text.tools.words import calls_as_text, described, knows_calls
from penstock.service import marks
from penstock.service.edge.memory import trim_memory
from penstock.service.marks import TokenBound
from penstock.service.server.forms import answer_form
from penstock.service.server.generation import (
    CacheHints,
    Caller,
    Chat,
    ChatMessage,
    Generation,
    SamplingOptions,
    Tool,
)
from penstock.service.server.http.body import MAX_CHARACTERS_PER_TOKEN
from penstock.service.server.http.call import Call, CallParameters
from penstock.service.server.http.faults import ApiError, ErrorKind, Overflow, invalid
from penstock.service.server.http.large import TENANT, Turns, stand_back
from penstock.service.server.http.relay import peer_of, priority_of
from penstock.service.server.sampling import beam_search, check_ids, sampling_params
from penstock.service.server.served import ServedModel

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
FEW_CHOICES = 8


async def prepare(model: ServedModel, caller: Caller, generation: Generation) -> Call:
    """The call, checked against the model's limits."""
    model.check_generates()
    prompt, sampling = generation.prompt, generation.sampling
    if isinstance(prompt, Chat):
        rendered = await prompt_of_chat(model, prompt)
        prompts, text, continues = [rendered.token_ids], rendered.text, False
        is_begun = bool(prompt.begun)
        pins = await _pins(model, caller.tenant, prompt, rendered, generation.cache)
    else:
        _check_choices(prompt.given, sampling.best_of or sampling.n or 1)
        prompts = await prompts_of(model, prompt.given, generation.param, special=prompt.adds_special)
        text, continues, is_begun, pins = "", True, True, ()
    if generation.kept_prompt_tokens is not None:
        prompts = [token_ids[-generation.kept_prompt_tokens :] for token_ids in prompts]
    rules = _text_rules(model, sampling, text, continues=continues, is_begun=is_begun)
    form = await answer_form(model.text, generation, is_open=rules.is_open)
    bounded = within(caller.most, prompts, sampling_params(model, sampling))
    parameters = CallParameters(
        sampling=replace(bounded, grammar=form.grammar),
        rules=rules._replace(make_parser=form.make_parser, markers=form.markers),
        priority=priority_of(generation.priority),
        deadline_s=_deadline_s(caller.deadline_ms, generation.deadline_ms),
        tenant=caller.tenant,
        adapter=model.adapter,
        salt=_salt(caller.tenant, generation.cache),
        session=generation.cache.key,
        pins=pins,
        is_batch=caller.is_batch or generation.is_flex,
        prediction=await encode(model.tokenizer, generation.prediction, special=False) if generation.prediction else (),
        speculate=generation.speculate,
        peer=peer_of(),
    )
    if not caller.is_batch and len(prompts) * parameters.sampling.n > FEW_CHOICES:
        model.admission.reserve(prompts, parameters.sampling, caller.tenant)  # before so many are made ready in vain
    if sampling.beams is None:
        call = Call(model.client, model.tokenizer, prompts, parameters)
    else:
        call = beam_search(model, prompts, parameters, sampling.beams)
    _check(call, model, generation.param)
    if not caller.is_batch:
        model.admission.reserve(prompts, parameters.sampling, caller.tenant)
    return call


def within(most: TokenBound | None, prompts: Sequence[Sequence[int]], sampling: SamplingParams) -> SamplingParams:
    """Money was set aside for so many tokens: an answer without a bound of its own gets that one, and a request that may take
    more is refused with what it may take.
    """
    if most is None:
        return sampling
    num_choices = max(len(prompts) * sampling.n, 1)
    share = most.num_output // num_choices
    wanted = max(sampling.min_tokens, 1) if sampling.max_tokens is None else sampling.max_tokens
    check_bound(most, sum(map(len, prompts)), wanted * num_choices)
    return sampling if sampling.max_tokens is not None else replace(sampling, max_tokens=share)


def check_bound(most: TokenBound | None, num_prompt: int, num_output: int = 0) -> None:
    if most is not None and (num_prompt > most.num_prompt or num_output > most.num_output):
        needs = b"%d %d" % (num_prompt, max(num_output, most.num_output))
        raise ApiError(
            ErrorKind.CONFLICT,
            f"the request may take {num_prompt:,} tokens of prompt and {num_output:,} of answer, more than money was set "
            "aside for; ask for less",
            code="bound_exceeded",
            headers=((marks.MOST_HEADER, needs),),
        )


def _check_choices(given: Any, num_choices: int) -> None:
    """Before any of the prompts is made tokens."""
    num_prompts = len(given) if isinstance(given, list) and given and not isinstance(given[0], int) else 1
    if num_prompts * num_choices > MAX_CHOICES:
        raise invalid(f"prompts times n is more than {MAX_CHOICES}; send several calls", "n")


def _salt(tenant: str, hints: CacheHints) -> str:
    return f"{tenant}/{hints.salt}"


async def _pins(
    model: ServedModel, tenant: str, chat: Chat, prompt: PromptTokens, hints: CacheHints
) -> tuple[tuple[int, float], ...]:
    """What of the prompt is kept in the prefix cache, and how long: as asked, as far as there is room."""
    if not hints.pins or chat.earlier:
        return ()
    wanted = tuple([(await _num_tokens_of(model, chat, prompt, pin.num_messages), pin.ttl_s) for pin in hints.pins])
    facts = model.facts
    return model.pins.grant(
        tenant,
        _salt(tenant, hints),
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


def _check(call: Call, model: ServedModel, param: str) -> None:
    try:
        call.check()
    except RequestError as error:
        if error.code != "context_length_exceeded":
            raise invalid(str(error), error.param, error.code) from None
        longest = max(map(len, call.prompts))
        overflow = Overflow(longest, call.parameters.sampling.max_tokens or 1, model.facts.max_context)
        raise invalid(str(error), param, error.code, overflow=overflow) from None


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
    template = model.text.template
    if template is None:
        raise invalid("this model has no chat template; use /v1/completions", "messages", "unsupported_model")
    messages = [template_message(message) for message in chat.messages]
    options: dict[str, Any] = {
        "now": datetime.now(),
        "add_generation_prompt": chat.adds_generation_prompt and not chat.continues_final,
        "continue_final_message": chat.continues_final,
        "variables": dict(chat.variables),
    }
    tools = [template_tool(tool) for tool in chat.tools if chat.tool_choice.mode != "none"]
    if tools and model.text.knows_tools:
        options["tools"] = tools
    elif tools:
        messages = described(messages, tools)
    if not knows_calls(template.tool_source if tools else template.source):
        messages = calls_as_text(messages)
    texts = [content for message in messages if isinstance(content := message.get("content"), str)]
    size = sum(map(len, texts))
    check_size(model, ["".join(texts)] if size > INLINE_CHARACTERS else (), "messages")
    rendering = partial(tokenize_chat, template, model.tokenizer, messages, **options)
    rendered = rendering() if size <= INLINE_CHARACTERS else await off_loop(rendering)
    if chat.begun:
        check_ids(chat.begun, model.vocab_size, "continue_token_ids")
        begun = model.tokenizer.decode(chat.begun, skip_special=False)
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


def template_tool(tool: Tool) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": dict(tool.parameters or {"type": "object"}),
        },
    }


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
            check_ids(item, model.vocab_size, param)
        prompts = [tuple(item) for item in given]
    if not all(prompts):
        raise invalid(f"{param} holds an empty prompt; send at least one token", param)
    return prompts


def _text_rules(
    model: ServedModel, asked: SamplingOptions, prompt_text: str, *, continues: bool, is_begun: bool
) -> TextRules:
    """`is_begun`: some of the text is there already, so that a space before its first word is the model's own."""
    style = None if continues else model.text.style
    return TextRules(
        stops=StopSet(asked.stops),
        include_stop=asked.includes_stop,
        min_tokens=asked.min_tokens or 0,
        style=style,
        is_open=style is not None and style.is_open(prompt_text),
        skip_special=asked.skips_special,
        at_start=not is_begun,
    )


def _deadline_s(*deadlines_ms: float | None) -> float | None:
    """The earlier of those that were named."""
    named = [deadline_ms for deadline_ms in deadlines_ms if deadline_ms is not None]
    return time.monotonic() + min(named) / 1000 if named else None
