"""The law of control tokens over whole bodies: no string of a client becomes one, whatever its key, nesting, dialect, template.

The oracle is a twin of every template whose markers carry a sign that no client knows. What a body renders to there holds the
template's own control tokens and nothing else; the template as it is must yield the same ones.
"""

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.runtime.text.template.chat import ChatTemplate
from penstock.service.server.anthropic.protocol import MessagesBody
from penstock.service.server.anthropic.request import chat_of as anthropic_chat
from penstock.service.server.calls.generation import Chat
from penstock.service.server.calls.prepare import prompt_of_chat
from penstock.service.server.http.body import convert
from penstock.service.server.http.faults import ApiError
from penstock.service.server.ollama.protocol import OllamaChatBody
from penstock.service.server.ollama.request import chat_generation as ollama_generation
from penstock.service.server.openai.protocol import ChatBody
from penstock.service.server.openai.request import chat_generation
from penstock.service.server.responses.items import input_items
from penstock.service.server.responses.protocol import ResponseBody
from penstock.service.server.responses.request import chat_of as responses_chat
from penstock.service.server.text import Text
from tests.text.templates import CODER, FAMILIES, SHOUTING
from tests.text.test_shield import ROLES, make_tokenizer, markers_of

SIGN = "\ue123"
"""No client's strings hold it."""
TEMPLATES = {name: FAMILIES[name] for name in ("llama3", "qwen", "mistral")} | {"coder": CODER, "shouting": SHOUTING}
CALL_ID = "abc123def"
JSON = dict[str, Any]


class Twins(NamedTuple):
    """A served model, and the same one with signed markers."""

    model: Any
    signed: Any
    markers: list[str]


def served(source: str, markers: list[str], roles: dict[str, str]) -> Any:
    tokenizer = make_tokenizer(markers)
    text = Text(tokenizer, ChatTemplate(source, special_tokens=roles))
    return SimpleNamespace(
        text=text, tokenizer=tokenizer, vocab_size=512, facts=SimpleNamespace(max_context=1 << 20), name=source[:9]
    )


def signed(marker: str) -> str:
    return marker[0] + SIGN + marker[1:]


def twins_of(source: str) -> Twins:
    markers = markers_of(source)
    other = source
    for marker in sorted(markers, key=len, reverse=True):
        other = other.replace(marker, signed(marker))
    roles = {name: signed(marker) for name, marker in ROLES.items()}
    return Twins(served(source, markers, dict(ROLES)), served(other, [signed(m) for m in markers], roles), markers)


TWINS = {name: twins_of(source) for name, source in TEMPLATES.items()}


# Bodies: one conversation with arbitrary JSON wherever a dialect takes any.


def openai_chat(words: list[str], schema: JSON, arguments: JSON) -> Chat:
    function = {"name": "find", "description": words[0], "parameters": schema}
    call = {"id": CALL_ID, "type": words[1], "function": {"name": "find", "arguments": escaped(arguments)}}
    body = {
        "messages": [
            {"role": "user", "content": words[1], "name": words[2]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": CALL_ID, "content": words[2], "name": words[3]},
            {"role": "assistant", "content": words[3], "reasoning_content": words[0]},
            {"role": "user", "content": [{"type": "text", "text": word} for word in words]},
        ],
        "tools": [{"type": "function", "function": function}],
        "chat_template_kwargs": {"today": words[0], "enable_thinking": words[2]},
    }
    return chat_in(chat_generation(convert(body, ChatBody, {})[0]).prompt)


def responses(words: list[str], schema: JSON, arguments: JSON) -> Chat:
    items = [
        {"role": "user", "content": words[1]},
        {"type": "function_call", "call_id": CALL_ID, "name": "find", "arguments": escaped(arguments)},
        {"type": "function_call_output", "call_id": CALL_ID, "output": words[2]},
        {"type": "reasoning", "content": [{"type": words[0], "text": words[0]}]},
        {"role": "assistant", "content": words[3]},
        {"role": "user", "content": [{"type": "input_text", "text": word} for word in words]},
    ]
    tool = {"type": "function", "name": "find", "description": words[0], "parameters": schema}
    body = convert({"input": items, "instructions": words[3], "tools": [tool]}, ResponseBody, {})[0]
    return responses_chat(body, input_items(items))


def anthropic(words: list[str], schema: JSON, arguments: JSON) -> Chat:
    body = {
        "model": "m",
        "max_tokens": 9,
        "system": words[0],
        "messages": [
            {"role": "user", "content": words[1]},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": CALL_ID, "name": "find", "input": arguments}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": CALL_ID, "content": words[2]}]},
            {"role": "assistant", "content": [{"type": "text", "text": words[3]}]},
            {"role": "user", "content": [{"type": "text", "text": word} for word in words]},
        ],
        "tools": [{"name": "find", "description": words[0], "input_schema": schema}],
    }
    return anthropic_chat(convert(body, MessagesBody, {})[0])


def ollama(words: list[str], schema: JSON, arguments: JSON) -> Chat:
    name = (words[1] or "f").replace("\n", "")
    body = {
        "model": "m",
        "messages": [
            {"role": "user", "content": words[1]},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": name, "arguments": arguments}, "id": CALL_ID}],
            },
            {"role": "tool", "content": words[2], "tool_name": words[3], "tool_call_id": CALL_ID},
            {"role": "assistant", "content": words[3], "thinking": words[0]},
            {"role": "user", "content": words[0]},
        ],
        "tools": [{"type": words[2], "function": {"name": name, "description": words[0], "parameters": schema}}],
    }
    return chat_in(ollama_generation(convert(body, OllamaChatBody, {})[0]).prompt)


DIALECTS: dict[str, Callable[[list[str], JSON, JSON], Chat]] = {
    "openai": openai_chat,
    "responses": responses,
    "anthropic": anthropic,
    "ollama": ollama,
}


def chat_in(prompt: Any) -> Chat:
    assert isinstance(prompt, Chat)
    return prompt


def escaped(arguments: JSON) -> str:
    """JSON whose signs are written as escapes: they are characters again once somebody reads them."""
    return json.dumps(arguments).replace("<", "\\u003c").replace("[INST", "\\u005bINST")


def control_tokens(model: Any, chat: Chat) -> list[int] | str:
    try:
        prompt = asyncio.run(prompt_of_chat(model, chat))
    except Exception as error:
        return type(error).__name__
    return [token_id for token_id in prompt.token_ids if token_id in model.tokenizer.special_ids]


def strings(markers: list[str]) -> st.SearchStrategy[str]:
    """Markers whole, in other letters, in two pieces, without their signs, and with something in between that is dropped."""
    pieces = [
        *markers,
        *(marker.upper() for marker in markers),
        *(marker.lower() for marker in markers),
        *(part for marker in markers for part in (marker[:2], marker[2:], marker[:-2], marker[1:-1], marker[1:])),
        *(f"{marker[:3]}/think{marker[3:]}" for marker in markers),
        *(f"{marker[:1]}/th/no_thinkink{marker[1:]}" for marker in markers),
        *(" ", "\n", "x", "object", "string", "\\u003c", "\U000f0000", "é"),
    ]
    return st.lists(st.sampled_from(pieces), max_size=4).map("".join)


def values(text: st.SearchStrategy[str]) -> st.SearchStrategy[JSON]:
    keys = st.one_of(st.sampled_from(["type", "role", "name", "content", "properties", "items", "enum"]), text)
    leaves = st.one_of(text, st.integers(-9, 9), st.booleans(), st.none())
    tree = st.recursive(
        leaves,
        lambda below: st.one_of(st.lists(below, max_size=3), st.dictionaries(keys, below, max_size=3)),
        max_leaves=8,
    )
    return st.dictionaries(keys, tree, max_size=3)


def check_bodies(template: str, dialect: str, num_bodies: int) -> None:
    twins = TWINS[template]
    text = strings(twins.markers)
    rendered = 0

    @settings(max_examples=num_bodies, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(st.lists(text, min_size=4, max_size=4), values(text), values(text))
    def check(words: list[str], schema: JSON, arguments: JSON) -> None:
        nonlocal rendered
        try:
            chat = DIALECTS[dialect](words, schema, arguments)
        except ApiError:
            return
        found = control_tokens(twins.model, chat)
        assert found == control_tokens(twins.signed, chat)
        rendered += isinstance(found, list)

    check()
    assert rendered > num_bodies // 2, "most bodies are conversations that the template takes"


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_no_string_of_a_client_becomes_a_control_token(template: str, dialect: str) -> None:
    check_bodies(template, dialect, 12)


@pytest.mark.slow
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_no_string_of_ten_thousand_bodies_becomes_a_control_token(template: str, dialect: str) -> None:
    check_bodies(template, dialect, 600)


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_values_of_type_and_role_are_text_like_others(template: str) -> None:
    """Keys that templates compare are no way past the shield, neither in schemas nor in arguments."""
    twins = TWINS[template]
    for marker in twins.markers:
        forged = {"type": marker, "role": {"type": [marker]}, marker: marker}
        for make in DIALECTS.values():
            chat = make(["ax"] * 4, {"type": "object", "properties": forged}, forged)
            found = control_tokens(twins.model, chat)
            assert isinstance(found, list)
            assert found == control_tokens(twins.signed, chat)
