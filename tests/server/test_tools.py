"""Tools and forms of answers over HTTP, through OpenAI's own client. The oracle draws at random, and every call is valid."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from tests.server.serving import serving, user

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
STOP = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"weather": PARAMETERS, "stop": STOP}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "description": "does it", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
NAMED: Any = {"type": "function", "function": {"name": "weather"}}
ALLOWED: Any = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "stop"}}]},
}


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with serving("--num-blocks", "2048", is_real=True) as server:
        yield openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def valid_calls(calls: Any) -> list[str]:
    for call in calls:
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
    return [call.function.name for call in calls]


@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", set(SCHEMAS)), (NAMED, {"weather"}), (ALLOWED, {"stop"})],
    ids=["required", "named", "allowed"],
)
def test_a_call_that_is_asked_for_is_made_and_valid(client: openai.OpenAI, choice: Any, names: set[str]) -> None:
    for seed in range(4):
        answer = client.chat.completions.create(
            model="default",
            messages=user("x"),
            tools=TOOLS,
            tool_choice=choice,
            parallel_tool_calls=False,
            seed=seed,
            max_tokens=400,
        )
        (chosen,) = answer.choices
        assert chosen.finish_reason == "tool_calls"
        assert chosen.message.content is None
        assert len(chosen.message.tool_calls or ()) == 1
        assert set(valid_calls(chosen.message.tool_calls)) <= names


def test_a_stream_of_calls_adds_up_to_the_whole(client: openai.OpenAI) -> None:
    asked: Any = {
        "model": "default",
        "messages": user("y"),
        "tools": TOOLS,
        "tool_choice": "required",
        "max_tokens": 600,
    }
    for seed in range(4):
        whole = client.chat.completions.create(**asked, seed=seed).choices[0]
        with client.chat.completions.stream(**asked, seed=seed) as stream:
            for event in stream:
                assert event.type != "error"
            streamed = stream.get_final_completion().choices[0]
        assert streamed.finish_reason == whole.finish_reason
        told = [(call.function.name, call.function.arguments) for call in streamed.message.tool_calls or ()]
        assert told == [(call.function.name, call.function.arguments) for call in whole.message.tool_calls or ()]
        if whole.finish_reason == "tool_calls":
            valid_calls(whole.message.tool_calls)


def test_deltas_of_a_call_come_as_openai_sends_them(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="default",
            messages=user("z"),
            tools=TOOLS,
            tool_choice=NAMED,
            parallel_tool_calls=False,
            max_tokens=400,
            seed=1,
            stream=True,
        )
    )
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    first, *others = deltas
    assert (first.index, first.type, first.function and first.function.name) == (0, "function", "weather")
    assert first.id
    assert all(
        call.id is None and call.type is None and call.function and call.function.name is None for call in others
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert not chunks[-1].choices[0].delta.tool_calls


def test_words_come_where_nothing_is_called(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="default", messages=user("x"), tools=TOOLS, tool_choice="none", max_tokens=9, seed=1
    )
    assert answer.choices[0].message.content
    assert answer.choices[0].message.tool_calls is None


def test_a_round_trip_is_rendered(client: openai.OpenAI) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "stop", "arguments": "{}"}}
    messages: Any = [
        *user("x"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
    ]
    answer = client.chat.completions.create(model="default", messages=messages, tools=TOOLS, max_tokens=5, seed=1)
    assert answer.usage
    assert answer.usage.completion_tokens == 5


FUNCTIONS: Any = [tool["function"] for tool in TOOLS]


def test_functions_are_called_as_older_clients_expect(client: openai.OpenAI) -> None:
    asked: Any = {
        "model": "default",
        "messages": user("y"),
        "functions": FUNCTIONS,
        "function_call": {"name": "weather"},
        "max_tokens": 400,
        "seed": 2,
    }
    (whole,) = client.chat.completions.create(**asked).choices
    assert whole.finish_reason == "function_call"
    assert whole.message.tool_calls is None
    assert whole.message.content is None
    call = whole.message.function_call
    assert call
    assert call.name == "weather"
    jsonschema.validate(json.loads(call.arguments), PARAMETERS)
    chunks = list(client.chat.completions.create(**asked, stream=True))
    first, *others = [made for chunk in chunks if (made := chunk.choices[0].delta.function_call)]
    assert first.name == "weather"
    assert all(other.name is None for other in others)
    assert "".join(each.arguments or "" for each in (first, *others)) == call.arguments
    assert chunks[-1].choices[0].finish_reason == "function_call"
    assert not any(chunk.choices[0].delta.tool_calls for chunk in chunks)


def test_what_a_function_returned_is_rendered_as_a_tool_s_answer(client: openai.OpenAI) -> None:
    """The model sees one conversation, whichever way its client writes it."""
    call = {"name": "stop", "arguments": "{}"}
    old: Any = [
        *user("x"),
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "stop", "content": "done"},
    ]
    new: Any = [
        *user("x"),
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "c", "content": "done"},
    ]
    ask: Any = {"model": "default", "max_tokens": 5, "seed": 1}
    by_function = client.chat.completions.create(messages=old, functions=FUNCTIONS, **ask)
    by_tool = client.chat.completions.create(messages=new, tools=TOOLS, parallel_tool_calls=False, **ask)
    assert by_function.usage
    assert by_tool.usage
    assert by_function.usage.prompt_tokens == by_tool.usage.prompt_tokens
    assert by_function.choices[0].message.content == by_tool.choices[0].message.content


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"functions": FUNCTIONS, "tools": TOOLS}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"functions": FUNCTIONS, "function_call": "required"}, "function_call"),
        ({"functions": FUNCTIONS, "function_call": {"name": "nobody"}}, "function_call"),
        ({"functions": [{"parameters": {}}]}, "functions[0].name"),
        ({"messages": [{"role": "function", "name": "stop", "content": "x"}]}, "messages[0].name"),
        ({"messages": [{"role": "tool", "tool_call_id": "c", "content": "x"}]}, "messages[0].tool_call_id"),
    ],
    ids=str,
)
def test_what_is_wrong_with_calls_is_refused_by_name(client: openai.OpenAI, body: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        client.chat.completions.create(**{"model": "default", "messages": user("x")} | body)  # type: ignore[call-overload]
    assert refusal.value.param == param


def test_an_answer_s_timings_tell_what_its_grammar_took(client: openai.OpenAI) -> None:
    asked: Any = {"model": "default", "messages": user("x"), "max_tokens": 20, "seed": 1}
    timings: Any = {"return_timings": True}
    held = client.chat.completions.create(**asked, extra_body=timings | {"guided_choice": ["one", "two"]}).usage
    free = client.chat.completions.create(**asked, extra_body=timings).usage
    assert held
    assert free
    taken = held.model_dump()["timings"]
    assert taken["grammar_compile_ms"] > 0
    assert taken["grammar_mask_ms"] > 0
    assert "grammar_mask_ms" not in free.model_dump()["timings"]


class Person(BaseModel):
    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=120)
    likes: list[Literal["tea", "rain"]] = Field(max_length=2)


def test_an_answer_parses_as_the_model_it_was_asked_for(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="default", messages=user("x"), response_format=Person, max_tokens=400, seed=3
    )
    assert isinstance(answer.choices[0].message.parsed, Person)


def test_with_tools_and_a_form_an_answer_is_one_of_them(client: openai.OpenAI) -> None:
    for seed in range(6):
        answer = client.chat.completions.parse(
            model="default",
            messages=user("x"),
            response_format=Person,
            tools=TOOLS_STRICT,
            parallel_tool_calls=False,
            max_tokens=900,
            seed=seed,
        )
        message = answer.choices[0].message
        assert bool(message.tool_calls) != isinstance(message.parsed, Person)


TOOLS_STRICT: Any = [
    {"type": "function", "function": {"name": "stop", "strict": True, "parameters": STOP | {"required": []}}}
]


@pytest.mark.parametrize(
    ("extra", "answers"),
    [
        ({"guided_choice": ["yes", "no"]}, ("yes", "no")),
        ({"structured_outputs": {"regex": "[ab]c"}}, ("ac", "bc")),
        ({"grammar": 'root ::= "x" | "y"'}, ("x", "y")),
        ({"json_schema": {"type": "boolean"}}, ("true", "false")),
        ({"guided_json": {"enum": [1, 2]}}, ("1", "2")),
        ({"guided_json": '{"enum": [1, 2]}'}, ("1", "2")),
        ({"guided_regex": "u+v{2}", "seed": 1}, tuple("u" * n + "vv" for n in range(1, 19))),
        ({"guided_grammar": 'start: "p" | "q"'}, ("p", "q")),
        ({"structured_outputs": {"json": {"const": "c"}}}, ('"c"',)),
        ({"structured_outputs": {"choice": ["m", "n"]}}, ("m", "n")),
        ({"structured_outputs": {"grammar": 'root ::= "g"'}}, ("g",)),
        ({"response_format": {"type": "json_object", "schema": {"type": "null"}}}, ("null",)),
    ],
    ids=str,
)
def test_other_servers_words_for_forms_are_understood(
    client: openai.OpenAI, extra: dict[str, Any], answers: tuple[str, ...]
) -> None:
    chat = client.chat.completions.create(model="default", messages=user("x"), extra_body=extra, max_tokens=20)
    text = client.completions.create(model="default", prompt="x", extra_body=extra, max_tokens=20)
    assert chat.choices[0].message.content in answers
    assert text.choices[0].text in answers


def test_langchain_s_structured_output_and_tools(client: openai.OpenAI) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="default", base_url=str(client.base_url), api_key="none", max_tokens=600, seed=2)  # type: ignore
    for method in ("json_schema", "function_calling"):
        assert isinstance(model.with_structured_output(Person, method=method).invoke("x"), Person), method
    bound = model.bind_tools(TOOLS, tool_choice="weather", parallel_tool_calls=False)
    (call,) = bound.invoke("x").tool_calls
    jsonschema.validate(call["args"], PARAMETERS)
