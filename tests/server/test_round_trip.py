"""A model that was made for tools and code, over HTTP: it calls the right tool, reads what came back, and says it; it edits."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.serving import Server, serving, user
from tests.server.test_clients import run

QWEN = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather in a city now.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CALENDAR: Any = {
    "type": "function",
    "function": {
        "name": "add_event",
        "description": "Puts an event into the calendar.",
        "parameters": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]},
    },
}
QUESTION = "What is the weather in Paris right now?"

AGENTS = """
import asyncio, json, sys
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
called = []

@function_tool
def get_weather(city: str) -> str:
    "Tells the weather in a city now."
    called.append(city)
    return "17 degrees and rain"

agent = Agent(name="helper", instructions="Answer in one sentence.", tools=[get_weather],
              model=OpenAIChatCompletionsModel(model="default", openai_client=client),
              model_settings=ModelSettings(temperature=0.0, max_tokens=120))
said = asyncio.run(Runner.run(agent, "What is the weather in Paris right now?", max_turns=4))
print(json.dumps({"called": called, "said": said.final_output}))
"""


@pytest.fixture(scope="module")
def coder() -> Iterator[Server]:
    path = Path(os.environ.get("PENSTOCK_TEST_MODELS", "/nowhere")) / QWEN
    if not path.exists():
        pytest.skip(f"{QWEN} is not here; name its folder in PENSTOCK_TEST_MODELS")
    with serving("--max-context", "4096", model=str(path), is_real=True) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_question_a_call_its_result_an_answer(coder: Server, is_stream: bool) -> None:
    client = coder.sdk()
    ask: Any = {"model": "default", "tools": [WEATHER, CALENDAR], "temperature": 0.0, "max_tokens": 120}
    messages = user(QUESTION)
    if is_stream:
        with client.chat.completions.stream(messages=messages, **ask) as stream:
            choice: Any = stream.get_final_completion().choices[0]
    else:
        choice = client.chat.completions.create(messages=messages, **ask).choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"].startswith("Paris")
    told = {
        "id": call.id,
        "type": "function",
        "function": {"name": call.function.name, "arguments": call.function.arguments},
    }
    messages += [
        {"role": "assistant", "content": None, "tool_calls": [told]},
        {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 17, "sky": "rain"}'},
    ]
    answer = client.chat.completions.create(messages=messages, **ask).choices[0]
    assert answer.finish_reason == "stop"
    assert "17" in (answer.message.content or "")


@pytest.mark.slow
def test_an_agent_gets_its_answer(coder: Server) -> None:
    found = run(AGENTS, coder.url)
    assert any(city.startswith("Paris") for city in found["called"])
    assert "17" in found["said"]


AIDER = shutil.which(os.environ.get("AIDER", "aider"))
AIDER_FLAGS = (
    "--model=openai/default", "--edit-format=whole", "--map-tokens=0", "--no-git", "--yes-always", "--no-pretty",
    "--no-stream", "--no-show-model-warnings", "--no-check-update", "--analytics-disable", "--no-detect-urls",
    "--no-suggest-shell-commands",
)  # fmt: skip
GREETING = 'def greeting(name):\n    return "Hello, " + name\n'
EDIT = "Replace the word Hello by the word Goodbye. Change nothing else."


@pytest.mark.slow
@pytest.mark.skipif(
    AIDER is None, reason="needs aider: pip install aider-chat in an environment of its own, AIDER=path"
)
def test_aider_edits_a_file(coder: Server, tmp_path: Path) -> None:
    (tmp_path / "greeting.py").write_text(GREETING)
    done = subprocess.run(
        [str(AIDER), *AIDER_FLAGS, f"--message={EDIT}", "greeting.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            "OPENAI_API_BASE": f"{coder.url}/v1",
            "OPENAI_API_KEY": "none",
            "HOME": str(tmp_path),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    check = "import greeting; assert greeting.greeting('you') == 'Goodbye, you'"
    checked = subprocess.run([sys.executable, "-c", check], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, f"{(tmp_path / 'greeting.py').read_text()}\n{checked.stderr}\n{done.stdout}"
