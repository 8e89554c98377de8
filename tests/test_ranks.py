"""Ranks in processes of their own, on real models: the tokens of one process, and nothing lost when a rank is."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import LLM, SamplingParams
from penstock.assembly.parallel.ranks import check_machine
from penstock.config import configure
from penstock.errors import ConfigError
from penstock.offline.llm import Prompt
from penstock.runtime.execution.device import CudaDevice
from penstock.runtime.execution.parallel.machine.processes import SILENT_S
from tests.real import DEFAULT, GEMMA, model_path
from tests.server.serving import Server, serving

PROMPTS = ["The capital of France is", "def fib(n):", "Water is made of", "Once upon a time, in a land far away,"]
LONG = " ".join(f"{number}," for number in range(120))
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
QWEN = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
SETTINGS: dict[str, Any] = {"max_context": 512, "max_batch_tokens": 256}
FLOATS = {"dtype": "float32"}
PACKED = {"dtype": "auto"}
"""As the file has them."""


def answers(model: str, prompts: Sequence[Prompt], params: SamplingParams, **asked: Any) -> list[list[int]]:
    with LLM(model, **SETTINGS, **asked) as llm:
        return [list(completion.choices[0].token_ids) for completion in llm.generate(prompts, params)]


@pytest.mark.parametrize("weights", [pytest.param(FLOATS, marks=pytest.mark.slow), PACKED], ids=["floats", "packed"])
def test_tensor_ranks_give_the_tokens_of_one_process(weights: dict[str, str]) -> None:
    """Uneven parts: three key-value heads over two ranks; a prompt in chunks among others."""
    model = str(model_path(DEFAULT))
    prompts = [*PROMPTS[:2], LONG]
    assert answers(model, prompts, GREEDY, tensor=2, **weights) == answers(model, prompts, GREEDY, **weights)


@pytest.mark.slow
@pytest.mark.parametrize("weights", [FLOATS, PACKED], ids=["floats", "packed"])
@pytest.mark.parametrize("name", [DEFAULT, GEMMA, QWEN])
@pytest.mark.parametrize("parallel", [{"tensor": 2}, {"pipeline": 2}, {"tensor": 2, "pipeline": 2}], ids=str)
def test_two_hundred_prompts(name: str, parallel: dict[str, int], weights: dict[str, str]) -> None:
    """Packed numbers are rounded after every sum: a tie falls either way more often than in floats."""
    if name == QWEN:
        path = Path(os.environ.get("PENSTOCK_TEST_MODELS", "/nowhere")) / QWEN
        if not path.exists():
            pytest.skip(f"{QWEN} is not here; name its folder in PENSTOCK_TEST_MODELS")
    else:
        path = model_path(name)
    prompts = [f"{prompt} {number}" for number in range(50) for prompt in PROMPTS]
    params = SamplingParams(temperature=0.0, max_tokens=6)
    alone = answers(str(path), prompts, params, **weights)
    together = answers(str(path), prompts, params, **parallel, **weights)
    least = 199 if weights == FLOATS else 185
    assert sum(mine == theirs for mine, theirs in zip(alone, together)) >= least, "a tie may fall either way"


@pytest.mark.slow
def test_where_long_greedy_answers_of_ranks_are_those_of_one_process() -> None:
    """Stages add in the order of one process, packed weights or not. Tensor ranks add their parts of a sum last: in floats that
    changes the last bit of a score; packed weights round what follows from it, so an answer may part, and only where one
    process hardly preferred its own token."""
    model = str(model_path(DEFAULT))
    params = SamplingParams(temperature=0.0, max_tokens=120, ignore_eos=True, logprobs=2)

    def tokens_and_margins(**asked: Any) -> list[tuple[list[int], list[float]]]:
        with LLM(model, **SETTINGS, **asked) as llm:
            choices = [completion.choices[0] for completion in llm.generate(PROMPTS, params)]
        return [(list(one.token_ids), [each.top[0][1] - each.top[1][1] for each in one.logprobs]) for one in choices]

    alone = tokens_and_margins(**PACKED)
    assert [tokens for tokens, _ in tokens_and_margins(pipeline=2, **PACKED)] == [tokens for tokens, _ in alone]
    together, again = (tokens_and_margins(tensor=2, **PACKED) for _ in range(2))
    assert together == again, "ranks add in one order, every time"
    for (mine, margins), (theirs, _) in zip(alone, together, strict=True):
        parts = next((place for place, pair in enumerate(zip(mine, theirs, strict=True)) if pair[0] != pair[1]), None)
        assert parts is None or margins[parts] < 0.1
    floats = [tokens for tokens, _ in tokens_and_margins(**FLOATS)]
    for ranks in ({"tensor": 2}, {"pipeline": 2}):
        assert [tokens for tokens, _ in tokens_and_margins(**ranks, **FLOATS)] == floats


def test_an_engine_that_cannot_be_made_leaves_no_rank_behind() -> None:
    with pytest.raises(ConfigError, match="--max-context"):
        LLM(str(model_path(DEFAULT)), tensor=2, max_context=1 << 20)
    listed = subprocess.run(["ps", "-eo", "ppid,args"], capture_output=True, text=True, check=True).stdout
    assert not re.findall(rf"^ *{os.getpid()} .*rank_worker", listed, re.MULTILINE)


def test_what_cannot_be_cut_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(
        ConfigError, match="--tensor 4 cannot share 9 attention heads of 3 key-value heads; choose 3 or 9"
    ):
        LLM(str(model_path(DEFAULT)), tensor=4)


def test_fewer_gpus_than_ranks_are_refused_unless_ranks_may_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    config = configure(None, tensor=2)
    with pytest.raises(ConfigError, match=r"takes 2 GPUs of a machine and this one has 1; .*--share-gpu"):
        check_machine(config, CudaDevice())
    check_machine(configure(config, share_gpu=True), CudaDevice())
    check_machine(configure(config, tensor=1), CudaDevice())


def ranks_of(server: Server) -> list[int]:
    """Processes of the engine's other ranks."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    found = re.findall(rf"^ *(\d+) +{server.engine_pid} .*rank_worker", listed, re.MULTILINE)
    return [int(pid) for pid in found]


def completed(server: Server, *, kill: signal.Signals | None = None, rank: int | None = None) -> str:
    """A streamed answer; a rank, the engine's other one unless named, is sent a signal after its third piece."""
    body = {"model": "default", "prompt": PROMPTS[3], "max_tokens": 24, "temperature": 0, "stream": True}
    pieces: list[str] = []
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=300.0) as answer:
        for line in answer.iter_lines():
            data = line.removeprefix("data: ")
            if not data.startswith("{"):
                continue
            pieces.append(json.loads(data)["choices"][0]["text"])
            if len(pieces) == 3 and kill is not None:
                os.kill(ranks_of(server)[0] if rank is None else rank, kill)
    return "".join(pieces)


@pytest.mark.slow
def test_a_rank_that_dies_or_hangs_is_replaced_and_the_answer_goes_on() -> None:
    flags = ("--tensor", "2", "--max-context", "512")
    with serving(*flags, model=str(model_path(DEFAULT)), is_real=True) as server:
        undisturbed = completed(server)
        assert completed(server, kill=signal.SIGKILL) == undisturbed
        assert server.metric("penstock_engine_restarts_total") == 1
        (stopped,) = ranks_of(server)
        assert completed(server, kill=signal.SIGSTOP) == undisturbed
        assert server.metric("penstock_engine_restarts_total") == 2
        (rank,) = ranks_of(server)
        assert rank != stopped
        assert not Path(f"/proc/{stopped}").exists(), "the one that hung is gone"
        assert f"was silent for {SILENT_S:.0f} s" in server.errors.read_text()
        assert server.stop() == 0
