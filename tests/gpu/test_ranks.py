"""Ranks in processes of their own on one card: the tokens of one process, with steps recorded, and a lost rank is replaced."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from penstock import LLM, SamplingParams
from tests.gpu import machine
from tests.gpu.checkpoints import EXPERTS, REAL_SHAPE, TINY, write_checkpoint
from tests.gpu.machine import prompts

PACKAGES = ("msgspec", "zmq", "llguidance", "starlette", "uvicorn", "websockets", "python_multipart")
"""What a server and its ranks talk by; all else here needs torch and triton alone."""
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
DRAWN = SamplingParams(seed=5, max_tokens=16, top_p=0.9, frequency_penalty=0.4, ignore_eos=True)
SETTINGS: dict[str, Any] = {
    "max_context": 256,
    "max_batch_tokens": 128,
    "max_sequences": 16,
    "num_blocks": 128,
    "dtype": "float32",
}
LENGTHS = (3, 17, 140, 40, 90, 33)
"""One is computed in parts, beside answers that go on."""


@cache
def folder(name: str) -> str:
    config = {"tiny": TINY, "real": REAL_SHAPE, "experts": EXPERTS}[name]
    kept = tempfile.TemporaryDirectory()
    KEPT.append(kept)
    return str(write_checkpoint(Path(kept.name), config))


KEPT: list[tempfile.TemporaryDirectory[str]] = []


@cache
def alone(name: str) -> list[list[int]]:
    return answers(name)


def answers(name: str, **asked: int) -> list[list[int]]:
    device = "cpu" if machine.IS_DRY else "cuda"
    given = [tuple(token % 2048 for token in prompt) for prompt in prompts(*LENGTHS)]
    params = [DRAWN if number % 3 == 2 else GREEDY for number in range(len(given))]
    with LLM(folder(name), device=device, share_gpu=bool(asked), **SETTINGS, **asked) as llm:
        return [list(each.choices[0].token_ids) for each in llm.generate(given, params)]


def assert_alike(name: str, **asked: int) -> None:
    """A product that is summed up in another order may turn one text where two tokens are as likely."""
    mine, theirs = answers(name, **asked), alone(name)
    different = [number for number, pair in enumerate(zip(mine, theirs, strict=True)) if pair[0] != pair[1]]
    assert len(different) <= (0 if "pipeline" in asked else 1), f"{different}: {mine} {theirs}"


def test_tensor_ranks_on_one_card_give_the_tokens_of_one_process() -> None:
    assert_alike("tiny", tensor=2)


def test_stages_on_one_card_give_the_tokens_of_one_process() -> None:
    assert_alike("tiny", pipeline=2)


def test_experts_dealt_over_one_card_give_the_tokens_of_one_process() -> None:
    assert_alike("experts", expert=2)
    assert_alike("experts", tensor=2, expert=2)


def test_a_model_of_real_shape_over_one_card_gives_the_tokens_of_one_process() -> None:
    assert_alike("real", tensor=2)
    assert_alike("real", pipeline=2)


@contextmanager
def served(*flags: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    settings = (
        "--max-context",
        "256",
        "--max-sequences",
        "16",
        "--num-blocks",
        "128",
        "--dtype",
        "float32",
        "--port",
        "0",
    )
    device = "cpu" if machine.IS_DRY else "cuda"
    command = [sys.executable, "-m", "penstock", "serve", folder("tiny"), "--device", device, *settings, *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        said: list[str] = []
        for line in process.stdout:
            said.append(line)
            found = re.search(r"http://[\d.]+:\d+", line)
            if found:
                yield found[0], process
                return
        raise AssertionError(f"the server did not come up: {''.join(said)}")
    finally:
        process.terminate()
        process.wait(30)


def streamed(url: str, *, kills: int | None = None) -> list[str]:
    """The pieces of a greedy answer; after the third a process is killed."""
    body = {
        "model": "default",
        "prompt": [5, 6, 7],
        "max_tokens": 40,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
    }
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    pieces: list[str] = []
    with urllib.request.urlopen(request, timeout=90) as answer:
        for line in answer:
            data = line.decode().removeprefix("data: ").strip()
            if data.startswith("{"):
                pieces.append(json.loads(data)["choices"][0]["text"])
                if len(pieces) == 3 and kills is not None:
                    os.kill(kills, signal.SIGKILL)
    return pieces


def ranks_below(pid: int) -> list[int]:
    """Processes of ranks that this one began, itself or by others."""
    found: list[int] = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child)] if b"rank_worker" in Path(f"/proc/{child}/cmdline").read_bytes() else []
        found += ranks_below(int(child))
    return found


def test_a_rank_that_is_killed_on_a_shared_card_is_replaced_and_the_answer_goes_on() -> None:
    with served("--tensor", "2", "--share-gpu") as (url, process):
        undisturbed = "".join(streamed(url))
        (rank,) = ranks_below(process.pid)
        assert "".join(streamed(url, kills=rank)) == undisturbed
        assert ranks_below(process.pid) != [rank]
