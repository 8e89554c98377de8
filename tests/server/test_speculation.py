"""Predicted outputs as OpenAI's client sends them: the same answer, and how much of the prediction came true."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.serving import Server, chat_text, serving, user

GREEDY: dict[str, Any] = {"model": "default", "temperature": 0.0}
NUM_TOKENS = 40
ASCII = "oracle:vocab=128"
"""What it says can be said back to it: a byte a token, and every byte a character."""


@pytest.fixture(scope="module")
def guessing() -> Iterator[Server]:
    with serving("--speculate", "auto", "--draft-tokens", "4", model=ASCII, is_real=True) as running:
        yield running


@pytest.fixture(scope="module")
def right(guessing: Server) -> str:
    """The answer, asked for without a prediction."""
    answer = guessing.sdk().chat.completions.create(messages=user("predict"), max_tokens=NUM_TOKENS, **GREEDY)
    return answer.choices[0].message.content or ""


def ask(server: Server, prediction: Any, **fields: Any) -> tuple[str | None, int, int]:
    answer = server.sdk().chat.completions.create(
        messages=user("predict"),
        max_tokens=NUM_TOKENS,
        prediction={"type": "content", "content": prediction},
        extra_body=fields,
        **GREEDY,
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == NUM_TOKENS
    details = answer.usage.completion_tokens_details
    assert details is not None
    accepted, rejected = details.accepted_prediction_tokens, details.rejected_prediction_tokens
    assert accepted is not None
    assert rejected is not None
    return answer.choices[0].message.content, accepted, rejected


def test_a_prediction_that_comes_true_is_counted(guessing: Server, right: str) -> None:
    text, accepted, rejected = ask(
        guessing, [{"type": "text", "text": right[:10]}, {"type": "text", "text": right[10:]}]
    )
    assert text == right
    assert accepted > NUM_TOKENS / 2
    assert rejected < accepted


def test_a_prediction_that_is_wrong_changes_nothing(guessing: Server, right: str) -> None:
    text, accepted, rejected = ask(guessing, "~" * 60)
    assert text == right
    assert accepted <= rejected


def test_a_client_may_forbid_drafts(guessing: Server, right: str) -> None:
    assert ask(guessing, right, speculate=0) == (right, 0, 0)


def test_a_prediction_is_taken_though_nobody_guesses(server: Server) -> None:
    right = chat_text("predict", NUM_TOKENS)
    assert ask(server, right) == (right, 0, 0)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prediction": {"type": "image", "content": "x"}}, "prediction.type"),
        ({"prediction": {"type": "content", "content": 3}}, "prediction.content"),
        ({"prediction": {"type": "content", "content": [{"type": "image_url"}]}}, "prediction.content"),
        ({"speculate": 65}, "speculate"),
        ({"speculate": -1}, "speculate"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(guessing: Server, fields: dict[str, Any], param: str) -> None:
    answer = guessing.post("/v1/chat/completions", {"messages": user("x")} | fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert param in (error["param"] or "") + error["message"]


def test_drafts_are_seen(guessing: Server, right: str) -> None:
    before = guessing.metric("vllm:spec_decode_num_accepted_tokens_total", 'source="prediction"')
    body = {
        "messages": user("predict"),
        "max_tokens": NUM_TOKENS,
        "prediction": {"type": "content", "content": right},
        "return_token_ids": True,
        "return_timings": True,
    }
    answer = guessing.post("/v1/chat/completions", GREEDY | body).json()
    marks, timings = answer["choices"][0]["accepted_drafts"], answer["usage"]["timings"]
    assert len(marks) == NUM_TOKENS
    assert sum(marks) == timings["accepted_draft_tokens"] <= timings["draft_tokens"]
    assert sum(marks) > NUM_TOKENS / 2
    after = guessing.metric("vllm:spec_decode_num_accepted_tokens_total", 'source="prediction"')
    assert after - before >= answer["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 0
    assert guessing.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total", 'position="0"') > 0


def test_a_stream_tells_the_same(guessing: Server, right: str) -> None:
    chunks = guessing.sdk().chat.completions.create(
        messages=user("predict"),
        max_tokens=NUM_TOKENS,
        prediction={"type": "content", "content": right},
        stream=True,
        **GREEDY,
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == right
