"""Answers held to grammars by the real default model, offline."""

import json
import re
from collections.abc import Iterator

import jsonschema
import pytest

from penstock import LLM, SamplingParams
from penstock.errors import RequestError
from penstock.runtime.core.batch import FinishReason
from tests.real import DEFAULT, model_path

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["tea", "rain", "long walks"]}, "maxItems": 2},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
ASK = [{"role": "user", "content": "Tell me of a person."}]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    model_path(DEFAULT)
    with LLM("default", max_context=512) as model:
        yield model


def test_an_answer_is_an_instance_of_its_schema(llm: LLM) -> None:
    completion = llm.chat(ASK, SamplingParams(temperature=0.0, max_tokens=100, schema=PERSON))
    jsonschema.validate(json.loads(completion.text), PERSON)
    choice = completion.choices[0]
    assert choice.finish is not None
    assert choice.finish.reason is FinishReason.STOP
    assert len(choice.token_ids) < 100


def test_a_batch_of_many_kinds_is_answered_as_one_by_one(llm: LLM) -> None:
    every = [
        SamplingParams(temperature=0.9, seed=1, max_tokens=60, schema=PERSON, n=2),
        SamplingParams(temperature=0.0, max_tokens=8),
        SamplingParams(temperature=0.0, max_tokens=20, regex=r"\d{3}-\d{4}"),
        SamplingParams(temperature=0.7, seed=2, max_tokens=20, choice=("yes", "no"), logprobs=2),
        SamplingParams(
            temperature=0.0, max_tokens=30, regex="[a-z]+( [a-z]+){2}", repetition_penalty=1.3, min_tokens=2
        ),
        SamplingParams(temperature=0.0, max_tokens=8, choice=("red", "blue"), logit_bias=((11, 5.0),)),
    ]
    prompts = [f"Question {number}: who are you? Answer: " for number in range(len(every))]
    together = llm.generate(prompts, every)
    for prompt, params, completion in zip(prompts, every, together):
        (alone,) = llm.generate(prompt, params)
        assert [choice.text for choice in alone.choices] == [choice.text for choice in completion.choices]
    assert re.fullmatch(r"\d{3}-\d{4}", together[2].text)
    assert together[3].text in ("yes", "no")
    assert re.fullmatch("[a-z]+( [a-z]+){2}", together[4].text)
    for choice in together[0].choices:
        if choice.finish is not None and choice.finish.reason is FinishReason.STOP:
            jsonschema.validate(json.loads(choice.text), PERSON)


def test_forced_tokens_need_fewer_steps(llm: LLM) -> None:
    words = "a sentence that the model would never have come up with by itself"
    before = llm.engine.num_steps
    (completion,) = llm.generate("Say: ", SamplingParams(choice=(words,), max_tokens=60))
    assert completion.text == words
    assert llm.engine.num_steps - before < len(completion.choices[0].token_ids)


def test_what_cannot_be_used_is_refused_by_name(llm: LLM) -> None:
    with pytest.raises(RequestError, match='"not"'):
        llm.generate("x", SamplingParams(schema={"not": {}}))


def test_tools_are_called_as_their_schemas_say(llm: LLM) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    tools = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
    ask = [{"role": "user", "content": "How is the weather in Rome?"}]
    completion = llm.chat(ask, SamplingParams(temperature=0.0, max_tokens=80), tools=tools, requires_call=True)
    calls = completion.choices[0].tool_calls
    assert calls
    assert completion.text == ""
    assert calls[0].name == "weather"
    jsonschema.validate(json.loads(calls[0].arguments), schema)
