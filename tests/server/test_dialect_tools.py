"""Tool calls through every dialect: the same call, and one that is cut off breaks nothing."""

import json
from typing import Any

import pytest

from tests.server.serving import Server, user

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"name": "weather", "parameters": SCHEMA}


def ask_chat(server: Server, num_tokens: int) -> Any:
    tools = [{"type": "function", "function": FUNCTION}]
    body = {"messages": user("x"), "max_tokens": num_tokens, "seed": 1, "tools": tools, "tool_choice": "required"}
    return server.post("/v1/chat/completions", body)


def ask_anthropic(server: Server, num_tokens: int, **fields: Any) -> Any:
    tools = [{"name": "weather", "input_schema": SCHEMA}]
    body = {"model": "default", "messages": user("x"), "max_tokens": num_tokens, "seed": 1, "tools": tools}
    return server.post("/v1/messages", body | {"tool_choice": {"type": "any"}} | fields)


def ask_responses(server: Server, num_tokens: int) -> Any:
    tools = [{"type": "function"} | FUNCTION]
    body = {"input": "x", "max_output_tokens": num_tokens, "seed": 1, "tools": tools, "tool_choice": "required"}
    return server.post("/v1/responses", body)


def test_the_same_call_comes_through_every_dialect(server: Server) -> None:
    call = ask_chat(server, 80).json()["choices"][0]["message"]["tool_calls"][0]["function"]
    arguments = json.loads(call["arguments"])
    assert (call["name"], set(arguments)) == ("weather", {"city"})
    (block,) = ask_anthropic(server, 80).json()["content"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "weather", arguments)
    (item,) = ask_responses(server, 80).json()["output"]
    assert (item["type"], item["name"], json.loads(item["arguments"])) == ("function_call", "weather", arguments)
    parts = []
    for line in ask_anthropic(server, 80, stream=True).text.splitlines():
        event = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
        if event.get("type") == "content_block_delta":
            parts.append(event["delta"]["partial_json"])
    assert json.loads("".join(parts)) == arguments


@pytest.mark.parametrize("num_tokens", [1, 5, 12, 25, 40])
def test_a_call_that_is_cut_off_breaks_nothing(server: Server, num_tokens: int) -> None:
    for ask in (ask_chat, ask_anthropic, ask_responses):
        assert ask(server, num_tokens).status_code == 200
    options = {"num_predict": num_tokens, "seed": 1}
    tools = [{"type": "function", "function": FUNCTION}]
    body = {"model": "default", "messages": user("x"), "options": options, "tools": tools, "stream": False}
    assert server.post("/api/chat", body).status_code == 200
