"""What Ollama's clients expect of /api."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.tools.conform.check import ONE_NUMBER, Suite, Target, Unmet, expect

OPTIONS = {"temperature": 0, "num_predict": 8}
MESSAGES = [{"role": "user", "content": "Say hello."}]


@contextmanager
def client(target: Target) -> Iterator[Any]:
    import ollama

    opened = ollama.Client(host=target.url, headers=target.headers, timeout=target.timeout_s)
    try:
        yield opened
    finally:
        opened._client.close()


SUITE = Suite("ollama", client)


@SUITE.must
def a_chat_is_answered_with_counts(target: Target, sdk: Any) -> None:
    answer = sdk.chat(target.model, MESSAGES, options=OPTIONS)
    expect(answer.message.role == "assistant" and answer.message.content, "there is no message")
    expect(answer.done and answer.done_reason in ("stop", "length"), f"done_reason is {answer.done_reason!r}")
    expect(answer.eval_count and answer.prompt_eval_count and answer.total_duration, "counts or durations are missing")


@SUITE.must
def answers_are_streamed_as_lines_unless_asked_otherwise(target: Target, _: Any) -> None:
    answer = target.post("/api/chat", {"model": target.model, "messages": MESSAGES, "options": OPTIONS})
    expect(answer.headers["content-type"].startswith("application/x-ndjson"), "content-type is not x-ndjson")
    lines = [json.loads(line) for line in answer.text.strip().split("\n")]
    expect([line["done"] for line in lines] == [False] * (len(lines) - 1) + [True], "only the last line is done")


@SUITE.must
def a_stream_says_what_the_whole_does(target: Target, sdk: Any) -> None:
    whole = sdk.chat(target.model, MESSAGES, options=OPTIONS).message.content
    parts = "".join(
        part.message.content or "" for part in sdk.chat(target.model, MESSAGES, options=OPTIONS, stream=True)
    )
    expect(parts == whole, f"streamed {parts!r}, whole {whole!r}")


@SUITE.must
def a_prompt_is_answered_or_continued(target: Target, sdk: Any) -> None:
    expect(sdk.generate(target.model, "Say hello.", options=OPTIONS).response, "generate gives no response")
    expect(sdk.generate(target.model, "One, two,", raw=True, options=OPTIONS).response, "raw gives no response")


@SUITE.must
def models_are_listed_and_shown(target: Target, sdk: Any) -> None:
    expect(sdk.list().models, "tags lists nothing")
    shown = sdk.show(target.model)
    expect(shown.capabilities and "completion" in shown.capabilities, "show has no capabilities")


@SUITE.must
def errors_are_one_text(target: Target, sdk: Any) -> None:
    import ollama

    try:
        sdk.chat("no-such-model", MESSAGES)
    except ollama.ResponseError as error:
        expect(error.status_code == 404, f"status {error.status_code}, not 404")
    else:
        raise Unmet("an unknown model is answered")
    answer = target.post("/api/chat", {"model": target.model, "messages": 1})
    expect(answer.status_code == 400 and set(answer.json()) == {"error"}, f"{answer.status_code} {answer.text[:80]}")


@SUITE.must
def a_version_is_given(target: Target, _: Any) -> None:
    import httpx

    answer = httpx.get(f"{target.url}/api/version", headers=target.headers)
    expect(answer.json().get("version"), "there is no version")


@SUITE.should
def a_question_without_words_loads_the_model(target: Target, sdk: Any) -> None:
    expect(sdk.generate(target.model).done_reason == "load", "done_reason is not load")


@SUITE.should
def a_context_goes_on(target: Target, sdk: Any) -> None:
    first = sdk.generate(target.model, "One.", options=OPTIONS)
    expect(first.context, "there is no context")
    more = sdk.generate(target.model, "Two.", context=first.context, options=OPTIONS)
    expect(more.prompt_eval_count > first.prompt_eval_count, "nothing of the context is in the prompt")


@SUITE.should
def answers_keep_to_a_schema(target: Target, sdk: Any) -> None:
    answer = sdk.chat(target.model, MESSAGES, format=ONE_NUMBER, options={"temperature": 0, "num_predict": 64})
    expect(set(json.loads(answer.message.content)) == {"a"}, f"the answer is {answer.message.content!r}")


@SUITE.should
def texts_become_vectors(target: Target, sdk: Any) -> None:
    expect(len(sdk.embed(target.model, ["one", "two"]).embeddings) == 2, "two texts do not give two vectors")
