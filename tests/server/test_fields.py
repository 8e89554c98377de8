"""Every field a client may send does something, is refused by name, or is a label. There is no fourth kind."""

import asyncio
from typing import Any

import httpx
import msgspec
import pytest
from openai.types import completion_create_params as text_params
from openai.types import embedding_create_params as embedding_params
from openai.types.chat import completion_create_params as chat_params
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel

from penstock.runtime.text.tokenizer.tokenizer import Tokenizer
from penstock.runtime.text.tokenizer.vocabulary import SpecialTokens
from penstock.service.server.calls.generation import Caller
from penstock.service.server.calls.prepare import prepare
from penstock.service.server.openai.completions import text_generation
from penstock.service.server.openai.protocol import REFUSED, ChatBody, CompletionBody, EmbeddingBody, Sampling
from penstock.service.server.served import ServedModel
from penstock.service.server.text import Text
from tests.server.serving import Server, idle_client, serving, user

DRAWN: dict[str, Any] = {
    "temperature": 0.3, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "presence_penalty": 1.0, "frequency_penalty": 1.0,
    "repetition_penalty": 1.2, "logit_bias": {"65": 5}, "allowed_token_ids": [65, 66], "seed": 2, "n": 2,
    "max_tokens": 3, "min_tokens": 1, "stop": "x", "stop_token_ids": [3], "include_stop_str_in_output": True,
    "ignore_eos": True, "skip_special_tokens": False, "priority": 3, "deadline_ms": 60_000, "cache_salt": "mine",
    "guided_json": {"type": "boolean"}, "guided_regex": "a+b", "guided_choice": ["a", "b"], "guided_grammar": 'start: "a"',
    "structured_outputs": {"choice": ["a"]}, "grammar": 'root ::= "a"', "json_schema": {"type": "integer"},
    "response_format": {"type": "json_object"}, "best_of": 3, "bad_words": ["end"],
}  # fmt: skip
"""What the engine, or the text made of its tokens, is asked differently."""

SHOWN: dict[str, dict[str, Any]] = {
    "chat": {
        "messages": user("other words"), "max_completion_tokens": 3, "logprobs": True, "stream": True,
        "return_token_ids": True, "return_timings": True, "add_generation_prompt": False,
        "truncate_prompt_tokens": 3, "service_tier": "priority",
        "tools": [{"type": "function", "function": {"name": "f"}}], "functions": [{"name": "f"}],
        "continue_token_ids": [65],
    },
    "text": {
        "prompt": "other words", "echo": True, "logprobs": 2, "prompt_logprobs": 1, "stream": True,
        "return_token_ids": True, "return_timings": True, "truncate_prompt_tokens": 3,
    },
}  # fmt: skip
"""What the client sees differently."""

TOGETHER: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True, "top_logprobs": 2},
    "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
    "function_call": {"functions": [{"name": "f"}], "function_call": "none"},
    "continue_final_message": {"messages": [*user("go on"), {"role": "assistant", "content": "I was"}]},
}
"""Fields that mean something only beside others: the others are the first answer's too."""

LABELS: dict[str, Any] = {
    "model": "default", "user": "somebody", "metadata": {"a": "b"}, "safety_identifier": "s", "prompt_cache_key": "k",
    "prompt_cache_retention": "24h", "prompt_cache_options": {"mode": "implicit"}, "parallel_tool_calls": True,
    "store": False, "modalities": ["text"], "verbosity": "medium", "tool_choice": "auto",
    "response_format": {"type": "text"}, "tools": [], "best_of": 1, "suffix": "", "add_special_tokens": True,
    "reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}, "speculate": 0,
    "prediction": {"type": "content", "content": "x"},
    "use_beam_search": False, "beam_width": None, "length_penalty": None,
}  # fmt: skip
"""Accepted at these values, which ask for what is done anyway, name the caller, or speak to the model's own template."""

NOT_SERVED: dict[str, Any] = {
    "store": True,
    "modalities": ["audio"], "verbosity": "low",
    "suffix": "after", "max_reasoning_tokens": 9,
} | dict.fromkeys(REFUSED, "something")  # fmt: skip

BODIES: dict[str, tuple[type[Sampling], str, dict[str, Any]]] = {
    "chat": (ChatBody, "/v1/chat/completions", {"messages": user("some words"), "max_tokens": 5, "seed": 1}),
    "text": (CompletionBody, "/v1/completions", {"prompt": "some words", "max_tokens": 5, "seed": 1}),
}
CHAT_ONLY = {field.name for field in msgspec.structs.fields(ChatBody)} - {
    field.name for field in msgspec.structs.fields(CompletionBody)
}
TEXT_ONLY = {field.name for field in msgspec.structs.fields(CompletionBody)} - {
    field.name for field in msgspec.structs.fields(ChatBody)
}


def fields_of(kind: str, table: dict[str, Any]) -> dict[str, Any]:
    other = TEXT_ONLY if kind == "chat" else CHAT_ONLY
    return {name: value for name, value in table.items() if name not in other}


def cases(tables: dict[str, dict[str, Any]]) -> list[Any]:
    return [
        pytest.param(kind, name, value, id=f"{kind}-{name}")
        for kind, table in tables.items()
        for name, value in fields_of(kind, table).items()
    ]


def of_both(table: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {"chat": table, "text": table}


@pytest.mark.parametrize("kind", BODIES)
def test_no_field_is_without_a_verdict(kind: str) -> None:
    judged = DRAWN.keys() | SHOWN[kind].keys() | TOGETHER.keys() | LABELS.keys() | NOT_SERVED.keys()
    assert {field.encode_name for field in msgspec.structs.fields(BODIES[kind][0])} <= judged


@pytest.mark.parametrize(
    ("body", "types"),
    [
        (ChatBody, (chat_params.CompletionCreateParamsBase, chat_params.CompletionCreateParamsStreaming)),
        (CompletionBody, (text_params.CompletionCreateParamsBase, text_params.CompletionCreateParamsStreaming)),
        (EmbeddingBody, (embedding_params.EmbeddingCreateParams,)),
    ],
)
def test_openai_s_own_client_can_send_nothing_unknown(body: type, types: tuple[type, ...]) -> None:
    sent = {name for type_ in types for name in type_.__annotations__}
    assert sent - REFUSED.keys() <= {field.encode_name for field in msgspec.structs.fields(body)}


def model() -> ServedModel:
    model = ServedModel(idle_client(max_waiting=256, max_sequences=4), num_tenants=0)
    words = WordLevel({"end": 0}, unk_token="end")
    model.text = Text(Tokenizer(Backend(words), SpecialTokens(None, frozenset({0}), {})))
    return model


async def asked(extra: dict[str, Any]) -> tuple[Any, ...]:
    """What the engine and the text are asked for by a body with these fields."""
    body = msgspec.convert({"prompt": "end", "seed": 1, "max_tokens": 40} | extra, CompletionBody)
    call = await prepare(model(), Caller(), text_generation(body))
    request, rules = call.requests[0], call.rules._replace(stops=None)  # type: ignore[arg-type]
    return request.params, request.priority, request.deadline_s, request.salt, rules


@pytest.mark.parametrize(("name", "value"), DRAWN.items())
def test_what_is_asked_reaches_the_engine(name: str, value: Any) -> None:
    async def session() -> None:
        assert await asked({}) != await asked({name: value})

    asyncio.run(session())


def answer(http: httpx.Client, kind: str, extra: dict[str, Any]) -> Any:
    """What is seen of an answer, less what differs every time."""
    _, path, body = BODIES[kind]
    response = http.post(path, json=body | extra)
    assert response.status_code == 200, response.text
    if extra.get("stream"):
        return response.text.count("usage")
    return {name: value for name, value in response.json().items() if name not in ("id", "created")}


def less_cached(reported: Any) -> Any:
    if isinstance(reported, dict):
        reported["usage"].pop("prompt_tokens_details")
    return reported


@pytest.mark.parametrize(("kind", "name", "value"), cases(SHOWN))
def test_options_show_in_the_answer(http: httpx.Client, kind: str, name: str, value: Any) -> None:
    before = {} if name != "max_completion_tokens" else {"max_tokens": 4}
    assert less_cached(answer(http, kind, before)) != less_cached(answer(http, kind, before | {name: value}))


@pytest.mark.parametrize(
    ("kind", "name", "value"), cases({"chat": TOGETHER, "text": {"stream_options": TOGETHER["stream_options"]}})
)
def test_options_beside_others_show_too(http: httpx.Client, kind: str, name: str, value: dict[str, Any]) -> None:
    without = {other: option for other, option in value.items() if other != name}
    assert less_cached(answer(http, kind, without)) != less_cached(answer(http, kind, {name: True} | value))


@pytest.mark.parametrize(("kind", "name", "value"), cases(of_both(LABELS)))
def test_labels_change_nothing(http: httpx.Client, kind: str, name: str, value: Any) -> None:
    assert less_cached(answer(http, kind, {})) == less_cached(answer(http, kind, {name: value}))


@pytest.mark.parametrize(("kind", "name", "value"), cases(of_both(NOT_SERVED)))
def test_what_is_not_served_is_refused_by_name(http: httpx.Client, kind: str, name: str, value: Any) -> None:
    _, path, body = BODIES[kind]
    for stream in (False, True):
        response = http.post(path, json=body | {name: value, "stream": stream})
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", name)


def test_unknown_fields_are_named_or_refused_as_the_operator_likes(server: Server) -> None:
    _, path, body = BODIES["chat"]
    assert server.post(path, body | {"colour": 1}).headers["x-penstock-ignored"] == "colour"
    assert server.post(path, body | {"a\x00\r\nb: é": 1}).headers["x-penstock-ignored"] == "a???b: ?"
    with serving("strict=true") as strict:
        error = strict.post(path, body | {"colour": 1}).json()["error"]
        assert (error["code"], error["param"]) == ("unsupported_parameter", "colour")
        assert strict.post(path, body).status_code == 200
        for kind in ("chat", "text"):
            _, path, body = BODIES[kind]
            for extra in ({"stop": list("abcde")}, {"stream_options": {"include_usage": True}}):
                assert server.post(path, body | extra).status_code == 200
                answer = strict.post(path, body | extra)
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(extra)))
            assert strict.post(path, body | {"stop": list("abcd")}).status_code == 200


def test_limits_are_told_with_every_answer(server: Server) -> None:
    _, path, body = BODIES["chat"]
    headers = server.post(path, body).headers
    assert int(headers["x-ratelimit-limit-requests"]) == 1024 + 256
    assert int(headers["x-ratelimit-remaining-requests"]) == 1024 + 256 - 1
    assert int(headers["x-ratelimit-remaining-tokens"]) == int(headers["x-ratelimit-limit-tokens"]) == 4_000_000
    assert headers["x-ratelimit-reset-requests"].endswith(("ms", "s"))
