"""Files and batches: all lines answered once, whatever happens on the way."""

import asyncio
import errno
import io
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import openai
import pytest
from openai.types import Batch

from penstock.service.server.http.faults import ApiError
from penstock.service.server.jobs.files import keep_file
from penstock.service.server.jobs.runner import BatchRunner
from penstock.service.server.jobs.service import Jobs
from penstock.service.store.jobs import SCHEMA
from penstock.service.store.storage import open_storage
from tests.server.serving import Server, chat_text, serving, user

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def sdk(server: Server) -> Iterator[openai.OpenAI]:
    with server.sdk() as client:
        yield client


def chat_lines(number: int, tokens: int = 5) -> list[dict[str, Any]]:
    body = {"model": "default", "max_tokens": tokens, "temperature": 0}
    return [
        {"custom_id": f"line-{k}", "method": "POST", "url": CHAT, "body": body | {"messages": user(f"ask {k}")}}
        for k in range(number)
    ]


def begin(sdk: openai.OpenAI, lines: list[Any], endpoint: Any = CHAT, **fields: Any) -> Batch:
    data = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    file = sdk.files.create(file=("in.jsonl", io.BytesIO(data.encode())), purpose="batch")
    return sdk.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **fields)


def settled(sdk: openai.OpenAI, batch_id: str) -> Batch:
    for _ in count():
        batch = sdk.batches.retrieve(batch_id)
        if batch.status in ("completed", "failed", "expired", "cancelled"):
            return batch
        time.sleep(0.02)
    raise AssertionError


def answers(sdk: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    lines = [json.loads(line) for line in sdk.files.content(file_id).text.splitlines()]
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines), "a line is answered twice"
    return found


def text_of(line: Any) -> str:
    text: str = line["response"]["body"]["choices"][0]["message"]["content"]
    return text


def test_every_line_is_answered_as_if_it_had_been_asked_alone(sdk: openai.OpenAI) -> None:
    batch = settled(sdk, begin(sdk, chat_lines(20), metadata={"a": "b"}).id)
    assert (batch.status, batch.metadata, batch.error_file_id) == ("completed", {"a": "b"}, None)
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 20, "completed": 20, "failed": 0}
    assert batch.usage is not None
    assert batch.usage.output_tokens == 100
    found = answers(sdk, batch.output_file_id)
    assert {name: text_of(line) for name, line in found.items()} == {
        f"line-{k}": chat_text(f"ask {k}", 5) for k in range(20)
    }
    assert list(found) == [f"line-{k}" for k in range(20)]
    assert batch.id in [one.id for one in sdk.batches.list(limit=5).data]


def test_other_endpoints_are_batched_too(sdk: openai.OpenAI) -> None:
    bodies: dict[Any, Any] = {
        "/v1/completions": {"prompt": "x", "max_tokens": 2},
        "/v1/embeddings": {"input": "x"},
        "/v1/responses": {"input": "x", "max_output_tokens": 2},
    }
    for endpoint, body in bodies.items():
        line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": body}
        batch = settled(sdk, begin(sdk, [line], endpoint).id)
        assert answers(sdk, batch.output_file_id)["a"]["response"]["status_code"] == 200


def test_lines_that_cannot_be_answered_are_in_the_error_file(sdk: openai.OpenAI) -> None:
    lines = chat_lines(3)
    lines[1]["body"]["max_tokens"] = 100_000
    batch = settled(sdk, begin(sdk, lines).id)
    assert batch.request_counts is not None
    assert (batch.status, batch.request_counts.failed) == ("completed", 1)
    failed = answers(sdk, batch.error_file_id)["line-1"]["response"]
    assert (failed["status_code"], failed["body"]["error"]["code"]) == (400, "context_length_exceeded")
    assert set(answers(sdk, batch.output_file_id)) == {"line-0", "line-2"}


@pytest.mark.parametrize(
    ("line", "code", "param"),
    [
        ("{", "invalid_json_line", None),
        ("[]", "invalid_json_line", None),
        ({"method": "POST", "url": CHAT, "body": {}}, "missing_required_parameter", "custom_id"),
        (chat_lines(1)[0], "duplicate_custom_id", "custom_id"),
        (chat_lines(2)[1] | {"url": "/v1/embeddings"}, "mismatched_endpoint", "url"),
        (chat_lines(2)[1] | {"method": "GET"}, "invalid_method", "method"),
        (chat_lines(2)[1] | {"body": {"messages": []}}, "invalid_value", "body.messages"),
    ],
)
def test_a_file_that_is_wrong_fails_with_the_line(sdk: openai.OpenAI, line: Any, code: str, param: str | None) -> None:
    batch = settled(sdk, begin(sdk, [*chat_lines(1), "", line]).id)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    (error,) = batch.errors.data
    assert (error.line, error.code, error.param) == (3, code, param)


def test_files_are_kept_listed_read_and_deleted(sdk: openai.OpenAI) -> None:
    data = os.urandom(3 << 20)
    file = sdk.files.create(file=("data.bin", data), purpose="user_data")
    assert (file.bytes, file.filename, file.purpose) == (len(data), "data.bin", "user_data")
    assert sdk.files.content(file.id).read() == data
    assert file.id in [one.id for one in sdk.files.list(purpose="user_data").data]
    assert sdk.files.retrieve(file.id) == file
    assert sdk.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        sdk.files.content(file.id)
    with pytest.raises(openai.BadRequestError):
        sdk.files.create(file=("a", b"x"), purpose="nothing")  # type: ignore[arg-type]


def test_a_cancelled_batch_keeps_what_was_answered() -> None:
    with serving("--max-sequences", "2", model="oracle:step_ms=10") as slow, slow.sdk() as sdk:
        begun = begin(sdk, chat_lines(500, tokens=4))
        while not (sdk.batches.retrieve(begun.id).request_counts or begun).to_dict().get("completed"):
            time.sleep(0.02)
        sdk.batches.cancel(begun.id)
        batch = settled(sdk, begun.id)
        assert batch.status == "cancelled"
        assert batch.request_counts is not None
        assert 0 < len(answers(sdk, batch.output_file_id)) == batch.request_counts.completed < 500


def test_a_batch_outlives_the_server(tmp_path: Path) -> None:
    flags = ("--data-dir", str(tmp_path), "--max-sequences", "4")
    lines, batch_id = chat_lines(150, tokens=3), ""
    for _ in range(2):
        with serving(*flags, model="oracle:step_ms=5") as running, running.sdk() as sdk:
            batch_id = batch_id or begin(sdk, lines).id
            before = (sdk.batches.retrieve(batch_id).request_counts or 0).completed  # type: ignore[union-attr]
            while (sdk.batches.retrieve(batch_id).request_counts or 0).completed < before + 20:  # type: ignore[union-attr]
                time.sleep(0.01)
            os.kill(running.process.pid, signal.SIGKILL)
            running.process.wait()
    with serving(*flags) as running, running.sdk() as sdk:
        batch = settled(sdk, batch_id)
        found = answers(sdk, batch.output_file_id)
        assert {name: text_of(line) for name, line in found.items()} == {
            f"line-{k}": chat_text(f"ask {k}", 3) for k in range(150)
        }


def test_one_key_s_files_are_not_another_s(locked: Server) -> None:
    other = openai.OpenAI(base_url=locked.url + "/v1", api_key="another-key-of-some-length", max_retries=0)
    with locked.sdk() as mine, other:
        file = mine.files.create(file=("a", b"secret"), purpose="user_data")
        with pytest.raises(openai.NotFoundError):
            other.files.content(file.id)
        assert file.id not in [one.id for one in other.files.list().data]


@pytest.mark.slow
def test_fifty_thousand_lines_are_answered_once_over_ten_kills(tmp_path: Path) -> None:
    """Whatever moment the server is killed at; and its memory does not grow with the batch."""
    flags = ("--data-dir", str(tmp_path))
    lines, batch_id, choose = chat_lines(50_000, tokens=1), "", Random(1)
    for _ in range(10):
        with serving(*flags) as running, running.sdk() as sdk:
            batch_id = batch_id or begin(sdk, lines).id
            goal = completed(sdk, batch_id) + choose.randrange(1000, 4000)
            while completed(sdk, batch_id) < min(goal, 49_000):
                time.sleep(0.05)
            os.kill(running.process.pid, signal.SIGKILL)
            running.process.wait()
    with serving(*flags) as running, running.sdk() as sdk:
        batch = settled(sdk, batch_id)
        found = answers(sdk, batch.output_file_id)
        assert len(found) == 50_000
        assert all(text_of(found[f"line-{k}"]) == chat_text(f"ask {k}", 1) for k in range(0, 50_000, 997))


def completed(sdk: openai.OpenAI, batch_id: str) -> int:
    counts = sdk.batches.retrieve(batch_id).request_counts
    return 0 if counts is None else counts.completed


def test_flex_waits_for_everybody_else_also_where_there_are_no_keys() -> None:
    with serving("--max-sequences", "1", model="oracle:step_ms=5") as server, ThreadPoolExecutor(3) as threads:
        ended: list[str] = []

        def one(name: str, tokens: int, **fields: Any) -> str:
            body = {"messages": user(name), "max_tokens": tokens, "ignore_eos": True} | fields
            answer = server.post(CHAT, body).json()
            ended.append(name)
            return str(answer.get("service_tier"))

        def until(name: str, count: int) -> None:
            while server.metric(name) < count:
                time.sleep(0.005)

        first = threads.submit(one, "first", 200)
        until("vllm:num_requests_running", 1)
        flex = threads.submit(one, "flex", 20, service_tier="flex")
        until("penstock_calls_open", 2)
        last = threads.submit(one, "last", 20, service_tier="default")
        assert (first.result(), flex.result(), last.result()) == ("None", "flex", "default")
        assert ended == ["first", "last", "flex"]


def test_a_key_keeps_so_many_files_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_storage(None, (SCHEMA,))
    jobs = Jobs(None, storage)  # type: ignore[arg-type]
    monkeypatch.setattr("penstock.service.server.jobs.files.QUOTA_FILES", 2)
    for _ in range(2):
        keep_file(jobs, "a", io.BytesIO(b"x"), "f", "batch", None)
    with pytest.raises(ApiError, match="delete some") as refused:
        keep_file(jobs, "a", io.BytesIO(b"x"), "f", "batch", None)
    assert (refused.value.status, refused.value.code) == (429, "file_quota_exceeded")
    keep_file(jobs, "b", io.BytesIO(b"x"), "f", "batch", None)
    storage.close()


def test_a_start_without_descriptors_to_spare_goes_on(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    """A crowd may be at the door before the first look at the files."""
    storage = open_storage(None, (SCHEMA,))
    monkeypatch.setattr(Path, "iterdir", fail_to_open)
    asyncio.run(BatchRunner(Jobs(None, storage)).resume())  # type: ignore[arg-type]
    assert "too many open files" in caplog.text.lower()
    storage.close()


def fail_to_open(path: Path) -> Iterator[Path]:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
