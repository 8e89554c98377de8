"""The traffic of a coding agent: what a session sends, in its order and shapes, through Anthropic's SDK."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.server.serving import Server, serving

READ = {
    "name": "Read",
    "description": "Reads a file from the local filesystem.",
    "input_schema": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"file_path": {"type": "string", "maxLength": 12}, "limit": {"type": "integer"}},
        "required": ["file_path"],
        "additionalProperties": False,
    },
}
LIST = {
    "name": "LS",
    "description": "Lists files.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}
CACHED = {"type": "ephemeral"}
SYSTEM: list[Any] = [
    {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.0.1.{nonce}; cc_entrypoint=cli;"},
    {"type": "text", "text": "You are a coding agent. " * 8, "cache_control": CACHED},
    {"type": "text", "text": "The working directory is /src. " * 8, "cache_control": CACHED},
]


@pytest.fixture(scope="module")
def agent() -> Iterator[anthropic.Anthropic]:
    """A server of its own: what is cached is counted."""
    with serving() as running, client_of(running) as client:
        yield client


def client_of(server: Server) -> anthropic.Anthropic:
    headers = {"anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14", "x-app": "cli"}
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, default_headers=headers)


def system(nonce: str) -> list[Any]:
    return [SYSTEM[0] | {"text": SYSTEM[0]["text"].replace("{nonce}", nonce)}, *SYSTEM[1:]]


def turn(agent: anthropic.Anthropic, nonce: str, messages: list[Any], **fields: Any) -> Any:
    asked: dict[str, Any] = {
        "model": "default",
        "max_tokens": 120,
        "system": system(nonce),
        "messages": messages,
        "tools": [LIST, READ | {"cache_control": CACHED}],
        "metadata": {"user_id": "user_0_account__session_1"},
        "extra_body": {"seed": 3},
    }
    with agent.messages.stream(**(asked | fields)) as stream:
        for _ in stream:
            pass
        return stream.get_final_message()


def test_a_session_of_an_agent_goes_through(agent: anthropic.Anthropic) -> None:
    """Tokens counted, a tool called, its result sent back with the whole history; what was sent before is read from cache,
    though the nonce in the billing header is another each time."""
    task: dict[str, Any] = {
        "role": "user",
        "content": [{"type": "text", "text": "Fix the bug.", "cache_control": CACHED}],
    }
    counted = agent.messages.count_tokens(model="default", system=system("a1"), messages=[task], tools=[LIST, READ])
    first = turn(agent, "a1", [task], tool_choice={"type": "tool", "name": "Read"})
    assert first.stop_reason == "tool_use"
    (call,) = [block for block in first.content if block.type == "tool_use"]
    assert call.name == "Read"
    assert len(call.input["file_path"]) <= 12
    usage = first.usage
    assert (
        usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens == counted.input_tokens
    )
    assert usage.cache_creation_input_tokens > 0
    result = {
        "type": "tool_result",
        "tool_use_id": call.id,
        "content": [{"type": "text", "text": "1\timport os"}],
        "is_error": False,
        "cache_control": CACHED,
    }
    del task["content"][0]["cache_control"]  # the mark moves to the newest message: four are allowed
    history = [task, {"role": "assistant", "content": [block.model_dump() for block in first.content]}]
    second = turn(agent, "b2", [*history, {"role": "user", "content": [result]}])
    assert second.stop_reason in ("end_turn", "max_tokens", "tool_use")
    assert second.usage.cache_read_input_tokens >= usage.cache_creation_input_tokens - 16
    assert second.usage.cache_read_input_tokens % 16 == 0


def test_a_result_of_no_call_is_refused_by_name(agent: anthropic.Anthropic) -> None:
    stray = {"type": "tool_result", "tool_use_id": "toolu_never", "content": "x"}
    with pytest.raises(anthropic.BadRequestError) as caught:
        turn(agent, "c3", [{"role": "user", "content": [stray]}])
    assert "toolu_never" in json.dumps(caught.value.body)
