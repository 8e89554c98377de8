"""One of several models that is not what it was is served no more, and the others go on."""

import os
import shutil
import time
from pathlib import Path

import httpx
import pytest

from penstock.runtime.formats.store import StoreEntry, commit, record_files, temporary_directory
from tests.machine import PATIENCE_S
from tests.real import RANDOM_LLAMA, model_path
from tests.server.serving import Server, chat_text, serving, user

NAME = "weights.gguf"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fetched models and canaries of these tests alone."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return tmp_path


def fetched(home: Path) -> Path:
    """A model as if it had been fetched: its files are vouched for."""
    cache = home / ".cache" / "penstock" / "models"
    with temporary_directory(cache) as staged:
        (staged / "model").mkdir()
        shutil.copyfile(model_path(RANDOM_LLAMA), staged / "model" / NAME)
        files = record_files(staged / "model", [NAME], lambda stage, done, total: None)
        return commit(cache, staged, StoreEntry("pypi:tiny==1.0", staged / "model", NAME, files)).path


def flip(path: Path, mask: int, places: slice) -> None:
    """Bits change in place, and nothing else that the system would report."""
    stat = path.stat()
    with path.open("r+b") as file:
        data = bytearray(file.read())
        for place in range(*places.indices(len(data))):
            data[place] ^= mask
        file.seek(0)
        file.write(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def complete(server: Server, model: str) -> httpx.Response:
    return server.post("/v1/completions", {"model": model, "prompt": "abc", "max_tokens": 4, "temperature": 0})


def check_others_go_on(server: Server) -> None:
    body = {"model": "good", "messages": user("hello"), "max_tokens": 8, "temperature": 0}
    answer = server.post("/v1/chat/completions", body)
    assert answer.json()["choices"][0]["message"]["content"] == chat_text("hello", 8)
    assert server.get("/readyz").status_code == 200
    assert server.get("/health").json()["models"] == {"bad": "failed", "good": "ready"}


def check_refused(server: Server, answer: httpx.Response, words: str) -> None:
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (503, "model_damaged")
    assert words in error["message"]
    assert str(Path.home()) not in error["message"]
    assert int(answer.headers["retry-after"]) >= 1
    listed = {one["id"]: one["status"] for one in server.get("/v1/models").json()["data"]}
    assert words in listed["bad"]["reason"]


def until_refused(server: Server) -> httpx.Response:
    deadline_s = time.monotonic() + PATIENCE_S
    while (answer := complete(server, "bad")).status_code == 200 or states(server) != "failed":
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return answer


def states(server: Server) -> str:
    return str(server.get("/health").json()["models"]["bad"])


@pytest.mark.slow
def test_files_that_changed_by_a_bit_are_served_no_more_until_they_are_mended(home: Path) -> None:
    path = fetched(home)
    with serving("--model", f"bad={path}", "--model", "good=oracle:", model="default", is_real=True) as server:
        middle = path.stat().st_size // 2
        flip(path, 1, slice(middle, middle + 1))
        answer = until_refused(server)
        check_refused(server, answer, NAME)
        check_others_go_on(server)
        time.sleep(float(answer.headers["retry-after"]))
        again = complete(server, "bad")  # looked at again, and found the same
        check_refused(server, again, NAME)
        flip(path, 1, slice(middle, middle + 1))
        path.touch()  # it was fetched again
        time.sleep(float(again.headers["retry-after"]))
        assert complete(server, "bad").status_code == 200
        assert server.metric("penstock_model_evictions_total", 'model_name="bad",reason="damaged"') <= 1


@pytest.mark.slow
def test_a_model_that_answers_otherwise_than_it_did_gets_no_request(home: Path) -> None:
    path = home / NAME
    shutil.copyfile(model_path(RANDOM_LLAMA), path)
    flags = ("--model", f"bad={path}", "--model", "good=oracle:")
    for _ in range(2):  # the first run keeps the answer, the second finds it again
        with serving(*flags, model="default", is_real=True) as server:
            assert complete(server, "bad").status_code == 200
    size = path.stat().st_size
    flip(path, 0x80, slice(size // 2 | 1, size, 2))  # signs of weights
    with serving(*flags, model="default", is_real=True) as server:
        check_refused(server, complete(server, "bad"), "answers otherwise")
        check_others_go_on(server)
