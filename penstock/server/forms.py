"""The form an answer must have: what a generation asks for as a grammar of the model's words, checked before the first byte.

Compiling for a check happens on another thread and needs no engine; the engine compiles the same source for its vocabulary.
"""

import asyncio
import json
from typing import Any

from penstock.core.request import Grammar
from penstock.errors import RequestError
from penstock.server.generation import OutputForm
from penstock.server.http.faults import busy, invalid, unsupported
from penstock.server.text import Text
from penstock.text.grammar.compose import after_thoughts, free_after_thoughts, thoughts_of

CHECK_S = 5.0
"""Limits on what a grammar may be keep a check far below this; it bounds the wait for a thread."""
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
            return Grammar(kind, value if isinstance(value, str) else _dumped(value, form.param))
        case "regex":
            return Grammar("regex", str(value))
        case "choice":
            return Grammar("choice", _dumped(value, form.param))
        case "grammar":
            return Grammar("gbnf" if GBNF_SIGN in str(value) else "lark", str(value))


async def checked_grammar(
    text: Text, form: OutputForm, *, is_open: bool = False, in_chat: bool = False, max_reasoning: int | None = None
) -> Grammar | None:
    """The grammar that an answer is held to, if any: it begins where reasoning has ended, and can be used."""
    grammar = source_of(form)
    style = text.style if in_chat else None
    if max_reasoning is not None and style is None:
        raise unsupported("max_reasoning_tokens", "this model does not reason, so leave it out")
    if grammar is None and max_reasoning is None:
        return None
    try:
        if style is not None:
            thoughts = thoughts_of(style, is_open=is_open, max_tokens=max_reasoning)
            if grammar is None:
                grammar = Grammar(*free_after_thoughts(thoughts, text.markers))
            else:
                await check(text, grammar, form.param)
                grammar = Grammar(*after_thoughts(grammar.kind, grammar.source, thoughts, text.markers))
    except RequestError as error:
        raise invalid(str(error), error.param or form.param, error.code) from None
    if grammar is not None:
        await check(text, grammar, form.param)
    return grammar


async def check(text: Text, grammar: Grammar, param: str) -> None:
    """Raise if the grammar cannot be used, naming what is wrong with it."""
    try:
        async with asyncio.timeout(CHECK_S):
            await asyncio.to_thread(text.grammars.compile, grammar.kind, grammar.source)
    except RequestError as error:
        raise invalid(str(error), param, error.code) from None
    except TimeoutError:
        raise busy("too many grammars are being checked; try again in a moment", 1) from None


def _dumped(value: Any, param: str) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid(f"{param} is no JSON value: {str(error)[:100]}", param) from None
