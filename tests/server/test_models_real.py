"""Real models behind one server: the answers of each are those it gives alone."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.real import DEFAULT, GEMMA, MINILM, model_path
from tests.server.serving import ROOT, Server, serving, user


def completion(server: Server, model: str, prompt: str) -> str:
    body = {"model": model, "prompt": prompt, "max_tokens": 12, "temperature": 0}
    answer = server.post("/v1/completions", body, timeout=300.0)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def vector(server: Server, model: str, text: str) -> list[float]:
    answer = server.post("/v1/embeddings", {"model": model, "input": text}, timeout=300.0)
    assert answer.status_code == 200, answer.text
    numbers: list[float] = answer.json()["data"][0]["embedding"]
    return [round(number, 4) for number in numbers]


def alone(path: Path, ask: Callable[[Server, str, str], object], texts: list[str]) -> list[object]:
    with serving(model=str(path), is_real=True) as server:
        return [ask(server, "default", text) for text in texts]


@pytest.mark.slow
def test_chat_and_embedding_models_answer_side_by_side_as_they_do_alone() -> None:
    chat, vectors = model_path(DEFAULT), model_path(MINILM)
    texts = ["The colour of the sky is", "Once upon a time"]
    flags = ("--model", f"chat={chat}", "--model", f"vectors={vectors}", "--models-memory", "2GiB")
    with serving(*flags, model="default", is_real=True) as server:
        listed = {one["id"]: one for one in server.get("/v1/models").json()["data"]}
        assert set(listed) == {"chat", "vectors"}
        said = [completion(server, "chat", text) for text in texts]
        assert all(len(vector(server, "vectors", text)) == 384 for text in texts)
        ranked = server.post("/v1/rerank", {"model": "vectors", "query": "a cat", "documents": ["a car", "a kitten"]})
        assert ranked.json()["results"][0]["index"] == 1
        refused = server.post("/v1/chat/completions", {"model": "vectors", "messages": user("hi")})
        assert refused.json()["error"]["code"] == "unsupported_model"
        shown = server.post("/api/show", {"model": "chat"}).json()
        assert shown["capabilities"] == ["completion"]
        assert shown["details"]["quantization_level"] == "Q4_1"
        assert {one["id"]: one["capabilities"] for one in server.get("/v1/models").json()["data"]} == {
            "chat": ["completion"],
            "vectors": ["embedding"],
        }
    assert said == alone(chat, completion, texts)


@pytest.mark.slow
def test_three_models_in_two_gibibytes(tmp_path: Path) -> None:
    """Random requests: right answers, and never more memory than is allowed."""
    models = [f"chat={model_path(DEFAULT)}", f"gemma={model_path(GEMMA)}", f"vectors={model_path(MINILM)}"]
    random.Random(1).shuffle(models)
    found = tmp_path / "found.json"
    words = ["benchmarks/models.py", *models, "--memory", "2GiB", "--requests", "40", "--json", str(found)]
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    result = json.loads(found.read_text())
    assert result["wrong"] == 0
    assert result["most_held_bytes"] <= result["allowed_bytes"]
    assert result["evictions"] > 0
    assert any(one["ttft_cold"]["count"] for one in result["by_model"].values())
