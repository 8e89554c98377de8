"""Adapters over HTTP: model names in every dialect, loaded and unloaded by admins while others are served."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.adapters.making import write_adapter
from tests.offline import HIDDEN, write_chat_model
from tests.server.serving import Server, serving

ADMIN = "admin-key-of-some-length"
HOSTILE = [
    ("q_proj.lora_A.weight", torch.full((4, HIDDEN), float("nan")), "not finite"),
    ("q_proj.lora_A.weight", torch.zeros((4, HIDDEN + 1)), "another base"),
    ("q_proj.lora_A.weight", torch.zeros((4000, HIDDEN)), "ranks differ"),
    ("down_proj.lora_B.weight", torch.zeros((1, 4)), "another base"),
]
"""Tensors in place of good ones, and what is said of them."""
ASKED = {"prompt": "Water falls", "max_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    write_chat_model(folder / "tiny.gguf")
    for number in range(4):
        write_adapter(folder / "adapters" / f"a{number}", number)
    write_adapter(folder / "named", 9)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    flags = (
        "--adapter",
        f"named={folder / 'named'}",
        "--adapters-dir",
        str(folder / "adapters"),
        "--max-adapters",
        "2",
    )
    with serving(
        *flags, "--max-context", "256", "--admin-key", ADMIN, model=str(folder / "tiny.gguf"), is_real=True
    ) as server:
        server.headers["authorization"] = f"Bearer {ADMIN}"
        yield server


def completed(server: Server, model: str) -> str:
    answer = server.post("/v1/completions", {"model": model, **ASKED})
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == model
    return str(answer.json()["choices"][0]["text"])


def test_adapters_are_models_with_a_parent_and_a_root(server: Server, folder: Path) -> None:
    listed = {model["id"]: model for model in server.get("/v1/models").json()["data"]}
    assert set(listed) == {"tiny", "named", "a0", "a1", "a2", "a3"}
    assert listed["named"]["parent"] == "tiny"
    assert listed["named"]["root"] == str(folder / "named")
    assert "parent" not in listed["tiny"]


def test_every_name_answers_by_its_own_weights_alone_or_among_others(server: Server) -> None:
    names = ["tiny", "named", "a0", "a1", "a2", "a3"]
    alone = {name: completed(server, name) for name in names}
    assert len(set(alone.values())) == len(names)
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda name: (name, completed(server, name)), names * 4))
    assert all(text == alone[name] for name, text in together)
    assert server.metric("penstock_adapters_evicted_total") > 0
    assert server.metric("vllm:lora_requests_info") > 0


def test_all_dialects_take_an_adapter_as_their_model(server: Server) -> None:
    messages = [{"role": "user", "content": "hi"}]
    sampled = {"max_tokens": 4, "temperature": 0}
    asked = {
        "/v1/chat/completions": {"messages": messages, **sampled},
        "/v1/messages": {"messages": messages, **sampled},
        "/v1/responses": {"input": "hi", "max_output_tokens": 4, "temperature": 0},
        "/api/chat": {"messages": messages, "stream": False, "options": {"num_predict": 4, "temperature": 0}},
    }
    for path, body in asked.items():
        for name in ("a1", "a0*0.5+a1"):
            answer = server.post(path, {"model": name, **body})
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == name
    for name, status in (("a0*99", 400), ("a0+nobody", 404), ("tiny*0.5", 404)):
        assert server.post("/v1/completions", {"model": name, **ASKED}).status_code == status, name


def test_a_search_of_one_beam_finds_what_the_adapter_would_say(server: Server) -> None:
    for name in ("tiny", "a0", "a0*0.5+a1"):
        answer = server.post("/v1/completions", {"model": name, **ASKED, "use_beam_search": True, "beam_width": 1})
        assert answer.json()["choices"][0]["text"] == completed(server, name)


def test_admins_load_reload_and_unload(server: Server, folder: Path) -> None:
    write_adapter(folder / "adapters" / "late", 20)
    body = {"lora_name": "late", "lora_path": "late"}
    assert server.post("/v1/load_lora_adapter", body).status_code == 200
    first = completed(server, "late")
    assert server.post("/v1/load_lora_adapter", body).status_code == 400
    write_adapter(folder / "adapters" / "late", 21)
    assert server.post("/v1/load_lora_adapter", body | {"load_inplace": True}).status_code == 200
    assert completed(server, "late") != first
    assert any(one["name"] == "late" for one in server.get("/lora-adapters").json())
    assert server.post("/v1/unload_lora_adapter", {"lora_name": "late"}).status_code == 200
    assert server.post("/v1/completions", {"model": "late", **ASKED}).status_code == 404


def test_a_bad_adapter_is_one_clear_error_and_the_server_goes_on(server: Server, folder: Path) -> None:
    bad = folder / "adapters" / "bad"
    write_adapter(bad, 3)
    weights = bad / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    answer = server.post("/v1/load_lora_adapter", {"lora_name": "bad", "lora_path": "bad"})
    assert answer.status_code == 400
    assert "cut short" in answer.json()["error"]["message"]
    for name, tensor, words in HOSTILE:
        write_adapter(bad, 3)
        tensors = load_file(weights)
        tensors[next(one for one in tensors if one.endswith(name))] = tensor
        save_file(tensors, weights)
        answer = server.post("/v1/load_lora_adapter", {"lora_name": "bad", "lora_path": "bad"})
        assert answer.status_code == 400
        assert words in answer.json()["error"]["message"]
        assert server.post("/v1/completions", {"model": "bad", **ASKED}).status_code == 404
    (folder / "adapters" / "link").symlink_to(folder / "named")
    outside = server.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "link"})
    assert outside.status_code == 400
    outside = server.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "../named"})
    assert outside.status_code == 400
    assert "leads out" in outside.json()["error"]["message"]
    (folder / "adapters" / "circle").symlink_to("circle")
    for path in ("a\0b", "x" * 1000, "circle"):
        answer = server.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": path})
        assert answer.status_code == 400, path
        assert "is no path" in answer.json()["error"]["message"]
    assert completed(server, "named")


def test_only_admins_change_adapters(folder: Path) -> None:
    flags = ("--adapters-dir", str(folder / "adapters"), "--admin-key", ADMIN, "--api-key", "plain-key-of-some-length")
    with serving(*flags, "--max-context", "256", model=str(folder / "tiny.gguf"), is_real=True) as server:
        server.headers["authorization"] = "Bearer plain-key-of-some-length"
        assert completed(server, "a0")
        for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
            assert server.post(path, {"lora_name": "a0", "lora_path": "a0"}).status_code == 403
        assert server.get("/lora-adapters").status_code == 403
