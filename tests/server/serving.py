"""A server to test: started as people start it, known by what it prints."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai

from penstock.config import EngineConfig
from penstock.runtime.core.request import SamplingParams
from penstock.runtime.engine.client import EngineClient, Facts
from penstock.runtime.text.tokenizer.byte_level import byte_tokenizer
from tests.engine.answers import expected_tokens
from tests.machine import PATIENCE_S

ROOT = Path(__file__).parents[2]
MODEL = "oracle:"
TOKENIZER = byte_tokenizer()
KEY = "test-key-of-some-length"


@dataclass
class Server:
    url: str
    process: subprocess.Popen[str]
    errors: Path
    key: str = ""
    banner: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def http(self, **options: Any) -> httpx.Client:
        """Without the certificates of the world, which take longer to read than most answers to make."""
        return httpx.Client(base_url=self.url, headers=self.headers, timeout=PATIENCE_S, verify=False, **options)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        with self.http() as http:
            return http.post(path, json=body, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        with self.http() as http:
            return http.get(path, **options)

    def sdk(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url + "/v1", api_key=self.key or "none", max_retries=0, **options)

    def async_sdk(self, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.url + "/v1", api_key=self.key or "none", max_retries=0, **options)

    def metric(self, name: str, labels: str = "") -> float:
        found = re.search(
            rf"^{re.escape(name)}\{{[^}}]*{labels}[^}}]*\}} (\S+)$", self.get("/metrics").text, re.MULTILINE
        )
        return float(found.group(1)) if found else 0.0

    @property
    def engine_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = PATIENCE_S) -> int:
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
        return self.process.wait(timeout_s)


@contextmanager
def serving(
    *flags: str,
    model: str = MODEL,
    key: str = "",
    is_real: bool = False,
    options: Sequence[str] = (),
    program: Sequence[str] = ("tests.server.run",),
) -> Iterator[Server]:
    """The server is ended, if it still runs, when the block is left. `is_real`: the command as people run it.

    `options` are Python's own; `program` is the module that serves, and its first words.
    """
    words = [model, "--port", "0", *([] if is_real else ["--num-blocks", "2048"]), *flags]
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder) / "errors"
        with errors.open("w") as file:
            process = start([*options, "-m", *(["penstock", "serve"] if is_real else program), *words], file, key)
        try:
            banner = _read_banner(process, errors)
            url = re.search(r"https?://[^/\s,]+", banner)
            assert url, f"{banner}\n{errors.read_text()}"
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            yield Server(url.group(), process, errors, key, banner, headers)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def start(words: Sequence[str], errors: Any, key: str = "") -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env={**os.environ, "PENSTOCK_API_KEY": key},
    )


def _read_banner(process: "subprocess.Popen[str]", errors: Path) -> str:
    lines: list[str] = []
    assert process.stdout is not None
    timer = threading.Timer(120.0, process.kill)
    timer.start()
    for line in process.stdout:
        lines.append(line)
        if "docs:" in line or "routes on" in line:
            break
    timer.cancel()
    return "".join(lines)


def idle_client(*, max_waiting: int, max_sequences: int) -> EngineClient:
    """A client whose engine was never started: what is decided before an engine is asked needs its facts alone."""
    client = EngineClient([], EngineConfig())
    client.facts = Facts(
        model=MODEL,
        max_context=512,
        vocab_size=256,
        num_blocks=64,
        block_size=16,
        max_sequences=max_sequences,
        max_waiting=max_waiting,
        max_waiting_tokens=1000,
    )
    return client


def render(messages: Sequence[Mapping[str, str]]) -> str:
    """The prompt that a chat becomes."""
    return "".join(f"{one['role']}: {one['content']}\n" for one in messages) + "assistant: "


def oracle_tokens(prompt: str, num_tokens: int, *, choice: int = 0, seed: int | None = None) -> list[int]:
    """What the oracle answers; greedy without a seed."""
    params = SamplingParams(temperature=0.0 if seed is None else 1.0, seed=seed or 0)
    return expected_tokens(tuple(prompt.encode()), params, choice, num_tokens, 256)


def oracle_text(prompt: str, num_tokens: int, *, choice: int = 0, seed: int | None = None) -> str:
    return TOKENIZER.decode(oracle_tokens(prompt, num_tokens, choice=choice, seed=seed))


def chat_text(content: str, num_tokens: int, **options: Any) -> str:
    return oracle_text(render([{"role": "user", "content": content}]), num_tokens, **options)


def user(content: str) -> list[Any]:
    return [{"role": "user", "content": content}]
