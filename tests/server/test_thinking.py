"""Answers of a model that reasons: what holds an answer begins where its reasoning ends, and budgets end it in time."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
import openai
import pytest

from penstock.service.server.anthropic.protocol import MessagesBody
from penstock.service.server.anthropic.request import generation_of
from tests.server.serving import Server, serving, user
from tests.server.test_tools import PARAMETERS, TOOLS, valid_calls
from tests.server.thinking import MODEL, thinking_text, thinking_tokenizer

BUDGET = 20
MARKED = 2
"""Tokens that open and close reasoning, counted with it."""
TOKENIZER = thinking_tokenizer()
CALL: Any = {"id": "c1", "type": "function", "function": {"name": "stop", "arguments": "{}"}}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "f", "schema": PARAMETERS}}


@pytest.fixture(scope="module")
def thinking() -> Iterator[Server]:
    with serving(model=MODEL, program=("tests.server.thinking", "serve")) as server:
        yield server


@pytest.fixture(scope="module")
def client(thinking: Server) -> Iterator[openai.OpenAI]:
    with thinking.sdk() as sdk:
        yield sdk


def ask(client: openai.OpenAI, seed: int, **options: Any) -> Any:
    extra = {"max_reasoning_tokens": BUDGET}
    return client.chat.completions.create(
        model="default", messages=user("x"), max_tokens=900, seed=seed, extra_body=extra, **options
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_form_holds_what_comes_after_the_reasoning(client: openai.OpenAI, seed: int) -> None:
    answer = ask(client, seed, response_format=FORM)
    message = answer.choices[0].message
    jsonschema.validate(json.loads(message.content), PARAMETERS)
    assert answer.choices[0].finish_reason == "stop"
    assert "</think>" not in message.content
    num_reasoning = answer.usage.completion_tokens_details.reasoning_tokens
    assert num_reasoning <= BUDGET + MARKED
    assert bool(num_reasoning) == bool(getattr(message, "reasoning_content", ""))


@pytest.mark.parametrize("seed", range(4))
def test_calls_come_after_the_reasoning_too(client: openai.OpenAI, seed: int) -> None:
    answer = ask(client, seed, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    (chosen,) = answer.choices
    assert chosen.finish_reason == "tool_calls"
    assert len(valid_calls(chosen.message.tool_calls)) == 1
    assert chosen.message.content is None


def test_a_stream_tells_reasoning_then_content(client: openai.OpenAI) -> None:
    kinds = set()
    for seed in range(6):
        whole = ask(client, seed, response_format=FORM).choices[0].message
        chunks = list(ask(client, seed, response_format=FORM, stream=True))
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        thoughts = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
        words = [delta.content or "" for delta in deltas]
        assert "".join(words) == whole.content
        assert "".join(thoughts) == getattr(whole, "reasoning_content", "")
        first_word = next(place for place, text in enumerate(words) if text)
        assert not any(thoughts[first_word + 1 :])
        kinds.add(bool("".join(thoughts)))
    assert True in kinds


def test_a_budget_ends_reasoning_whatever_the_model_wants(client: openai.OpenAI) -> None:
    """Free answers too, which nothing else is asked of."""
    for seed in range(4):
        answer = ask(client, seed)
        assert answer.usage.completion_tokens_details.reasoning_tokens <= BUDGET + MARKED


def test_anthropic_s_budget_is_one_too_and_advice_where_nothing_reasons(server: Server) -> None:
    body = {"model": "default", "messages": user("x"), "max_tokens": 2000}
    body["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    asked = generation_of(msgspec.convert(body, MessagesBody))
    assert (asked.max_reasoning_tokens, asked.is_budget_advice) == (1024, True)
    assert server.post("/v1/messages", body | {"stop_sequences": ["a"]}).status_code == 200


def prompt_tokens(thinking: Server, messages: list[Any], **options: Any) -> int:
    body = {"messages": messages, "max_tokens": 1, **options}
    return int(thinking.post("/v1/chat/completions", body).json()["usage"]["prompt_tokens"])


def rendered(messages: list[Any], **variables: Any) -> int:
    template = thinking_text().template
    assert template is not None
    text = template.render(messages, add_generation_prompt=True, variables=variables)
    return len(TOKENIZER.encode(text, special=False))


def test_effort_reaches_the_template_under_both_its_names(thinking: Server) -> None:
    for effort, variables in {
        "high": {"reasoning_effort": "high"},
        "none": {"reasoning_effort": "none", "enable_thinking": False},
    }.items():
        expected = rendered(user("x"), **variables)
        assert prompt_tokens(thinking, user("x"), reasoning_effort=effort) == expected
        assert expected > rendered(user("x"))


def test_the_template_decides_which_reasoning_of_the_past_is_kept(thinking: Server) -> None:
    """This one drops it once another question has come, and keeps it while calls go to and fro."""
    thought = {"reasoning_content": "deep thoughts"}
    answered = {"role": "assistant", "content": "y"}
    past = [*user("a"), answered, *user("b")]
    assert prompt_tokens(thinking, [past[0], answered | thought, past[2]]) == prompt_tokens(thinking, past)
    called = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "done"}
    kept = prompt_tokens(thinking, [*user("a"), called | thought, result], tools=TOOLS)
    assert kept > prompt_tokens(thinking, [*user("a"), called, result], tools=TOOLS) + len("deep thoughts")


def test_a_budget_is_refused_where_nothing_reasons(server: Server) -> None:
    error = server.post("/v1/chat/completions", {"messages": user("x"), "max_reasoning_tokens": 5}).json()["error"]
    assert error["param"] == "max_reasoning_tokens"
