"""Kept KV blocks behind a server: answers are those without, of several models, over kills and restarts."""

import os
import signal
from pathlib import Path

import pytest

from tests.offline import write_chat_model
from tests.server.serving import Server, serving
from tests.server.test_models import engines, until

SMALL = ("--num-blocks", "40", "--max-context", "384", "--speculate", "off")


def prompts() -> list[str]:
    """Together they do not fit the cache; half of each is common to two."""
    return [f"{chr(97 + number // 2) * 90} and then {chr(110 + number) * 60}" for number in range(10)]


def answers(server: Server, model: str) -> list[str]:
    found = []
    for prompt in prompts():
        body = {"model": model, "prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
        answer = server.post("/v1/completions", body, timeout=300.0)
        assert answer.status_code == 200, answer.text
        found.append(str(answer.json()["choices"][0]["text"]))
    return found


def loaded(server: Server, model: str) -> float:
    return server.metric("penstock_kv_tier_blocks_total", f'model_name="{model}"[^}}]*event="loaded"')


@pytest.mark.slow
def test_each_of_several_models_finds_its_own_blocks_again(tmp_path: Path) -> None:
    """The same prompts for models of other weights: whatever is found, no answer changes, over a kill -9 and a restart."""
    paths = {name: write_chat_model(tmp_path / f"{name}.gguf", seed) for seed, name in enumerate(("one", "two"), 5)}
    models = [word for name, path in paths.items() for word in ("--model", f"{name}={path}")]
    with serving(*models, *SMALL, model="default", is_real=True) as plain:
        right = {name: answers(plain, name) for name in paths}
    assert right["one"] != right["two"]
    kept = (*models, *SMALL, "--kv-disk", str(tmp_path / "kv"), "--kv-host", "1MiB")
    with serving(*kept, model="default", is_real=True) as server:
        for _ in range(5):  # computing so small a model is faster than a load: one in sixteen is tried all the same
            assert {name: answers(server, name) for name in paths} == right
        assert all(loaded(server, name) > 0 for name in paths)
        before = engines(server)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not set(before) & set(engines(server)))
        assert {name: answers(server, name) for name in paths} == right
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(60)
    with serving(*kept, model="default", is_real=True) as server:
        for _ in range(3):
            assert {name: answers(server, name) for name in paths} == right
        assert all(loaded(server, name) > 0 for name in paths)
