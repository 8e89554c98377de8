"""Ollama's own client gets from us what it gets from Ollama."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import pytest

from penstock.config import EngineConfig
from penstock.runtime.engine.client import EngineClient
from penstock.service.server.ollama.catalogue import capabilities
from penstock.service.server.ollama.dialect import line_of
from penstock.service.server.served import ServedModel
from penstock.service.server.text import ModelCard
from tests.server.serving import Server, chat_text, oracle_text, render, user

OPTIONS = {"temperature": 0, "num_predict": 9}


OPENED: list[ollama.Client] = []


@pytest.fixture(autouse=True, scope="module")
def _closed() -> Iterator[None]:
    yield
    for one in OPENED:
        one._client.close()


def client(server: Server) -> ollama.Client:
    OPENED.append(ollama.Client(host=server.url))
    return OPENED[-1]


def test_a_chat_is_answered_with_counts_and_durations(server: Server) -> None:
    answer = client(server).chat("default", user("hello"), options=OPTIONS)
    assert (answer.message.role, answer.message.content) == ("assistant", chat_text("hello", 9))
    assert (answer.done, answer.done_reason, answer.eval_count) == (True, "length", 9)
    assert answer.prompt_eval_count == len(render(user("hello")))
    assert (answer.total_duration or 0) >= (answer.prompt_eval_duration or 0) > 0


def test_a_stream_says_what_the_whole_does(server: Server) -> None:
    parts = list(client(server).chat("default", user("stream"), options=OPTIONS, stream=True))
    assert "".join(part.message.content or "" for part in parts) == chat_text("stream", 9)
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == 9


def test_a_stream_with_other_ends_of_lines_in_its_text_is_read_by_their_client(server: Server) -> None:
    """It cuts text where Unicode ends a line, not only at a newline."""
    expected = chat_text("call 383", 30)
    assert "\x85" in expected
    parts = client(server).chat("default", user("call 383"), options=OPTIONS | {"num_predict": 30}, stream=True)
    assert "".join(part.message.content or "" for part in parts) == expected
    value = {"text": "a\x85b\u2028c\u2029d"}
    assert json.loads(line_of(value)) == value
    assert len(line_of(value).decode().splitlines()) == 1


def test_answers_are_lines_of_json_unless_asked_otherwise(server: Server) -> None:
    body: dict[str, Any] = {"model": "default", "messages": user("lines"), "options": OPTIONS}
    answer = server.post("/api/chat", body)
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert all(json.loads(line)["model"] == "default" for line in answer.text.strip().split("\n"))
    whole = server.post("/api/chat", body | {"stream": False})
    assert whole.headers["content-type"] == "application/json"


def test_generate_asks_or_continues_or_goes_on_from_its_context(server: Server) -> None:
    generate = client(server).generate
    asked = generate("default", "hello", options=OPTIONS)
    assert asked.response == chat_text("hello", 9)
    assert generate("default", "hello", raw=True, options=OPTIONS).response == oracle_text("hello", 9)
    told = generate("default", "hello", system="Be brief.", options=OPTIONS)
    assert told.response == oracle_text(render([{"role": "system", "content": "Be brief."}, *user("hello")]), 9)
    more = generate("default", "more", context=asked.context, options=OPTIONS)
    assert asked.context is not None
    assert more.prompt_eval_count == len(asked.context) + len(render(user("more")))
    with pytest.raises(ollama.ResponseError, match="does not support insert"):
        generate("default", "before", suffix="after", options=OPTIONS)


def test_a_question_without_words_loads_or_lets_go(server: Server) -> None:
    assert client(server).generate("default").done_reason == "load"
    assert client(server).generate("default", keep_alive=0).done_reason == "unload"
    assert client(server).chat("default").done_reason == "load"


def test_options_reach_the_engine(server: Server) -> None:
    stop = chat_text("hello", 9)[3:5]
    cut = client(server).chat("default", user("hello"), options=OPTIONS | {"stop": [stop]})
    assert (cut.message.content, cut.done_reason) == (chat_text("hello", 9)[:3], "stop")
    seeded = client(server).chat("default", user("hello"), options={"num_predict": 9, "seed": 7})
    assert seeded.message.content == chat_text("hello", 9, seed=7)


def test_log_probabilities_stand_beside_their_tokens(server: Server) -> None:
    answer = client(server).chat("default", user("hello"), options=OPTIONS, logprobs=True, top_logprobs=2)
    assert answer.logprobs is not None
    assert len(answer.logprobs) == 9
    assert all(len(entry.top_logprobs or ()) == 2 for entry in answer.logprobs)


def test_texts_become_vectors(server: Server) -> None:
    one, two = client(server).embed("default", ["a text", "another"]).embeddings
    assert len(one) == len(two) == 16
    assert client(server).embeddings("default", "a text").embedding == pytest.approx(one, abs=1e-6)
    assert len(client(server).embed("default", "a text", dimensions=4).embeddings[0]) == 4


def test_a_template_that_describes_tools_makes_them_a_capability() -> None:
    model = ServedModel(EngineClient([], EngineConfig()), num_tenants=0)
    model.card = ModelCard(template="{% for message in messages %}{{ message.content }}{% endfor %}")
    assert capabilities(model) == ["completion"]
    model.card = ModelCard(template="{% if tools %}{{ tools }}{% endif %}", has_reasoning=True)
    assert capabilities(model) == ["completion", "tools", "thinking"]


def test_what_is_served_is_listed_and_shown(server: Server) -> None:
    (listed,) = client(server).list().models
    (loaded,) = client(server).ps().models
    assert listed.model == loaded.model == "oracle:"
    shown = client(server).show("default")
    assert shown.capabilities is not None
    assert "completion" in shown.capabilities
    assert "message.role" in (shown.template or "")
    assert [part.status for part in client(server).pull("default", stream=True)][-1] == "success"
    assert server.get("/api/version").json()["version"]


def test_errors_are_one_text(server: Server) -> None:
    with pytest.raises(ollama.ResponseError, match="not served here") as caught:
        client(server).chat("other", user("x"))
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="maximum context length"):
        client(server).chat("default", user("x" * 9000), stream=False)
    for answer in (
        server.post("/api/chat", {"model": "default", "options": {"temperature": -1}}),
        httpx.get(server.url + "/api/none"),
        httpx.request("DELETE", server.url + "/api/delete", json={"model": "default"}),
    ):
        assert answer.status_code in (400, 404)
        assert set(answer.json()) == {"error"}


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/api/embed", "/api/embeddings"])
def test_a_malformed_keep_alive_is_refused_wherever_it_is_sent(server: Server, path: str) -> None:
    asked = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x"}
    answer = server.post(path, {"model": "default", "keep_alive": "soon"} | asked)
    assert answer.status_code == 400
    assert "keep_alive" in answer.json()["error"]
