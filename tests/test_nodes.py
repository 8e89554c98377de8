"""Ranks of one engine on two machines, here two addresses of one: the same text, nothing lost, faults told at once."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from penstock import LLM
from penstock.config import ParallelConfig, split_address
from penstock.errors import ConfigError
from tests.machine import PATIENCE_S, free_port, wait_until
from tests.machines import reason_against, two_machines
from tests.models.tiny import qwen3_moe
from tests.real import DEFAULT, model_path
from tests.server.serving import KEY, ROOT, serving
from tests.test_ranks import PROMPTS, completed

HERE, THERE = "127.0.0.1", "127.0.0.2"


@contextmanager
def node(address: str, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    words = [sys.executable, "-m", "penstock", "rank", address, "--here", THERE]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=PATIENCE_S)


def rank_of(node: "subprocess.Popen[bytes]") -> int:
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    (pid,) = re.findall(rf"^ *(\d+) +{node.pid} .*rank_worker", listed, re.MULTILINE)
    return int(pid)


@pytest.mark.slow
def test_stages_on_two_machines_give_one_text_and_go_on_when_one_is_lost(tmp_path: Path) -> None:
    model = str(model_path(DEFAULT))
    address = f"{HERE}:{free_port()}"
    flags = ("--pipeline", "2", "--nodes", "2", "--rendezvous", address, "--max-context", "512")
    with node(address, tmp_path) as other, serving(*flags, model=model, is_real=True) as server:
        right = completed(server)
        first = rank_of(other)
        assert completed(server, kill=signal.SIGKILL, rank=first) == right
        assert rank_of(other) != first
        assert server.metric("penstock_engine_restarts_total") == 1
        assert server.stop() == 0
        assert other.poll() is None, "it waits for the next engine"
    with serving("--max-context", "512", model=model, is_real=True) as alone:
        assert completed(alone) == right, PROMPTS[3]


def write_mixture(folder: Path) -> Path:
    """A mixture of six experts of random numbers, over a vocabulary of bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    qwen3_moe(vocab_size=len(alphabet), num_hidden_layers=4).save(folder)
    words.save(str(folder / "tokenizer.json"))
    return folder


LAYOUTS = {"dense": ("--tensor", "2", "--pipeline", "2"), "experts": ("--expert", "2", "--pipeline", "2")}


@pytest.mark.slow
@pytest.mark.skipif(bool(reason_against()), reason=reason_against() or "there can be")
@pytest.mark.parametrize("kind", LAYOUTS)
def test_ranks_on_two_machines_with_a_network_between_them_give_the_text_of_one(kind: str, tmp_path: Path) -> None:
    """Two network namespaces: nothing but the bridge joins them, so what is bound to a loopback is not found."""
    model = str(model_path(DEFAULT) if kind == "dense" else write_mixture(tmp_path))
    rest = ("--max-context", "256", "--dtype", "float32", "--api-key", KEY)
    with ExitStack() as stack:
        first, second = stack.enter_context(two_machines())
        address = f"{first.address}:29511"
        spread = ["--nodes", "2", "--rendezvous", address, "--host", first.address, "--port", "8000"]
        words = [sys.executable, "-m", "penstock"]
        stack.enter_context(running(second.command([*words, "rank", address, "--here", second.address])))
        served = first.command([*words, "serve", model, *LAYOUTS[kind], *spread, *rest])
        process = stack.enter_context(running(served))
        together = said(f"http://{first.address}:8000", process)
    port = free_port()
    with running([*words, "serve", model, "--port", str(port), *rest]) as process:
        assert said(f"http://127.0.0.1:{port}", process) == together


@contextmanager
def running(words: list[str]) -> Iterator["subprocess.Popen[bytes]"]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def said(url: str, process: "subprocess.Popen[bytes]") -> list[str]:
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {KEY}"}, timeout=PATIENCE_S) as http:

        def is_ready() -> bool:
            assert process.poll() is None, process.communicate()[1].decode()
            try:
                return http.get("/readyz").status_code == 200
            except httpx.TransportError:
                return False

        wait_until(is_ready, 2 * PATIENCE_S)
        body = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
        answers = [http.post("/v1/completions", json=body | {"prompt": prompt}).json() for prompt in PROMPTS]
    return [answer["choices"][0]["text"] for answer in answers]


@pytest.mark.slow
def test_a_machine_without_the_model_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    model = os.path.relpath(model_path(DEFAULT), ROOT)
    address = f"{HERE}:{free_port()}"
    words = [sys.executable, "-m", "penstock", "serve", model, "--port", "0", "--pipeline", "2", "--nodes", "2"]
    with node(address, tmp_path) as other:
        done = subprocess.run([*words, "--rendezvous", address], cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 2, done.stderr
        assert "machine 2 of 2 cannot compute its part" in done.stderr
        assert other.wait(PATIENCE_S) == 2


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"pipeline": 3, "nodes": 2, "rendezvous": "10.0.0.1:29500"}, "choose a multiple"),
        ({"rendezvous": "10.0.0.1"}, "HOST:PORT"),
    ],
)
def test_what_cannot_be_spread_is_refused(asked: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ParallelConfig(**asked)  # type: ignore[arg-type]


def test_machines_that_cannot_find_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="--rendezvous"):
        LLM(str(model_path(DEFAULT)), pipeline=2, nodes=2)


def test_addresses_of_either_kind_are_read() -> None:
    assert split_address("10.0.0.1:29500") == ("10.0.0.1", 29500)
    assert split_address("[::1]:1") == ("::1", 1)
