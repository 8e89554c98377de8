"""The official OpenAI client finds here what it finds at home."""

import asyncio
import base64
import struct
from typing import Any

import langchain_openai
import openai
import pytest

from tests.server.serving import MODEL, Server, chat_text, oracle_text, oracle_tokens, render, user

GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0.0}


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return server.sdk()


def test_a_chat_is_answered(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(messages=user("hello"), max_completion_tokens=12, **GREEDY)
    choice = answer.choices[0]
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model) == ("chat.completion", MODEL)
    assert choice.message.role == "assistant"
    assert choice.message.content == chat_text("hello", 12)
    assert choice.finish_reason == "length"
    assert (choice.message.refusal, choice.logprobs) == (None, None)
    assert answer.usage is not None
    prompt_tokens = len(render(user("hello")))
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt_tokens, 12)
    assert answer.usage.total_tokens == prompt_tokens + 12
    assert answer._request_id


def test_the_second_asking_finds_its_prompt_cached(client: openai.OpenAI) -> None:
    for _ in range(2):
        answer = client.chat.completions.create(messages=user("cached " * 10), max_tokens=2, **GREEDY)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert (answer.usage.prompt_tokens_details.cached_tokens or 0) >= 64


def test_a_stream_tells_the_same_in_the_order_clients_expect(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            messages=user("stream"), max_tokens=9, stream=True, stream_options={"include_usage": True}, **GREEDY
        )
    )
    first, *middle, finish, usage = chunks
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert "".join(chunk.choices[0].delta.content or "" for chunk in middle) == chat_text("stream", 9)
    assert all(chunk.choices[0].finish_reason is None for chunk in (first, *middle))
    assert finish.choices[0].finish_reason == "length"
    assert finish.choices[0].delta.content is None
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == 9
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1


def test_usage_is_told_only_when_asked(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(messages=user("x"), max_tokens=2, stream=True, **GREEDY)
    assert all(chunk.choices and chunk.usage is None for chunk in stream)


@pytest.mark.parametrize("stream", [False, True])
def test_choices_are_those_of_their_seeds(client: openai.OpenAI, stream: bool) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": user("n"), "n": 3, "seed": 7, "max_tokens": 6}
    texts = ["", "", ""]
    if stream:
        ends = set()
        for chunk in client.chat.completions.create(stream=True, **asked):
            choice = chunk.choices[0]
            assert choice.index not in ends
            texts[choice.index] += choice.delta.content or ""
            ends |= {choice.index} if choice.finish_reason else set()
        assert ends == {0, 1, 2}
    else:
        answer = client.chat.completions.create(**asked)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 18
        texts = [choice.message.content or "" for choice in answer.choices]
    assert texts == [chat_text("n", 6, choice=index, seed=7) for index in range(3)]


def test_without_a_seed_answers_differ(client: openai.OpenAI) -> None:
    answers = [
        client.chat.completions.create(model=MODEL, messages=user("s"), max_tokens=8).choices[0].message.content
        for _ in range(2)
    ]
    assert answers[0] != answers[1]


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_stand_beside_their_tokens(client: openai.OpenAI, stream: bool) -> None:
    asked: dict[str, Any] = {"messages": user("lp"), "max_tokens": 5, "logprobs": True, "top_logprobs": 3, **GREEDY}
    if stream:
        entries = []
        for chunk in client.chat.completions.create(stream=True, **asked):
            logprobs = chunk.choices[0].logprobs
            entries += (logprobs.content or []) if logprobs else []
    else:
        reported = client.chat.completions.create(**asked).choices[0].logprobs
        assert reported is not None
        entries = reported.content or []
    tokens = oracle_tokens(render(user("lp")), 5)
    assert [entry.bytes for entry in entries] == [[token] for token in tokens]
    assert {entry.logprob for entry in entries} == {-0.5}
    assert all(len(entry.top_logprobs) == 3 for entry in entries)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI, stream: bool) -> None:
    whole = chat_text("stop", 30)
    stop = whole[6:9]
    asked: dict[str, Any] = {"messages": user("stop"), "max_tokens": 30, "stop": [stop, "never there"], **GREEDY}
    if stream:
        chunks = list(client.chat.completions.create(stream=True, **asked))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        choice = client.chat.completions.create(**asked).choices[0]
        text, reason = choice.message.content or "", choice.finish_reason
    assert (text, reason) == (whole[: whole.index(stop)], "stop")


def test_extra_wishes_are_honoured_and_unknown_ones_told(client: openai.OpenAI) -> None:
    extra = {
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "min_tokens": 2,
        "ignore_eos": True,
        "return_token_ids": True,
        "priority": 3,
        "cache_salt": "mine",
        "return_timings": True,
        "frobnicate": 1,
    }
    raw = client.chat.completions.with_raw_response.create(
        messages=user("extra"), max_tokens=3, logit_bias={"65": -100}, extra_body=extra, **GREEDY
    )
    assert raw.headers["x-penstock-ignored"] == "frobnicate"
    body = raw.http_response.json()
    assert body["choices"][0]["token_ids"] == oracle_tokens(render(user("extra")), 3)
    assert set(body["usage"]["timings"]) == {"queue_ms", "prefill_ms", "decode_ms", "flush_ms", "total_ms"}
    assert "total;dur=" in raw.headers["server-timing"]


def test_a_chat_and_its_stream_have_the_same_ids(client: openai.OpenAI) -> None:
    """Where others have them: those of the prompt at the head, those of the answer in each choice."""
    asked: dict[str, Any] = {
        "messages": user("same ids"),
        "max_tokens": 6,
        "n": 2,
        "extra_body": {"return_token_ids": True, "ignore_eos": True},
        **GREEDY,
    }
    whole = client.chat.completions.create(**asked).model_dump()
    chunks = [chunk.model_dump() for chunk in client.chat.completions.create(stream=True, **asked)]
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"] == [*render(user("same ids")).encode()]
    streamed: list[list[int]] = [[], []]
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        streamed[choice["index"]] += choice.get("token_ids") or []
    assert streamed == [choice["token_ids"] for choice in whole["choices"]]
    assert len(streamed[0]) == 6


@pytest.mark.parametrize("stream", [False, True])
def test_ids_of_an_answer_are_all_its_tokens(client: openai.OpenAI, stream: bool) -> None:
    """Those too that show no text by themselves: the oracle draws bytes, of which many are only a part of a character."""
    for number in range(12):
        asked: dict[str, Any] = {
            "max_tokens": 6,
            "extra_body": {"return_token_ids": True, "ignore_eos": True},
            **GREEDY,
        }
        prompt = f"ids {number}"
        if stream:
            chunks = client.completions.create(prompt=prompt, stream=True, **asked)
            told = [chunk.choices[0].model_dump().get("token_ids") or [] for chunk in chunks if chunk.choices]
        else:
            told = [client.completions.create(prompt=prompt, **asked).choices[0].model_dump()["token_ids"]]
        assert [token for part in told for token in part] == oracle_tokens(prompt, 6)


def test_stop_tokens_end_an_answer(client: openai.OpenAI) -> None:
    tokens = oracle_tokens(render(user("ids")), 10)
    answer = client.chat.completions.create(
        messages=user("ids"), max_tokens=10, extra_body={"stop_token_ids": [tokens[4]]}, **GREEDY
    )
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == tokens.index(tokens[4]) + 1


def test_texts_are_continued(client: openai.OpenAI) -> None:
    answer = client.completions.create(prompt=["one", "two"], n=2, seed=3, max_tokens=4, model=MODEL)
    assert answer.object == "text_completion"
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    expected = [oracle_text(prompt, 4, choice=choice, seed=3) for prompt in ("one", "two") for choice in (0, 1)]
    assert [choice.text for choice in answer.choices] == expected
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 16)


def test_token_ids_are_prompts_too(client: openai.OpenAI) -> None:
    one = client.completions.create(prompt=[97, 98], max_tokens=3, **GREEDY).choices[0].text
    many = client.completions.create(prompt=[[97, 98], [99]], max_tokens=3, **GREEDY).choices
    assert (one, many[0].text, many[1].text) == (oracle_text("ab", 3), oracle_text("ab", 3), oracle_text("c", 3))


def test_a_completion_without_a_length_has_sixteen_tokens(client: openai.OpenAI) -> None:
    answer = client.completions.create(prompt="x", **GREEDY)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


@pytest.mark.parametrize("prompt", ["echo me", [101, 102, 103], "several steps " * 200])
@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_log_probabilities_covers_prompt_and_answer(client: openai.OpenAI, prompt: Any, stream: bool) -> None:
    asked: dict[str, Any] = {"prompt": prompt, "max_tokens": 2, "echo": True, "logprobs": 1, **GREEDY}
    text = prompt if isinstance(prompt, str) else bytes(prompt).decode()
    tokens, numbers, offsets, whole = [], [], [], ""
    chunks = list(client.completions.create(stream=True, **asked)) if stream else [client.completions.create(**asked)]
    for chunk in chunks:
        whole += chunk.choices[0].text
        logprobs = chunk.choices[0].logprobs
        if logprobs is not None:
            tokens += logprobs.tokens or []
            numbers += logprobs.token_logprobs or []
            offsets += logprobs.text_offset or []
    assert whole == text + oracle_text(text, 2)
    assert len(tokens) == len(text) + 2
    assert "".join(tokens[: len(text)]) == text
    assert numbers[0] is None
    assert numbers[1:] == [-0.5] * (len(text) + 1)
    assert offsets == list(range(len(text) + 2))


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_may_be_judged_alone(client: openai.OpenAI, stream: bool) -> None:
    asked: dict[str, Any] = {"prompt": "judge", "max_tokens": 0, "echo": True, "logprobs": 0, **GREEDY}
    chunks = list(client.completions.create(stream=True, **asked)) if stream else [client.completions.create(**asked)]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "judge"
    numbers = [
        number
        for chunk in chunks
        if chunk.choices[0].logprobs
        for number in chunk.choices[0].logprobs.token_logprobs or []
    ]
    assert numbers == [None, -0.5, -0.5, -0.5, -0.5]
    if not stream:
        assert chunks[0].usage is not None
        assert chunks[0].usage.completion_tokens == 0


def test_a_streamed_completion_says_what_a_whole_one_says(client: openai.OpenAI) -> None:
    stream = client.completions.create(prompt=["p", "q"], max_tokens=7, stream=True, **GREEDY)
    texts = ["", ""]
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [oracle_text("p", 7), oracle_text("q", 7)]


def test_embeddings_arrive_in_either_form(client: openai.OpenAI, server: Server) -> None:
    default = client.embeddings.create(input=["a", "b"], model=MODEL)  # the client asks for base64 and decodes it
    plain = client.embeddings.create(input=["a", "b"], model=MODEL, encoding_format="float")
    assert len(default.data) == 2
    for one, other in zip(default.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
    raw = server.post("/v1/embeddings", {"input": "a", "encoding_format": "base64", "dimensions": 4}).json()
    numbers = struct.unpack("<4f", base64.b64decode(raw["data"][0]["embedding"]))
    assert sum(number * number for number in numbers) == pytest.approx(1.0)
    assert default.usage.prompt_tokens == 2


def test_documents_are_ordered_by_nearness(server: Server) -> None:
    body = {"query": "needle", "documents": ["hay", "needle", {"text": "straw"}], "return_documents": True}
    results = server.post("/v1/rerank", body).json()["results"]
    assert results[0]["index"] == 1
    assert results[0]["relevance_score"] == pytest.approx(1.0)
    assert results[0]["document"]["text"] == "needle"


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("org/other")
    assert caught.value.code == "model_not_found"


def test_tokens_come_and_go(server: Server) -> None:
    tokens = server.post("/tokenize", {"prompt": "café"}).json()
    assert tokens["tokens"] == list("café".encode())
    assert server.post("/detokenize", {"tokens": tokens["tokens"]}).json() == {"prompt": "café"}
    chat = server.post("/tokenize", {"messages": user("x")}).json()
    assert chat["count"] == len(render(user("x")))


FAULTS = [
    ({"messages": []}, openai.BadRequestError, "messages", "invalid_value"),
    ({"temperature": 3.0}, openai.BadRequestError, "temperature", "decimal_above_max_value"),
    ({"temperature": -1.0}, openai.BadRequestError, "temperature", "decimal_below_min_value"),
    ({"max_tokens": 0}, openai.BadRequestError, "max_tokens", "decimal_below_min_value"),
    ({"max_tokens": 10**6}, openai.BadRequestError, "messages", "context_length_exceeded"),
    ({"messages": user("x" * 9000)}, openai.BadRequestError, "messages", "context_length_exceeded"),
    ({"model": "other"}, openai.NotFoundError, "model", "model_not_found"),
    (
        {"tools": [{"type": "function", "function": {"name": "f"}}] * 2},
        openai.BadRequestError,
        "tools",
        "invalid_value",
    ),
    ({"tool_choice": "required"}, openai.BadRequestError, "tool_choice", "invalid_value"),
    (
        {"messages": [*user("x"), {"role": "tool", "tool_call_id": "a", "content": "b"}]},
        openai.BadRequestError,
        "messages[1].tool_call_id",
        "invalid_value",
    ),
    ({"response_format": {"type": "json_schema"}}, openai.BadRequestError, "response_format", "invalid_value"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"not": {}}}}},
        openai.BadRequestError,
        "response_format",
        "invalid_json_schema",
    ),
    ({"top_logprobs": 2}, openai.BadRequestError, "top_logprobs", "invalid_value"),
    ({"logit_bias": {"999": 1}}, openai.BadRequestError, "logit_bias", "invalid_value"),
    ({"stop": ["a"] * 17}, openai.BadRequestError, "stop", "invalid_value"),
    ({"stop": [""]}, openai.BadRequestError, "stop", "invalid_value"),
    ({"n": "two"}, openai.BadRequestError, "n", "invalid_type"),
    ({"extra_body": {"guided_json": {"type": 1}}}, openai.BadRequestError, "guided_json", "invalid_json_schema"),
    ({"extra_body": {"guided_regex": "(?=a)b"}}, openai.BadRequestError, "guided_regex", "invalid_grammar"),
    ({"extra_body": {"grammar": "root ::= nobody"}}, openai.BadRequestError, "grammar", "invalid_value"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("asked", "kind", "param", "code"), FAULTS)
def test_every_fault_is_an_error_of_its_kind_before_the_first_byte(
    client: openai.OpenAI,
    asked: dict[str, Any],
    kind: type[openai.APIStatusError],
    param: str,
    code: str,
    stream: bool,
) -> None:
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**({"messages": user("x"), "stream": stream} | GREEDY | asked))
    assert (caught.value.param, caught.value.code) == (param, code)
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id


def test_the_context_error_reads_as_agents_expect(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length is 8,192 tokens"):
        client.chat.completions.create(messages=user("x" * 9000), **GREEDY)


def test_a_prompt_may_be_cut_when_asked(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        messages=user("x" * 9000), max_tokens=1, extra_body={"truncate_prompt_tokens": 100}, **GREEDY
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 100


def test_a_missed_deadline_is_told_and_not_retried(client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        client.with_options(max_retries=2).chat.completions.create(
            messages=user("late"), max_tokens=4000, extra_body={"deadline_ms": 5}, **GREEDY
        )
    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")


def test_thirty_two_streams_at_once_are_all_right(server: Server) -> None:
    async def ask(client: openai.AsyncOpenAI, number: int) -> bool:
        content = f"stream {number}"
        stream = await client.chat.completions.create(messages=user(content), max_tokens=20, stream=True, **GREEDY)
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
        return text == chat_text(content, 20)

    async def session() -> list[bool]:
        async with server.async_sdk() as client:
            return await asyncio.gather(*(ask(client, number) for number in range(32)))

    assert all(asyncio.run(session()))


def test_langchain_speaks_to_us(server: Server) -> None:
    chat = langchain_openai.ChatOpenAI(
        model=MODEL, base_url=server.url + "/v1", api_key="none", temperature=0.0, max_tokens=8
    )
    assert chat.invoke("hello").content == chat_text("hello", 8)
    assert "".join(chunk.content for chunk in chat.stream("hello")) == chat_text("hello", 8)
