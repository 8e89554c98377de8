"""Several models in one server: loaded when named, kept as there is room, and none in another's way."""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest

from tests.machine import PATIENCE_S
from tests.server.serving import Server, chat_text, serving, user

OPTIONS = {"temperature": 0, "num_predict": 8}
MIB = 2**20


def pool(*flags: str, **options: Any) -> Any:
    return serving(*flags, model="default", is_real=True, **options)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with pool(
        "--model", "a=oracle:", "--model", "b:small=oracle:", "--model", "bad=/nowhere/missing.gguf"
    ) as running:  # fmt: skip
        yield running


def ask(server: Server, model: str, content: str = "hello", **fields: Any) -> str:
    body = {"model": model, "messages": user(content), "max_tokens": 8, "temperature": 0, **fields}
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == model
    return str(answer.json()["choices"][0]["message"]["content"])


def states(server: Server) -> dict[str, str]:
    found: dict[str, str] = server.get("/health").json()["models"]
    return found


def until(is_so: Callable[[], bool]) -> None:
    """A patience without bound would hide a fault; this one is far above what anything here takes."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def loads(server: Server, model: str) -> float:
    return server.metric("penstock_model_loads_total", f'model_name="{model}"')


def engines(server: Server) -> list[int]:
    pid = server.process.pid
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


# Loaded when named


def test_models_are_loaded_by_the_first_request_that_names_them_once() -> None:
    with pool("--model", "a=oracle:load_ms=300", "--model", "b=oracle:") as server:
        assert states(server) == {"a": "cold", "b": "cold"}
        assert engines(server) == []
        with ThreadPoolExecutor(12) as threads:
            answers = set(threads.map(lambda _: ask(server, "a"), range(12)))
        assert answers == {chat_text("hello", 8)}
        assert states(server) == {"a": "ready", "b": "cold"}
        assert loads(server, "a") == 1
        assert len(engines(server)) == 1


def test_every_dialect_names_its_model(server: Server) -> None:
    text = chat_text("hello", 8)
    assert ask(server, "a") == ask(server, "b:small") == text
    claude = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    message = claude.messages.create(
        model="b:small", max_tokens=8, messages=user("hello"), extra_body={"temperature": 0}
    )
    assert (message.model, message.content[0].text) == ("b:small", text)  # type: ignore[union-attr]
    assert claude.messages.count_tokens(model="a", messages=user("hello")).input_tokens > 8
    llama = ollama.Client(host=server.url)
    assert llama.chat("a:latest", user("hello"), options=OPTIONS).message.content == text
    sdk = server.sdk()
    response = sdk.responses.create(model="b:small", input="hello", max_output_tokens=8, temperature=0)
    assert (response.model, response.output_text) == ("b:small", text)
    one, other = (sdk.embeddings.create(model=name, input="hello").data[0].embedding for name in ("a", "b:small"))
    assert one == other
    assert server.post("/tokenize", {"model": "b:small", "prompt": "hello"}).json()["count"] == 5
    ranked = server.post("/v1/rerank", {"model": "a", "query": "x", "documents": ["x", "y"]}).json()
    assert (ranked["model"], ranked["results"][0]["index"]) == ("a", 0)
    for client in (llama._client, claude, sdk):
        client.close()


def test_lists_tell_all_models_and_where_they_stand(server: Server) -> None:
    ask(server, "a")
    with server.sdk() as sdk:
        assert [one.id for one in sdk.models.list()] == ["a", "b:small", "bad"]
        assert sdk.models.retrieve("b:small").id == "b:small"
    listed = {one["id"]: one["status"]["value"] for one in server.get("/v1/models").json()["data"]}
    assert listed["a"] == "loaded"
    headers = {"anthropic-version": "2023-06-01"}
    assert [one["id"] for one in server.get("/v1/models", headers=headers).json()["data"]] == ["a", "b:small", "bad"]
    assert [one["name"] for one in server.get("/api/tags").json()["models"]] == ["a", "b:small", "bad"]
    assert "a" in [one["name"] for one in server.get("/api/ps").json()["models"]]
    assert "bad" not in [one["name"] for one in server.get("/api/ps").json()["models"]]
    seen = {one["name"]: one for one in server.get("/app/v1/models").json()["models"]}
    assert seen["a"]["state"] == "ready"
    assert seen["a"]["num_bytes"] > MIB
    assert [one["name"] for one in server.get("/app/v1/about").json()["residents"]] == ["a", "b:small", "bad"]
    assert server.get("/readyz").status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/responses"])
def test_a_model_that_is_not_there_is_told_with_those_that_are(server: Server, path: str) -> None:
    body = {"model": "nobody", "max_tokens": 4, "messages": user("x"), "input": "x"}
    answer = server.post(path, body)
    assert answer.status_code == 404
    assert all(name in answer.text for name in ("nobody", "a", "b:small"))
    assert server.get("/v1/models/nobody").status_code == 404


def test_an_unnamed_model_is_the_first(server: Server) -> None:
    body = {"messages": user("hello"), "max_tokens": 8, "temperature": 0}
    assert server.post("/v1/chat/completions", body).json()["model"] == "a"


# A wrong one


def test_a_model_that_cannot_be_loaded_tells_why_and_touches_no_other(server: Server) -> None:
    ask(server, "a")
    body = {"model": "bad", "messages": user("x"), "max_tokens": 4}
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    error = answer.json()["error"]
    assert error["code"] == "model_load_failed"
    assert "missing.gguf" in error["message"]
    assert "/nowhere" not in error["message"]
    assert server.post("/v1/messages", body).json()["error"]["type"] == "overloaded_error"
    assert states(server)["bad"] == "failed"
    assert server.get("/health").status_code == 200
    assert server.get("/readyz").status_code == 200
    assert ask(server, "a") == chat_text("hello", 8)


def test_a_model_that_is_mended_is_loaded_after_all(tmp_path: Path) -> None:
    link = tmp_path / "late.gguf"
    with pool("--model", f"late={link}", "--model", "a=oracle:") as server:
        body = {"model": "late", "messages": user("x"), "max_tokens": 4}
        first = server.post("/v1/chat/completions", body)
        assert first.status_code == 503
        link.write_bytes(b"GGUF and no more")
        time.sleep(float(first.headers["retry-after"]))
        second = server.post("/v1/chat/completions", body)
        assert second.status_code == 503
        assert "there is no model" in first.text
        assert "there is no model" not in second.text  # it was looked at again
        third = server.post("/v1/chat/completions", body)
        assert third.json()["error"]["message"] == second.json()["error"]["message"]  # at once: it is tried later


def test_an_engine_that_dies_is_another_models_business() -> None:
    with pool("--model", "a=oracle:step_ms=20", "--model", "b=oracle:") as server:
        ask(server, "a")
        (of_a,) = engines(server)
        ask(server, "b")
        (of_b,) = set(engines(server)) - {of_a}
        with ThreadPoolExecutor(1) as threads:
            long = threads.submit(ask, server, "a", "long", max_tokens=60)
            until(lambda: server.metric("penstock_model_requests", 'model_name="a"') == 1)
            os.kill(of_b, signal.SIGKILL)
            assert ask(server, "b") == chat_text("hello", 8)  # by the next engine
            assert long.result() == chat_text("long", 60)
        assert of_a in engines(server)


# Memory


@pytest.mark.slow
def test_a_model_in_use_stays_and_others_come_and_go_within_bounds() -> None:
    """Engines of about 40 MiB each, at most two of three at a time: every answer is right, and the sum is never above."""
    budget = 100
    names = ("a", "b", "c")
    flags = [word for name in names for word in ("--model", f"{name}=oracle:step_ms=1")]
    with pool(*flags, "--models-memory", f"{budget}MiB") as server:
        most = 0

        def watch() -> None:
            nonlocal most
            while not is_over.wait(0.02):
                most = max(most, sum(_rss(pid) for pid in engines(server)))

        is_over = threading.Event()
        watcher = threading.Thread(target=watch)
        watcher.start()
        draw = random.Random(7)
        try:
            with ThreadPoolExecutor(3) as threads:
                jobs = [(draw.choice(names), f"question {number % 5}") for number in range(40)]
                answers = list(threads.map(lambda job: ask(server, *job), jobs))
        finally:
            is_over.set()
            watcher.join()
        assert answers == [chat_text(content, 8) for _, content in jobs]
        assert most <= budget * MIB
        evictions = sum(server.metric("penstock_model_evictions_total", f'model_name="{name}"') for name in names)
        assert evictions >= 3
        assert all(loads(server, name) >= 1 for name in names)


def _rss(pid: int) -> int:
    """A process that has just been begun shows the memory of the one that began it until it runs its own program."""
    try:
        if b"assembly.worker" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            return 0
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def test_who_waits_for_room_is_answered_when_the_long_answer_is_over() -> None:
    with pool("--model", "a=oracle:step_ms=10", "--model", "b=oracle:", "--models-memory", "80MiB") as server:
        with ThreadPoolExecutor(2) as threads:
            long = threads.submit(ask, server, "a", "long", max_tokens=200)
            until(lambda: server.metric("vllm:generation_tokens_total", 'model_name="a"') > 10)
            short = threads.submit(ask, server, "b")
            until(lambda: server.metric("penstock_model_requests_waiting", 'model_name="b"') == 1)
            assert states(server)["a"] == "ready"
            assert short.result() == chat_text("hello", 8)
            assert long.done()
            assert long.result() == chat_text("long", 200)
        assert states(server) == {"a": "cold", "b": "ready"}


@pytest.mark.slow
def test_a_model_asked_for_all_the_time_makes_room_for_another() -> None:
    with pool("--model", "a=oracle:step_ms=5", "--model", "b=oracle:", "--models-memory", "80MiB") as server:
        is_over = threading.Event()

        def go_on(number: int) -> int:
            count = 0
            while not is_over.is_set():
                assert ask(server, "a", f"{number}", max_tokens=40) == chat_text(f"{number}", 40)
                count += 1
            return count

        with ThreadPoolExecutor(4) as threads:
            others = [threads.submit(go_on, number) for number in range(3)]
            until(lambda: server.metric("penstock_model_requests", 'model_name="a"') >= 2)
            assert ask(server, "b") == chat_text("hello", 8)
            is_over.set()
            assert all(other.result() > 0 for other in others)


def test_what_cannot_fit_is_refused_at_once() -> None:
    with pool("--model", "a=oracle:,pin", "--model", "b=oracle:", "--models-memory", "81MiB") as server:
        until(lambda: states(server)["a"] == "ready")
        body = {"model": "b", "messages": user("x"), "max_tokens": 4}
        answer = server.post("/v1/chat/completions", body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_does_not_fit")
        assert answer.headers["x-should-retry"] == "false"
        assert states(server) == {"a": "ready", "b": "cold"}
        until(lambda: "b is going to be refused" in server.errors.read_text())


def test_a_pinned_model_that_does_not_fit_keeps_nobody_else_out() -> None:
    pinned = ("--model", "a=oracle:,pin", "--model", "b=default,pin")  # the second never fits beside the first
    with pool(*pinned, "--model", "c=oracle:", "--models-memory", "200MiB") as server:
        until(lambda: states(server) | {"c": ""} == {"a": "ready", "b": "failed", "c": ""})
        assert ask(server, "a") == ask(server, "c") == chat_text("hello", 8)
        assert server.get("/readyz").status_code == 200


# How long they stay


def test_an_idle_model_is_unloaded_and_comes_back() -> None:
    with pool("--model", "a=oracle:", "--keep-alive", "300ms") as server:
        assert ask(server, "a") == chat_text("hello", 8)
        until(lambda: states(server)["a"] == "cold")
        assert engines(server) == []
        assert ask(server, "a") == chat_text("hello", 8)
        assert loads(server, "a") == 2
        assert server.metric("vllm:generation_tokens_total", 'model_name="a"') == 16


def test_one_of_several_keys_unloads_nothing_an_admin_does() -> None:
    with pool("--model", "a=oracle:", "--api-key", "key-of-somebody", "--admin-key", "key-of-the-admin") as server:
        server.headers = {"Authorization": "Bearer key-of-somebody"}
        body = {"model": "a", "messages": user("hello"), "options": OPTIONS, "stream": False}
        assert server.post("/api/chat", body | {"keep_alive": 0}).status_code == 200
        assert server.post("/api/generate", {"model": "a", "keep_alive": 0}).status_code == 403
        assert [one["name"] for one in server.get("/api/ps").json()["models"]] == ["a"]
        server.headers = {"Authorization": "Bearer key-of-the-admin"}
        assert server.post("/api/generate", {"model": "a", "keep_alive": 0}).json()["done_reason"] == "unload"
        until(lambda: not server.get("/api/ps").json()["models"])


def test_ollamas_keep_alive_says_how_long_a_model_stays() -> None:
    with pool("--model", "a=oracle:", "--keep-alive", "300ms") as server:
        client = ollama.Client(host=server.url)
        client.chat("a", user("hello"), options=OPTIONS, keep_alive=-1)
        (shown,) = client.ps().models
        assert shown.expires_at is not None
        assert shown.expires_at.year > 2200
        client.chat("a", user("hello"), options=OPTIONS, keep_alive="10m")
        (shown,) = client.ps().models
        assert shown.expires_at is not None
        assert 500 < shown.expires_at.timestamp() - time.time() < 601
        client.chat("a", user("hello"), options=OPTIONS, keep_alive=0)
        until(lambda: states(server)["a"] == "cold")
        assert not client.ps().models
        assert client.generate("a", keep_alive=0).done_reason == "unload"  # loads nothing
        assert (loads(server, "a"), states(server)["a"]) == (1, "cold")
        assert client.generate("a", keep_alive=-1).done_reason == "load"
        assert states(server)["a"] == "ready"
        answer = client.chat("a", user("hello"), options=OPTIONS)
        assert (answer.total_duration or 0) > 0
        client._client.close()


def test_a_pinned_model_is_there_from_the_start_and_stays() -> None:
    with pool("--model", "a=oracle:,pin", "--model", "b=oracle:", "--keep-alive", "0") as server:
        until(lambda: server.get("/readyz").status_code == 200)
        assert states(server)["a"] == "ready"
        ask(server, "a")
        ask(server, "b")
        until(lambda: states(server)["b"] == "cold")
        assert states(server)["a"] == "ready"


# Whoever waits is told


def read_events(server: Server, path: str, body: dict[str, Any]) -> list[str]:
    with server.http() as http, http.stream("POST", path, json=body) as answer:
        assert answer.status_code == 200
        return [line for line in answer.iter_lines() if line]


@pytest.mark.slow
def test_progress_of_a_load_is_told_in_each_dialect_to_those_who_ask() -> None:
    asked = {"model": "a", "messages": user("hello"), "max_tokens": 8, "temperature": 0, "stream": True}
    ways: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", asked | {"stream_options": {"include_progress": True}}),
        ("/v1/messages", asked | {"include_progress": True}),
        ("/api/chat", {"model": "a", "messages": user("hello"), "options": OPTIONS, "include_progress": True}),
        (
            "/v1/responses",
            {"model": "a", "input": "hello", "max_output_tokens": 8, "stream": True}
            | {"stream_options": {"include_progress": True}},
        ),
    ]
    with pool("--model", "a=oracle:load_ms=1500", "--keep-alive", "0") as server:
        for number, (path, body) in enumerate(ways):
            until(lambda: states(server)["a"] == "cold")
            lines = [line.removeprefix("data: ") for line in read_events(server, path, body)]
            told = [json.loads(line) for line in lines if '"stage":"load"' in line]
            assert told, path
            value = told[0].get("progress", told[0])
            assert value["phase"]
            assert (value["percent"] is not None) == bool(number)  # known from the load before
            assert any(chat_text("hello", 8)[:1] in line for line in lines[len(told) :])


def test_sdks_bear_with_a_stream_that_waits_for_its_model() -> None:
    with pool("--model", "a=oracle:load_ms=1200") as server, server.sdk() as sdk:
        stream = sdk.chat.completions.create(
            model="a", messages=user("hello"), max_tokens=8, temperature=0, stream=True,
            extra_body={"stream_options": {"include_progress": True}},
        )  # fmt: skip
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert text == chat_text("hello", 8)


def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind() -> None:
    body, impatient = {"model": "a", "prompt": "x", "max_tokens": 4}, httpx.Timeout(PATIENCE_S, read=0.3)
    with pool("--model", "a=oracle:load_ms=1500", "--model", "b=oracle:") as server:
        with server.http() as http, pytest.raises(httpx.ReadTimeout):
            http.post("/v1/completions", json=body, timeout=impatient)
        until(lambda: server.metric("penstock_model_requests_waiting", 'model_name="a"') == 0)
        until(lambda: states(server)["a"] == "ready")
        until(lambda: server.metric("penstock_model_requests", 'model_name="a"') == 0)
        assert ask(server, "a") == chat_text("hello", 8)


def test_a_drain_waits_for_those_who_wait_for_a_load() -> None:
    with pool("--model", "a=oracle:load_ms=800", "--model", "b=oracle:") as server:
        ask(server, "b")
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(ask, server, "a")
            until(lambda: server.metric("penstock_model_requests_waiting", 'model_name="a"') == 1)
            os.kill(server.process.pid, signal.SIGTERM)
            assert waiting.result() == chat_text("hello", 8)
        assert server.stop() == 0


# Jobs


def test_lines_of_a_batch_and_background_responses_find_their_models(server: Server) -> None:
    with server.sdk() as sdk:
        lines = [
            {"custom_id": f"{number}", "method": "POST", "url": "/v1/chat/completions"}
            | {"body": {"model": model, "messages": user(f"q{number}"), "max_tokens": 8, "temperature": 0}}
            for number, model in enumerate(("a", "b:small", "a", "nobody"))
        ]
        data = "\n".join(map(json.dumps, lines)).encode()
        file = sdk.files.create(file=("lines.jsonl", data), purpose="batch")
        batch = sdk.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        until(lambda: sdk.batches.retrieve(batch.id).status == "completed")
        done = sdk.batches.retrieve(batch.id)
        assert done.output_file_id is not None
        rows = [json.loads(line) for line in sdk.files.content(done.output_file_id).text.splitlines()]
        found = [
            (row["response"]["body"]["model"], row["response"]["body"]["choices"][0]["message"]["content"])
            for row in rows
        ]
        assert found == [("a", chat_text("q0", 8)), ("b:small", chat_text("q1", 8)), ("a", chat_text("q2", 8))]
        assert done.request_counts is not None
        assert done.request_counts.failed == 1
        made = sdk.responses.create(model="b:small", input="hello", max_output_tokens=8, temperature=0, background=True)
        until(lambda: sdk.responses.retrieve(made.id).status not in ("queued", "in_progress"))
        assert sdk.responses.retrieve(made.id).output_text == chat_text("hello", 8)


def test_metrics_tell_models_apart(server: Server) -> None:
    before = server.metric("vllm:generation_tokens_total", 'model_name="b:small"')
    ask(server, "a")
    assert server.metric("vllm:generation_tokens_total", 'model_name="b:small"') == before
    ask(server, "b:small")
    assert server.metric("vllm:generation_tokens_total", 'model_name="b:small"') == before + 8
    assert server.metric("penstock_model_load_seconds_count", 'model_name="a"') == 1


def test_names_given_twice_and_directories_without_models_are_refused(tmp_path: Path) -> None:
    from penstock.assembly.pool import entries_of, entry_of
    from penstock.errors import ConfigError
    from penstock.service.server.pool.config import PoolConfig

    with pytest.raises(ConfigError, match="more than once"):
        entries_of(PoolConfig(models=("a=x.gguf", "a=y.gguf")), None)
    with pytest.raises(ConfigError, match="neither"):
        entries_of(PoolConfig(models_dir=tmp_path), None)
    (tmp_path / "one.gguf").touch()
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "config.json").touch()
    (tmp_path / "notes.txt").touch()
    assert [one.name for one in entries_of(PoolConfig(models_dir=tmp_path, models=("one=x",)), "/m/big.gguf")] == [
        "big", "one", "two",
    ]  # fmt: skip
    entry = entry_of("x=oracle:step_ms=5,vocab=256,keep_alive=10m,pin")
    assert (entry.source, entry.is_pinned, entry.keep_alive_s) == ("oracle:step_ms=5,vocab=256", True, 600.0)
    assert entry_of("pypi:some-package==1.0").name == "some-package"
    assert entry_of("hf:ORG/NAME").name == "NAME"
    with pytest.raises(ConfigError, match="NAME=MODEL"):
        entry_of("=x")


def test_a_config_file_names_models_as_flags_do(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('[pool]\nmodels = ["a=oracle:,pin", "b=oracle:"]\nmodels-memory = "300MiB"\nkeep-alive = "10m"\n')
    with pool("--config", str(file)) as server:
        assert list(states(server)) == ["a", "b"]
        assert server.get("/app/v1/models").json()["budget_bytes"] == 300 * MIB
        assert ask(server, "b") == chat_text("hello", 8)


def test_errors_keep_their_status_where_the_model_has_to_be_loaded_first() -> None:
    with (
        pool("--model", "a=oracle:load_ms=700") as server,
        server.sdk() as sdk,
        pytest.raises(openai.BadRequestError, match="maximum context length"),
    ):
        sdk.chat.completions.create(model="a", messages=user("x" * 300_000), max_tokens=4, stream=True)
