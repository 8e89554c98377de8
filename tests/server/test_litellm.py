"""LiteLLM, which many agents call models through, understands our answers and our errors.

It runs in a process of its own: it changes its interpreter when it is imported, and would look for prices on the network.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.server.serving import MODEL, Server, chat_text

SCRIPT = """
import asyncio, json, sys
import litellm

base = {"model": "openai/" + sys.argv[2], "api_base": sys.argv[1] + "/v1", "api_key": "none", "num_retries": 0}
ask = base | {"messages": [{"role": "user", "content": "hello"}], "temperature": 0.0, "max_tokens": 8}

def name_of_error(**options):
    try:
        litellm.completion(**(ask | options))
    except Exception as error:
        return type(error).__name__

whole = litellm.completion(**ask)
stream = litellm.completion(**ask, stream=True, stream_options={"include_usage": True})
chunks = list(stream)
rebuilt = litellm.stream_chunk_builder(chunks)
other = asyncio.run(litellm.acompletion(**ask))
print(json.dumps({
    "whole": whole.choices[0].message.content,
    "usage": whole.usage.completion_tokens,
    "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
    "rebuilt": rebuilt.choices[0].message.content,
    "rebuilt_usage": rebuilt.usage.completion_tokens,
    "finish": rebuilt.choices[0].finish_reason,
    "async": other.choices[0].message.content,
    "too_long": name_of_error(messages=[{"role": "user", "content": "x" * 100_000}]),
    "wrong": name_of_error(temperature=5.0),
    "unknown": name_of_error(model="openai/nobody"),
}))
"""


@pytest.mark.slow
def test_litellm_speaks_to_us(server: Server) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, server.url, MODEL],
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    text = chat_text("hello", 8)
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "whole": text,
        "usage": 8,
        "streamed": text,
        "rebuilt": text,
        "rebuilt_usage": 8,
        "finish": "length",
        "async": text,
        "too_long": "ContextWindowExceededError",
        "wrong": "BadRequestError",
        "unknown": "NotFoundError",
    }
