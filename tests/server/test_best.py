"""`best_of`, beam search and bad words over HTTP: what is told is what offline use finds."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import LLM
from penstock.runtime.core.request import SamplingParams
from tests.real import DEFAULT, model_path
from tests.server.serving import Server, serving

PROMPT = "The sea is blue and the sky is"
TEXT = {"model": "default", "prompt": PROMPT, "max_tokens": 6}
CHAT = {"model": "default", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 6}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--invariant", model=str(model_path(DEFAULT)), is_real=True) as running:
        yield running


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(str(model_path(DEFAULT)), invariant=True) as opened:
        yield opened


def texts(server: Server, path: str, body: dict[str, Any]) -> list[str]:
    """The choices of an answer, whole; the stream must tell the same."""
    answer = server.post(path, body)
    assert answer.status_code == 200, answer.text
    choices = [choice.get("text", choice.get("message", {}).get("content")) for choice in answer.json()["choices"]]
    streamed = [""] * len(choices)
    for line in server.post(path, {**body, "stream": True}).text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                streamed[choice["index"]] += choice.get("text") or choice.get("delta", {}).get("content") or ""
    assert streamed == choices
    return choices


def test_the_likeliest_of_those_drawn_are_told(server: Server) -> None:
    drawn = server.post("/v1/completions", {**TEXT, "n": 6, "seed": 3, "logprobs": 0}).json()["choices"]
    likelihood = {
        choice["text"]: sum(choice["logprobs"]["token_logprobs"]) / len(choice["logprobs"]["tokens"])
        for choice in drawn
    }
    ranked = sorted(likelihood, key=lambda text: -likelihood[text])
    assert texts(server, "/v1/completions", {**TEXT, "best_of": 6, "n": 2, "seed": 3}) == ranked[:2]
    usage = server.post("/v1/completions", {**TEXT, "best_of": 6, "seed": 3}).json()["usage"]
    assert usage["completion_tokens"] == 36, "all that were drawn are counted"
    assert len(texts(server, "/v1/chat/completions", {**CHAT, "best_of": 3, "seed": 3})) == 1


def test_a_search_finds_over_http_what_it_finds_offline(server: Server, llm: LLM) -> None:
    found = [beam.text for beam in llm.beam_search(PROMPT, 4, 6)]
    for width in ("beam_width", "best_of"):
        body = {**TEXT, "use_beam_search": True, width: 4, "n": 3}
        assert texts(server, "/v1/completions", body) == found[:3]
    assert len(texts(server, "/v1/chat/completions", {**CHAT, "use_beam_search": True, "n": 2})) == 2


def test_bad_words_are_not_written(server: Server) -> None:
    (plain,) = texts(server, "/v1/completions", {**TEXT, "temperature": 0})
    words = [word for word in plain.split() if word.isalpha()]
    (other,) = texts(server, "/v1/completions", {**TEXT, "temperature": 0, "bad_words": words})
    assert not any(f" {word}" in other for word in words)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"beam_width": 2}, "beam_width"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"use_beam_search": True, "beam_width": 1, "n": 2}, "beam_width"),
        ({"use_beam_search": True, "bad_words": ["x"]}, "use_beam_search"),
        ({"bad_words": [""]}, "bad_words[0]"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_by_name(server: Server, fields: dict[str, Any], param: str) -> None:
    answer = server.post("/v1/completions", TEXT | fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_offline_takes_bad_words_too(llm: LLM) -> None:
    from penstock.cli.talk.sampling import SamplingConfig

    params = SamplingConfig(temperature=0.0, max_tokens=6, bad_words=(" clear", "blue")).params(llm.files.tokenizer)
    assert isinstance(params, SamplingParams)
    assert "blue" not in llm.generate(PROMPT, params)[0].text
