"""A conversation that called tools goes on without them, in every dialect, with every template, streamed and whole."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from penstock.service.server.calls.prepare import prompt_of_chat
from tests.real import DEFAULT, model_path
from tests.server.serving import Server, serving
from tests.server.test_forgery import DIALECTS, served
from tests.text.templates import CODER, FAMILIES
from tests.text.test_shield import ROLES, markers_of

TEMPLATES = {name: source for name, source in FAMILIES.items() if name != "medley"} | {"coder": CODER}
"""All but the one that writes no conversation."""
CALL = {"name": "weather", "arguments": '{"city": "Graz"}'}
RESULT = "rain, 12 degrees"


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_history_of_calls_is_written_without_tools(template: str, dialect: str) -> None:
    source = TEMPLATES[template]
    model = served(source, markers_of(source), dict(ROLES))
    chat = DIALECTS[dialect](["first", "second", RESULT, "fourth"], {}, {"city": "Graz"})
    chat = replace(chat, tools=(), messages=tuple(m for m in chat.messages if m.role != "system"))
    text = asyncio.run(prompt_of_chat(model, chat)).text
    for word in ("Graz", RESULT, "fourth", *(call.name for m in chat.messages for call in m.tool_calls)):
        assert word in text


def test_results_in_a_row_and_what_is_said_after_them_are_one_turn() -> None:
    """Templates that insist on turns by turns take them."""
    model = served(FAMILIES["gemma"], markers_of(FAMILIES["gemma"]), dict(ROLES))
    chat = DIALECTS["openai"](["w"] * 4, {}, {})
    ask, call, result, *_ = chat.messages
    twice = replace(chat, tools=(), messages=(ask, call, result, result, ask))
    assert asyncio.run(prompt_of_chat(model, twice)).text.count("<start_of_turn>user") == 2


HISTORIES: dict[str, Any] = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "user", "content": "weather?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": CALL}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": RESULT},
        ],
        "max_tokens": 8,
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": "weather?"},
            {"type": "function_call", "call_id": "c1", **CALL},
            {"type": "function_call_output", "call_id": "c1", "output": RESULT},
        ],
        "max_output_tokens": 8,
    },
    "/v1/messages": {
        "messages": [
            {"role": "user", "content": "weather?"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Graz"}}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": RESULT}]},
        ],
        "max_tokens": 8,
    },
    "/api/chat": {
        "messages": [
            {"role": "user", "content": "weather?"},
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Graz"}}}],
            },
            {"role": "tool", "content": RESULT, "tool_name": "weather"},
        ],
        "options": {"num_predict": 8},
    },
}


def check_histories(server: Server) -> None:
    for path, body in HISTORIES.items():
        for stream in (False, True):
            answer = server.post(path, {"model": "default", "stream": stream, **body})
            assert answer.status_code == 200, f"{path}: {answer.text[:300]}"
            assert '"error"' not in answer.text.replace('"error":null', "")


def test_servers_answer_them() -> None:
    with serving() as server:
        check_histories(server)


@pytest.mark.slow
def test_the_default_model_answers_them() -> None:
    with serving(model=str(model_path(DEFAULT)), is_real=True) as server:
        check_histories(server)
