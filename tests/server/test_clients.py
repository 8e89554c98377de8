"""Programs that people use, unchanged, through the dialects they speak. Each in a process of its own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.server.serving import Server, chat_text

LITELLM = """
import json, sys
import litellm

url, mode = sys.argv[1], sys.argv[2]
base = {"anthropic": url, "ollama_chat": url}[mode]
ask = {"model": mode + "/default", "api_base": base, "api_key": "none", "num_retries": 0,
       "messages": [{"role": "user", "content": "hello"}], "temperature": 0.0, "max_tokens": 8}
whole = litellm.completion(**ask)
chunks = list(litellm.completion(**ask, stream=True))
print(json.dumps({
    "whole": whole.choices[0].message.content,
    "usage": whole.usage.completion_tokens,
    "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
}))
"""

LANGCHAIN = """
import json, sys

url, mode = sys.argv[1], sys.argv[2]
if mode == "anthropic":
    from langchain_anthropic import ChatAnthropic
    chat = ChatAnthropic(model_name="default", base_url=url, api_key="none", max_tokens_to_sample=8, max_retries=0,
                         model_kwargs={"extra_body": {"temperature": 0}})
else:
    from langchain_ollama import ChatOllama
    chat = ChatOllama(model="default", base_url=url, temperature=0, num_predict=8)
whole = chat.invoke("hello")
print(json.dumps({
    "whole": whole.text if isinstance(whole.text, str) else whole.text(),
    "usage": whole.usage_metadata["output_tokens"],
    "streamed": "".join(part.content if isinstance(part.content, str) else
                        "".join(block.get("text", "") for block in part.content) for part in chat.stream("hello")),
}))
"""


def run(script: str, *words: str, **environment: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *words],
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "*", **environment},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


EXPECTED = {"whole": chat_text("hello", 8), "usage": 8, "streamed": chat_text("hello", 8)}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["anthropic", "ollama_chat"])
def test_litellm_speaks_these_dialects_too(server: Server, mode: str) -> None:
    assert run(LITELLM, server.url, mode) == EXPECTED


@pytest.mark.parametrize("mode", ["anthropic", "ollama"])
def test_langchain_speaks_to_us(server: Server, mode: str) -> None:
    assert run(LANGCHAIN, server.url, mode) == EXPECTED


NODE = """
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";
import { Ollama } from "ollama";
import { generateText, streamText } from "ai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";

const url = process.argv[2];
const messages = [{ role: "user", content: "hello" }];
const found = {};
const openai = new OpenAI({ baseURL: url + "/v1", apiKey: "none", maxRetries: 0 });
found.openai = (await openai.chat.completions.create({ model: "default", messages, max_tokens: 8, temperature: 0 }))
  .choices[0].message.content;
found.responses = (await openai.responses.create({ model: "default", input: "hello", max_output_tokens: 8, temperature: 0 }))
  .output_text;
const anthropic = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
found.anthropic = await anthropic.messages
  .stream({ model: "default", messages, max_tokens: 8, temperature: 0 }).finalText();
const ollama = new Ollama({ host: url });
let text = "";
const options = { num_predict: 8, temperature: 0 };
for await (const part of await ollama.chat({ model: "default", messages, stream: true, options }))
  text += part.message.content;
found.ollama = text;
const provider = createOpenAICompatible({ name: "penstock", baseURL: url + "/v1" });
const asked = { model: provider("default"), prompt: "hello", maxOutputTokens: 8, temperature: 0 };
found.ai = (await generateText(asked)).text;
found.ai_stream = "";
for await (const part of streamText(asked).textStream)
  found.ai_stream += part;
console.log(JSON.stringify(found));
"""
NODE_PACKAGES = ("openai", "@anthropic-ai/sdk", "ollama", "ai", "@ai-sdk/openai-compatible")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")
def test_clients_of_node_speak_to_us(server: Server, tmp_path: Path) -> None:
    subprocess.run(["npm", "install", "--silent", "--prefix", tmp_path, *NODE_PACKAGES], check=True, timeout=600)
    script = tmp_path / "ask.mjs"
    script.write_text(NODE)
    done = subprocess.run(["node", script, server.url], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout).values()) == {chat_text("hello", 8)}


@pytest.mark.slow
def test_the_llm_command_speaks_to_us(server: Server, tmp_path: Path) -> None:
    pytest.importorskip("llm", reason="needs the llm command")
    model = f"- model_id: ours\n  model_name: default\n  api_base: {server.url}/v1\n"
    (tmp_path / "extra-openai-models.yaml").write_text(model)
    words = [
        "-m",
        "llm",
        "prompt",
        "-m",
        "ours",
        "--key",
        "none",
        "-o",
        "max_tokens",
        "8",
        "-o",
        "temperature",
        "0",
        "hello",
    ]
    for extra in ([], ["--no-stream"]):
        done = subprocess.run(
            [sys.executable, *words, *extra],
            env={**os.environ, "LLM_USER_PATH": str(tmp_path)},
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.decode().rstrip("\n") == chat_text("hello", 8)
