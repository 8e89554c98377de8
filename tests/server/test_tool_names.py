"""Names of tools that a dialect's own servers refuse are refused by the field; all others are taken."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.service.server.http.faults import (
    ANTHROPIC_NAMES,
    OLLAMA_NAMES,
    OPENAI_NAMES,
    ApiError,
    NameRule,
    checked_name,
)
from tests.server.serving import Server, user

SCHEMA = {"type": "object", "properties": {}}
ASKED: dict[str, Any] = {"model": "default", "max_tokens": 1}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "1"}]}

Made = tuple[str, dict[str, Any], str]
"""Path, body, and the field that has the name."""


def chat_tool(name: str) -> Made:
    tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}}]
    return "/v1/chat/completions", ASKED | {"messages": user("x"), "tools": tools}, "tools[0].function.name"


def chat_function(name: str) -> Made:
    return "/v1/chat/completions", ASKED | {"messages": user("x"), "functions": [{"name": name}]}, "functions[0].name"


def chat_call(name: str) -> Made:
    call = {"id": "c", "type": "function", "function": {"name": name, "arguments": "{}"}}
    turns = [
        *user("x"),
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
    ]
    return "/v1/chat/completions", ASKED | {"messages": turns}, "messages[1].tool_calls[0].function.name"


def response_tool(name: str) -> Made:
    tools = [{"type": "function", "name": name, "parameters": SCHEMA}]
    return "/v1/responses", {"model": "default", "max_output_tokens": 16, "input": "x", "tools": tools}, "tools[0].name"


def response_call(name: str) -> Made:
    items = [
        {"type": "function_call", "call_id": "c", "name": name, "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
    ]
    return "/v1/responses", {"model": "default", "max_output_tokens": 16, "input": items}, "input[0].name"


def anthropic_tool(name: str) -> Made:
    tools = [{"name": name, "input_schema": SCHEMA}]
    return "/v1/messages", ASKED | {"messages": user("x"), "tools": tools}, "tools[0].name"


def anthropic_call(name: str) -> Made:
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": name, "input": {}}]}
    return "/v1/messages", ASKED | {"messages": [*user("x"), use, RESULT]}, "messages[1].content[0].name"


def ollama_tool(name: str) -> Made:
    tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}}]
    body = {"model": "default", "messages": user("x"), "tools": tools, "stream": False, "options": {"num_predict": 1}}
    return "/api/chat", body, "tools[0].function.name"


WAYS: list[tuple[Callable[[str], Made], int, bool]] = [
    (chat_tool, 64, False),
    (chat_function, 64, False),
    (chat_call, 64, False),
    (response_tool, 64, False),
    (response_call, 64, False),
    (anthropic_tool, 128, False),
    (anthropic_call, 128, False),
    (ollama_tool, 128, True),
]


@pytest.mark.parametrize(("make", "longest", "is_lenient"), WAYS)
def test_each_dialect_takes_the_names_it_takes_elsewhere(
    server: Server, make: Callable[[str], Made], longest: int, is_lenient: bool
) -> None:
    for name, is_good in [
        ("get_weather-2", True),
        ("x" * longest, True),
        ("x" * (longest + 1), False),
        ("a\0b", False),
        ("line\n", False),
        ("a b", is_lenient),
        ("a.b/c", is_lenient),
        ("wetter_für", is_lenient),
    ]:
        path, body, field = make(name)
        answer = server.post(path, body)
        assert answer.status_code == (200 if is_good else 400), (name, answer.text)
        if not is_good:
            assert field in answer.text
            assert "\0" not in answer.text


@given(st.sampled_from([OPENAI_NAMES, ANTHROPIC_NAMES, OLLAMA_NAMES]), st.text(max_size=140))
def test_a_name_is_taken_as_it_is_or_refused_by_its_field(rule: NameRule, name: str) -> None:
    if re.fullmatch(rule.pattern, name):
        assert checked_name(name, rule, "tools[0].name") == name
        return
    with pytest.raises(ApiError) as caught:
        checked_name(name, rule, "tools[0].name")
    assert (caught.value.status, caught.value.param) == (400, "tools[0].name")
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 600
