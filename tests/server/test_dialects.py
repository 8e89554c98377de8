"""One request through every dialect: the same tokens, the same usage; and any split of the bytes changes nothing."""

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

import pytest
from anthropic._streaming import SSEDecoder as AnthropicDecoder
from openai._streaming import SSEDecoder as OpenAiDecoder

from tests.machine import wait_until
from tests.server.serving import Server, serving, user

SYSTEM = "Be brief."
QUESTION = "the same for everybody"


class Seen(NamedTuple):
    text: str
    num_prompt: int
    num_output: int


def ask_chat(server: Server, seed: int) -> Seen:
    messages = [{"role": "system", "content": SYSTEM}, *user(QUESTION)]
    body = {"messages": messages, "max_tokens": 12, "seed": seed}
    answer = server.post("/v1/chat/completions", body).json()
    usage = answer["usage"]
    return Seen(answer["choices"][0]["message"]["content"], usage["prompt_tokens"], usage["completion_tokens"])


def ask_responses(server: Server, seed: int) -> Seen:
    body = {"input": QUESTION, "instructions": SYSTEM, "max_output_tokens": 12, "seed": seed}
    answer = server.post("/v1/responses", body).json()
    usage = answer["usage"]
    return Seen(answer["output"][0]["content"][0]["text"], usage["input_tokens"], usage["output_tokens"])


def ask_anthropic(server: Server, seed: int) -> Seen:
    body = {"model": "default", "messages": user(QUESTION), "system": SYSTEM, "max_tokens": 12, "seed": seed}
    answer = server.post("/v1/messages", body).json()
    usage = answer["usage"]
    num_prompt = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
    return Seen(answer["content"][0]["text"], num_prompt, usage["output_tokens"])


def ask_ollama(server: Server, seed: int) -> Seen:
    messages = [{"role": "system", "content": SYSTEM}, *user(QUESTION)]
    body = {"model": "default", "messages": messages, "options": {"num_predict": 12, "seed": seed}, "stream": False}
    answer = server.post("/api/chat", body).json()
    return Seen(answer["message"]["content"], answer["prompt_eval_count"], answer["eval_count"])


def ask_ollama_prompt(server: Server, seed: int) -> Seen:
    body = {"model": "default", "prompt": QUESTION, "system": SYSTEM, "stream": False}
    answer = server.post("/api/generate", body | {"options": {"num_predict": 12, "seed": seed}}).json()
    return Seen(answer["response"], answer["prompt_eval_count"], answer["eval_count"])


@pytest.mark.parametrize("ask", [ask_responses, ask_anthropic, ask_ollama, ask_ollama_prompt])
@pytest.mark.parametrize("seed", [1, 2])
def test_every_dialect_gives_the_same_tokens_and_usage(
    server: Server, ask: Callable[[Server, int], Seen], seed: int
) -> None:
    assert ask(server, seed) == ask_chat(server, seed)


def pieces_of(data: bytes, seed: int) -> Iterator[bytes]:
    choose = Random(seed)
    while data:
        size = choose.randrange(1, 9)
        yield data[:size]
        data = data[size:]


@pytest.mark.parametrize(
    ("path", "decoder", "body"),
    [
        ("/v1/chat/completions", OpenAiDecoder, {"messages": user("x"), "max_tokens": 9}),
        ("/v1/responses", OpenAiDecoder, {"input": "x", "max_output_tokens": 9}),
        ("/v1/messages", AnthropicDecoder, {"model": "default", "messages": user("x"), "max_tokens": 9}),
    ],
)
def test_a_proxy_may_split_a_stream_anywhere(server: Server, path: str, decoder: Any, body: dict[str, Any]) -> None:
    data = server.post(path, body | {"stream": True, "seed": 1}).content
    whole = [(event.event, event.data) for event in decoder().iter_bytes(iter([data]))]
    for seed in range(5):
        split = [(event.event, event.data) for event in decoder().iter_bytes(pieces_of(data, seed))]
        assert split == whole
    assert len(whole) > 3


def test_progress_is_told_in_every_dialect_to_those_who_ask() -> None:
    asked: dict[str, dict[str, Any]] = {
        "/v1/messages": {"model": "default", "max_tokens": 1, "include_progress": True},
        "/api/chat": {"model": "default", "options": {"num_predict": 1}, "include_progress": True},
    }
    with serving(
        "--max-batch-tokens", "16", "--max-sequences", "4", "--max-context", "8192", model="oracle:step_ms=20"
    ) as slow:
        for path, fields in asked.items():
            answer = slow.post(path, fields | {"messages": user(f"{path} " + "long " * 300), "stream": True})
            assert '"stage":"prefill"' in answer.text, path


def test_a_long_wait_is_passed_in_silence_where_clients_bear_nothing_else(server: Server) -> None:
    body = {"model": "default", "messages": user("lines"), "options": {"num_predict": 2}}
    for line in server.post("/api/chat", body).text.strip().split("\n"):
        assert json.loads(line)["model"] == "default"


def test_requests_can_be_abandoned_in_every_dialect(server: Server) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/messages": {"model": "default", "max_tokens": 4000, "messages": user("go on"), "stream": True},
        "/v1/responses": {"input": "go on", "max_output_tokens": 4000, "stream": True},
        "/api/chat": {"model": "default", "messages": user("go on"), "options": {"num_predict": 4000}},
    }
    for path, body in bodies.items():
        with server.http() as http, http.stream("POST", path, json=body) as response:
            next(response.iter_raw())
    wait_until(lambda: not server.metric("vllm:num_requests_running"))
