"""The form an answer must have: what a generation asks for as a grammar of the model's words, checked before the first byte.

Compiling for a check happens on another thread and needs no engine; the engine compiles the same source for its vocabulary.
"""

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from penstock.errors import RequestError
from penstock.runtime.core.request import Grammar
from penstock.runtime.text.grammar.closing import closed_text
from penstock.runtime.text.grammar.compose import can_be_ended
from penstock.runtime.text.stream.reasoning import ReasoningStyle
from penstock.runtime.text.stream.segments import MakeContentParser
from penstock.runtime.text.tools.grammar import Tool
from penstock.service.server.calls.generation import ANY_TOOL, Chat, Generation, OutputForm, ToolChoice
from penstock.service.server.http.faults import busy, invalid, unsupported
from penstock.service.server.text import Text

CHECK_S = 5.0
"""Limits on what a grammar may be keep a check far below this; it bounds the wait for a thread."""
CHECKS = ThreadPoolExecutor(1, thread_name_prefix="grammar")
"""One at a time: a client that sends many hard ones takes no more than that from others."""
GBNF_SIGN = "::="
"""Grammars come in two syntaxes; rules of this one are written with it."""


def source_of(form: OutputForm) -> Grammar | None:
    """The grammar a form stands for; none for plain text."""
    value: Any = form.value
    match form.kind:
        case "text":
            return None
        case "json":
            return Grammar("json_object", "")
        case "schema":
            kind = "json_schema_lenient" if form.is_lenient else "json_schema"
            return Grammar(kind, closed_text(value if isinstance(value, str) else _dumped(value, form.param)))
        case "regex":
            return Grammar("regex", str(value))
        case "choice":
            return Grammar("choice", _dumped(value, form.param))
        case "grammar":
            return Grammar("gbnf" if GBNF_SIGN in str(value) else "lark", str(value))


class AnswerForm(NamedTuple):
    """What an answer is held to, and how calls are found in it."""

    grammar: Grammar | None = None
    make_parser: MakeContentParser | None = None
    markers: tuple[str, ...] = ()
    """Special tokens that the parser has to see."""


async def answer_form(text: Text, generation: Generation, *, is_open: bool) -> AnswerForm:
    """The form that a generation asks for, checked. A grammar begins where reasoning has ended."""
    chat = generation.prompt if isinstance(generation.prompt, Chat) else None
    style = None if chat is None else text.style
    budget = _budget(text, generation, style)
    content = source_of(generation.output)
    if content is not None:
        await check(text, content, generation.output.param)
    tools = () if chat is None or chat.tool_choice.mode == "none" else chat.tools
    if chat is not None and not tools and chat.tool_choice.mode == "required":
        raise invalid("tool_choice asks for a call but there are no tools; send some", "tool_choice")
    if content is None and not tools and budget is None:
        return AnswerForm()
    choice = ANY_TOOL if chat is None else chat.tool_choice
    try:
        pair = text.speech.held(
            None if content is None else (content.kind, content.source),
            _allowed(tools, choice),
            style,
            is_required=choice.mode == "required",
            is_parallel=choice.is_parallel,
            is_open=is_open,
            max_thoughts=budget,
        )
    except RequestError as error:
        raise invalid(str(error), error.param or generation.output.param, error.code) from None
    grammar = None if pair is None else Grammar(*pair)
    if grammar is not None and grammar != content:
        await check(text, grammar, "tools" if tools else generation.output.param)
    if not tools:
        return AnswerForm(grammar)
    return AnswerForm(grammar, text.speech.parser(tools), text.speech.visible)


def _budget(text: Text, generation: Generation, style: ReasoningStyle | None) -> int | None:
    """After how many tokens reasoning is made to end. Advice that cannot be followed is passed over."""
    budget = generation.max_reasoning_tokens
    if budget is None or (style is not None and can_be_ended(style, text.speech.markers)):
        return budget
    if generation.is_budget_advice:
        return None
    if style is None:
        raise unsupported("max_reasoning_tokens", "this model does not reason, so leave it out")
    raise unsupported(
        "max_reasoning_tokens", "this model ends its reasoning with words and cannot be made to; leave it out"
    )


def _allowed(tools: Sequence[Tool], choice: ToolChoice) -> Sequence[Tool]:
    """The tools that an answer may call."""
    known = {tool.name: tool for tool in tools}
    if len(known) < len(tools):
        raise RequestError("two tools have the same name; give each its own", param="tools")
    unknown = [name for name in choice.names if tools and name not in known]
    if unknown:
        raise RequestError(f"tool_choice names {unknown[0][:64]!r}, which is not among the tools", param="tool_choice")
    return [known[name] for name in choice.names if tools] or tools


async def check(text: Text, grammar: Grammar, param: str) -> None:
    """Raise if the grammar cannot be used, naming what is wrong with it."""
    if text.grammars.keeps(grammar.kind, grammar.source):
        return
    checking = partial(text.grammars.compile, grammar.kind, grammar.source)
    try:
        async with asyncio.timeout(CHECK_S):
            await asyncio.get_running_loop().run_in_executor(CHECKS, checking)
    except RequestError as error:
        raise invalid(str(error), param, error.code) from None
    except TimeoutError:
        raise busy("too many grammars are being checked; try again in a moment", 1) from None


def _dumped(value: Any, param: str) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid(f"{param} is no JSON value: {str(error)[:100]}", param) from None
