"""Libraries that agents are written with, unchanged, over HTTP: their tools, their forms, their loops.

Each in a process of its own, since some change their interpreter when they are imported. The oracle draws at random: whatever
it says, a call has the arguments that its tool takes and a form parses.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.serving import Server, serving
from tests.server.test_clients import run

PERSON = """
import json, sys
from typing import Literal
from pydantic import BaseModel, Field

class Person(BaseModel):
    name: str = Field(max_length=6)
    age: int = Field(ge=0, le=120)
    likes: list[Literal["tea", "rain"]] = Field(max_length=2)

url = sys.argv[1]
"""

AGENTS = (
    PERSON
    + """
import asyncio
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
model = OpenAIChatCompletionsModel(model="default", openai_client=client)
called = []

@function_tool
def weather(city: Literal["Paris", "Rome"]) -> str:
    "The weather in a city."
    called.append(city)
    return "sunny"

settings = ModelSettings(tool_choice="required", parallel_tool_calls=False, max_tokens=300)
caller = Agent(name="caller", model=model, tools=[weather], model_settings=settings)
former = Agent(name="former", model=model, output_type=Person, model_settings=ModelSettings(max_tokens=600))

async def main():
    said = await Runner.run(caller, "How is the weather?", max_turns=12)
    streamed = Runner.run_streamed(former, "Who are you?")
    async for _ in streamed.stream_events():
        pass
    return said, streamed

said, streamed = asyncio.run(main())
print(json.dumps({"called": called, "turns": len(said.raw_responses), "person": streamed.final_output.model_dump()}))
"""
)

PYDANTIC_AI = (
    PERSON
    + """
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel("default", provider=OpenAIProvider(base_url=url + "/v1", api_key="none"))
settings = {"max_tokens": 600, "parallel_tool_calls": False}
found = {}
for output in (ToolOutput, NativeOutput):
    agent = Agent(model, output_type=output(Person), model_settings=settings, retries=0)
    found[output.__name__] = agent.run_sync("Who are you?").output.model_dump()
called = []
agent = Agent(model, output_type=ToolOutput(Person), model_settings=settings)

@agent.tool_plain
def weather(city: Literal["Paris", "Rome"]) -> str:
    "The weather in a city."
    called.append(city)
    return "sunny"

for number in range(20):
    found["with tools"] = agent.run_sync(f"Who are you, number {number}?").output.model_dump()
    if called:
        break
print(json.dumps(found | {"called": called}))
"""
)

LITELLM = (
    PERSON
    + """
import litellm

tool = {"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"],
    "additionalProperties": False}}}
ask = {"model": "openai/default", "api_base": url + "/v1", "api_key": "none", "num_retries": 0, "max_tokens": 300, "seed": 3,
       "messages": [{"role": "user", "content": "hello"}]}
calling = ask | {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
whole = litellm.completion(**calling)
built = litellm.stream_chunk_builder(list(litellm.completion(**calling, stream=True)))
(call,), (streamed,) = whole.choices[0].message.tool_calls, built.choices[0].message.tool_calls
result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
after = litellm.completion(**ask | {"messages": [*ask["messages"], whole.choices[0].message, result], "tools": [tool]})
form = litellm.completion(**ask, response_format=Person)
print(json.dumps({
    "call": [call.function.name, json.loads(call.function.arguments)["city"]],
    "streamed": [streamed.function.name, json.loads(streamed.function.arguments)["city"]],
    "finish": whole.choices[0].finish_reason,
    "after": after.usage.prompt_tokens > whole.usage.prompt_tokens,
    "person": Person.model_validate_json(form.choices[0].message.content).model_dump(),
}))
"""
)

INSTRUCTOR = (
    PERSON
    + """
import instructor
from openai import OpenAI

found = {}
for mode in ("TOOLS", "TOOLS_STRICT", "PARALLEL_TOOLS", "FUNCTIONS", "JSON", "JSON_SCHEMA", "MD_JSON"):
    client = instructor.from_openai(
        OpenAI(base_url=url + "/v1", api_key="none", max_retries=0), mode=getattr(instructor.Mode, mode)
    )
    wanted = Person
    if mode == "PARALLEL_TOOLS":
        from collections.abc import Iterable
        wanted = Iterable[Person]
    extra = {"response_format": {"type": "json_object", "schema": Person.model_json_schema()}} if mode == "JSON" else {}
    extra = {"structured_outputs": {"json": Person.model_json_schema()}} if mode == "MD_JSON" else extra
    extra = {"tool_choice": "required", "parallel_tool_calls": False} if mode == "PARALLEL_TOOLS" else extra
    said = client.chat.completions.create(
        model="default", messages=[{"role": "user", "content": "x"}], response_model=wanted, max_retries=0,
        max_tokens=900, seed=5, extra_body=extra)
    found[mode] = [one.model_dump() for one in said] if mode == "PARALLEL_TOOLS" else said.model_dump()
print(json.dumps(found))
"""
)


@pytest.fixture(scope="module")
def open_server() -> Iterator[Server]:
    with serving("--num-blocks", "2048", is_real=True) as server:
        yield server


def is_person(value: Any) -> bool:
    return set(value) == {"name", "age", "likes"} and 0 <= value["age"] <= 120


@pytest.mark.slow
def test_openai_s_agents_call_tools_and_answer_in_forms(open_server: Server) -> None:
    found = run(AGENTS, open_server.url)
    assert found["called"]
    assert set(found["called"]) <= {"Paris", "Rome"}
    assert found["turns"] > len(found["called"])
    assert is_person(found["person"])


def test_pydantic_ai_gets_its_outputs(open_server: Server) -> None:
    found = run(PYDANTIC_AI, open_server.url)
    assert set(found.pop("called")) <= {"Paris", "Rome"}
    assert set(found) == {"ToolOutput", "NativeOutput", "with tools"}
    assert all(map(is_person, found.values()))


@pytest.mark.slow
def test_litellm_passes_tools_and_forms_through(open_server: Server) -> None:
    found = run(LITELLM, open_server.url)
    assert found["call"] == found["streamed"]
    assert found["finish"] == "tool_calls"
    assert found["after"]
    assert is_person(found["person"])


@pytest.mark.slow
def test_instructor_parses_in_every_mode(open_server: Server, tmp_path: Path) -> None:
    """In a folder of its own: the versions that it wants of others are not those of this environment."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tmp_path), "instructor==1.17.0"]
    subprocess.run(install, check=True, timeout=600, env={**os.environ, "PIP_CONSTRAINT": ""})
    found = run(INSTRUCTOR, open_server.url, PYTHONPATH=str(tmp_path))
    (*others,) = (found[mode] for mode in found if mode != "PARALLEL_TOOLS")
    assert len(others) == 6
    assert all(map(is_person, [*others, *found["PARALLEL_TOOLS"]]))
