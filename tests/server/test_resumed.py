"""A stream that another replica takes over at any of its marks tells the rest as if nothing had happened."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.service import marks
from tests.real import DEFAULT, model_path
from tests.server.serving import Server, serving, user

MARK = re.compile(rb"^:[tu] [^\n]*\n\n", re.MULTILINE)
NUM_CUTS = 5
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "n": {"type": "boolean"}},
    "required": ["city", "n"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
TEXT = {"prompt": "The sea is blue", "seed": 3, "stream_options": {"include_usage": True}}
CHAT = {"messages": user("Name a city."), "seed": 3, "stream_options": {"include_usage": True}}
CALLS = {
    "columns": ("/v1/completions", TEXT | {"max_tokens": 8, "n": 2, "logprobs": 1, "echo": True}),
    "likeliest": (
        "/v1/completions",
        TEXT | {"max_tokens": 6, "best_of": 4, "temperature": 1.5, "return_token_ids": True},
    ),
    "stops": ("/v1/completions", TEXT | {"max_tokens": 24, "n": 3, "stop": ["e"], "temperature": 1.0}),
    "schemas": ("/v1/chat/completions", CHAT | {"max_tokens": 60, "n": 2, "response_format": FORMAT}),
    "tools": ("/v1/chat/completions", CHAT | {"max_tokens": 60, "tools": [TOOL], "tool_choice": "required"}),
    "anthropic": ("/v1/messages", {"messages": user("Name a city."), "max_tokens": 12, "stop_sequences": ["z"]}),
    "ollama": ("/api/chat", {"messages": user("Name a city."), "format": SCHEMA, "options": {"num_predict": 60}}),
    "responses": (
        "/v1/responses",
        {"input": "Name a city.", "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
    ),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--invariant", model=str(model_path(DEFAULT)), is_real=True) as running:
        yield running


def told(data: bytes) -> list[dict[str, Any]]:
    lines = (line.removeprefix("data: ") for line in MARK.sub(b"", data).decode().splitlines())
    return [json.loads(line) for line in lines if line.startswith("{")]


def folded(events: list[dict[str, Any]]) -> Any:
    """All that a client learns, whatever was told together."""
    texts: dict[Any, str] = {}
    facts: list[Any] = []
    for event in events:
        usage = event.get("usage") or event.get("response", {}).get("usage") or {}
        facts += [(name, count) for name, count in usage.items() if name in ("completion_tokens", "output_tokens")]
        facts += [(name, event[name]) for name in ("done_reason", "eval_count") if name in event]
        facts += [str(part["text"]) for item in event.get("response", {}).get("output", ()) for part in item["content"]]
        for part in (event, event.get("delta"), event.get("message")):
            for name in ("delta", "text", "content", "partial_json") if isinstance(part, dict) else ():
                if isinstance(part.get(name), str):
                    texts[name] = texts.get(name, "") + part[name]
        for choice in event.get("choices", ()):
            index, delta = choice["index"], choice.get("delta", {})
            texts[index] = texts.get(index, "") + (choice.get("text") or delta.get("content") or "")
            for call in delta.get("tool_calls", ()):
                texts[index] += call["function"].get("name", "") + call["function"]["arguments"]
            columns = choice.get("logprobs") or {}
            facts += [
                (index, *row) for row in zip(columns.get("tokens", ()), columns.get("text_offset", ()), strict=True)
            ]
            facts += [(index, token) for token in choice.get("token_ids") or ()]
            facts += [(index, choice["finish_reason"])] if choice["finish_reason"] else []
    return texts, sorted(map(str, facts))


@pytest.mark.parametrize("name", CALLS)
def test_the_rest_of_a_stream_is_told_from_any_of_its_marks(server: Server, name: str) -> None:
    path, asked = CALLS[name]
    body = json.dumps({"model": "default", "stream": True, "temperature": 0.0} | asked).encode()
    stamp = {"x-penstock-relay": "k 1 - 0", "content-type": "application/json"}
    with server.http() as http:
        calm = http.post(path, content=body, headers=stamp)
        assert calm.status_code == 200, calm.text
        found = list(MARK.finditer(calm.content))
        assert found[-1].group().startswith(b":u ")
        cuts = found[:-1]
        for place in {round(part * (len(cuts) - 1) / NUM_CUTS) for part in range(NUM_CUTS + 1)}:
            end = cuts[place].end()
            shown = marks.resumed([mark.group()[:-2] for mark in cuts[: place + 1]])
            headers = stamp | {"x-penstock-resume": str(len(shown))}
            rest = http.post(path, content=shown + body, headers=headers)
            assert rest.status_code == 200, rest.text
            assert folded(told(calm.content[:end]) + told(rest.content)) == folded(told(calm.content)), shown
