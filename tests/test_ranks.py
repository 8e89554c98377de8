"""Ranks in processes of their own, on real models: the tokens of one process, and nothing lost when a rank is."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from penstock import LLM, SamplingParams
from penstock.errors import ConfigError
from tests.real import DEFAULT, GEMMA, model_path
from tests.server.serving import Server, serving

PROMPTS = ["The capital of France is", "def fib(n):", "Water is made of", "Once upon a time, in a land far away,"]
LONG = " ".join(f"{number}," for number in range(120))
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
QWEN = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
SETTINGS = {"dtype": "float32", "max_context": 512, "max_batch_tokens": 256}


def answers(model: str, prompts: list[str], params: SamplingParams, **parallel: int) -> list[list[int]]:
    with LLM(model, **SETTINGS, **parallel) as llm:
        return [list(completion.choices[0].token_ids) for completion in llm.generate(prompts, params)]


def test_tensor_ranks_give_the_tokens_of_one_process() -> None:
    """Uneven parts: three key-value heads over two ranks; a prompt in chunks among others."""
    model = str(model_path(DEFAULT))
    prompts = [*PROMPTS[:2], LONG]
    assert answers(model, prompts, GREEDY, tensor=2) == answers(model, prompts, GREEDY)


@pytest.mark.slow
@pytest.mark.parametrize("name", [DEFAULT, GEMMA, QWEN])
@pytest.mark.parametrize("parallel", [{"tensor": 2}, {"pipeline": 2}, {"tensor": 2, "pipeline": 2}], ids=str)
def test_two_hundred_prompts(name: str, parallel: dict[str, int]) -> None:
    if name == QWEN:
        path = Path(os.environ.get("PENSTOCK_TEST_MODELS", "/nowhere")) / QWEN
        if not path.exists():
            pytest.skip(f"{QWEN} is not here; name its folder in PENSTOCK_TEST_MODELS")
    else:
        path = model_path(name)
    prompts = [f"{prompt} {number}" for number in range(50) for prompt in PROMPTS]
    params = SamplingParams(temperature=0.0, max_tokens=6)
    alone, together = answers(str(path), prompts, params), answers(str(path), prompts, params, **parallel)
    assert sum(mine == theirs for mine, theirs in zip(alone, together)) >= 199, "a tie may fall either way"


def test_what_cannot_be_cut_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(
        ConfigError, match="--tensor 4 cannot share 9 attention heads of 3 key-value heads; choose 3 or 9"
    ):
        LLM(str(model_path(DEFAULT)), tensor=4)


def ranks_of(server: Server) -> list[int]:
    """Processes of the engine's other ranks."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    found = re.findall(rf"^ *(\d+) +{server.engine_pid} .*rank_worker", listed, re.MULTILINE)
    return [int(pid) for pid in found]


def completed(server: Server, *, kill: signal.Signals | None = None) -> str:
    """A streamed answer; a rank is sent a signal after its third piece."""
    body = {"model": "default", "prompt": PROMPTS[3], "max_tokens": 24, "temperature": 0, "stream": True}
    pieces: list[str] = []
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=300.0) as answer:
        for line in answer.iter_lines():
            data = line.removeprefix("data: ")
            if not data.startswith("{"):
                continue
            pieces.append(json.loads(data)["choices"][0]["text"])
            if len(pieces) == 3 and kill is not None:
                (rank,) = ranks_of(server)
                os.kill(rank, kill)
    return "".join(pieces)


def test_a_rank_that_is_killed_is_replaced_and_the_answer_goes_on() -> None:
    flags = ("--tensor", "2", "--dtype", "float32", "--max-context", "512")
    with serving(*flags, model=str(model_path(DEFAULT)), is_real=True) as server:
        undisturbed = completed(server)
        assert completed(server, kill=signal.SIGKILL) == undisturbed
        assert server.metric("penstock_engine_restarts_total") == 1
        assert len(ranks_of(server)) == 1
        assert server.stop() == 0
