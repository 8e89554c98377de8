"""What OpenAI's clients expect of chat, completions, embeddings, models, responses, files and batches."""

import io
import json
import time
from typing import Any

from penstock.tools.conform.check import ONE_NUMBER, Suite, Target, expect

BATCH_S = 60.0


def client(target: Target) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{target.url}/v1", api_key=target.key, max_retries=0, timeout=target.timeout_s)


SUITE = Suite("openai", client)


def asked(target: Target, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Say hello."}]
    return {"model": target.model, "messages": messages, "max_tokens": 8, "temperature": 0} | fields


def check_error(answer: Any, status: int, what: str) -> dict[str, Any]:
    expect(answer.status_code == status, f"{what}: status {answer.status_code}, not {status}")
    error: dict[str, Any] = answer.json().get("error") or {}
    expect({"message", "type", "param", "code"} <= set(error), f"{what}: the error lacks a key: {sorted(error)}")
    code = error["code"]
    expect(code is None or isinstance(code, str), f"{what}: code is {code!r}, not a text or null")
    return error


@SUITE.must
def models_are_listed_and_one_is_shown(target: Target, sdk: Any) -> None:
    models = sdk.models.list().data
    expect(models, "the list of models is empty")
    expect(all(model.object == "model" for model in models), "an entry is no model")
    expect(sdk.models.retrieve(models[0].id).id == models[0].id, "a model's own page names another")


@SUITE.must
def a_chat_is_answered_with_usage(target: Target, sdk: Any) -> None:
    answer = sdk.chat.completions.create(**asked(target))
    choice, usage = answer.choices[0], answer.usage
    expect(choice.message.role == "assistant", "the message is not the assistant's")
    expect(isinstance(choice.message.content, str), "the message has no content")
    expect(choice.finish_reason in ("stop", "length"), f"finish_reason is {choice.finish_reason!r}")
    adds_up = usage is not None and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    expect(adds_up, "usage does not add up")


@SUITE.must
def keys_that_strict_clients_require_are_there(target: Target, _: Any) -> None:
    answer = target.post("/v1/chat/completions", asked(target)).json()
    choice = answer["choices"][0]
    expect("refusal" in choice["message"], "message.refusal is missing")
    expect("logprobs" in choice, "choices[0].logprobs is missing")
    expect({"id", "object", "created", "model"} <= set(answer), "a head field is missing")


@SUITE.must
def a_stream_begins_with_the_role_and_ends_with_an_empty_delta(target: Target, sdk: Any) -> None:
    chunks = list(sdk.chat.completions.create(**asked(target, stream=True)))
    expect(chunks[0].choices[0].delta.role == "assistant", "the first chunk has no role")
    expect(len({chunk.id for chunk in chunks}) == 1, "chunks have different ids")
    last = chunks[-1].choices[0]
    expect(last.finish_reason in ("stop", "length"), "the last chunk has no finish_reason")
    expect(not last.delta.content, "the finish chunk carries text")
    expect(all(chunk.usage is None for chunk in chunks), "usage came unasked")


@SUITE.must
def usage_in_a_stream_comes_last_and_alone(target: Target, sdk: Any) -> None:
    options = {"include_usage": True}
    *chunks, last = sdk.chat.completions.create(**asked(target, stream=True, stream_options=options))
    expect(last.choices == [] and last.usage is not None, "the last chunk is not usage with empty choices")
    expect(all(chunk.usage is None for chunk in chunks), "an earlier chunk has usage")


@SUITE.must
def a_stream_says_what_the_whole_does(target: Target, sdk: Any) -> None:
    whole = sdk.chat.completions.create(**asked(target)).choices[0].message.content
    chunks = sdk.chat.completions.create(**asked(target, stream=True))
    parts = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    expect(parts == whole, f"streamed {parts!r}, whole {whole!r}")


@SUITE.must
def a_stream_ends_with_done(target: Target, _: Any) -> None:
    answer = target.post("/v1/chat/completions", asked(target, stream=True))
    expect(answer.headers["content-type"].startswith("text/event-stream"), "content-type is no event stream")
    expect(answer.text.rstrip().endswith("data: [DONE]"), "the stream does not end with [DONE]")


@SUITE.must
def max_tokens_bounds_the_answer(target: Target, sdk: Any) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        body = asked(target, messages=[{"role": "user", "content": "Count from one to a hundred."}])
        body.pop("max_tokens")
        answer = sdk.chat.completions.create(**body, **{name: 3})
        expect(answer.usage.completion_tokens <= 3, f"{name} 3 gave {answer.usage.completion_tokens} tokens")
        expect(answer.choices[0].finish_reason == "length", f"{name}: finish_reason is not length")


@SUITE.must
def a_stop_string_ends_the_text_and_is_left_out(target: Target, sdk: Any) -> None:
    whole = sdk.chat.completions.create(**asked(target, max_tokens=16)).choices[0].message.content
    stop = whole[len(whole) // 2 :][:3]
    choice = sdk.chat.completions.create(**asked(target, max_tokens=16, stop=[stop])).choices[0]
    expect(choice.message.content == whole[: whole.index(stop)], "the text is not cut before the stop string")
    expect(choice.finish_reason == "stop", f"finish_reason is {choice.finish_reason!r}")


@SUITE.must
def faults_are_errors_before_the_stream_begins(target: Target, _: Any) -> None:
    for stream in (False, True):
        for fields, what in (
            ({"temperature": -1}, "temperature -1"),
            ({"messages": []}, "no messages"),
            ({"messages": [{"role": "nobody", "content": "x"}]}, "an unknown role"),
            ({"top_logprobs": 100, "logprobs": True}, "top_logprobs 100"),
        ):
            check_error(target.post("/v1/chat/completions", asked(target, stream=stream, **fields)), 400, what)


@SUITE.must
def a_prompt_too_long_is_refused_with_its_code(target: Target, _: Any) -> None:
    body = asked(target, messages=[{"role": "user", "content": "word " * 200_000}], stream=True)
    error = check_error(target.post("/v1/chat/completions", body), 400, "a prompt too long")
    expect(error["code"] == "context_length_exceeded", f"code is {error['code']!r}")


@SUITE.must
def what_is_no_json_is_a_client_s_fault(target: Target, _: Any) -> None:
    check_error(target.post("/v1/chat/completions", b"{"), 400, "half a body")


@SUITE.must
def an_unknown_model_or_path_is_a_404_of_the_same_shape(target: Target, _: Any) -> None:
    answer = target.post("/v1/chat/completions", asked(target, model="no-such-model"))
    error = check_error(answer, 404, "an unknown model")
    expect(error["code"] == "model_not_found", f"code is {error['code']!r}")
    check_error(target.post("/v1/no/such/path", {}), 404, "an unknown path")


@SUITE.must
def every_answer_has_a_request_id(target: Target, _: Any) -> None:
    chat = "/v1/chat/completions"
    for path, body in ((chat, asked(target)), (chat, b"{"), ("/v1/nothing", {})):
        answer = target.post(path, body)
        expect(answer.headers.get("x-request-id"), f"no x-request-id with status {answer.status_code}")


@SUITE.must
def several_choices_are_numbered(target: Target, sdk: Any) -> None:
    answer = sdk.chat.completions.create(**asked(target, n=2, temperature=1))
    expect([choice.index for choice in answer.choices] == [0, 1], "two choices are not numbered 0 and 1")
    chunks = list(sdk.chat.completions.create(**asked(target, n=2, temperature=1, stream=True)))
    ends = sorted(chunk.choices[0].index for chunk in chunks if chunk.choices[0].finish_reason)
    expect(ends == [0, 1], f"finishes in the stream: {ends}")


@SUITE.must
def a_text_is_continued(target: Target, sdk: Any) -> None:
    answer = sdk.completions.create(model=target.model, prompt=["One, two,", "A, B,"], max_tokens=4, temperature=0)
    expect([choice.index for choice in answer.choices] == [0, 1], "two prompts do not give choices 0 and 1")
    expect(answer.object == "text_completion", f"object is {answer.object!r}")


@SUITE.should
def the_same_seed_gives_the_same_text(target: Target, sdk: Any) -> None:
    texts = {
        sdk.chat.completions.create(**asked(target, seed=7, temperature=1)).choices[0].message.content for _ in range(2)
    }
    expect(len(texts) == 1, "two calls with one seed differ")


@SUITE.should
def log_probabilities_stand_beside_their_tokens(target: Target, sdk: Any) -> None:
    answer = sdk.chat.completions.create(**asked(target, logprobs=True, top_logprobs=2))
    logprobs = answer.choices[0].logprobs
    expect(logprobs is not None and logprobs.content, "no logprobs came")
    expect(all(len(entry.top_logprobs) == 2 for entry in logprobs.content), "not two rivals each")


@SUITE.should
def an_echo_with_log_probabilities_judges_a_prompt(target: Target, sdk: Any) -> None:
    answer = sdk.completions.create(model=target.model, prompt="One, two, three", max_tokens=1, echo=True, logprobs=1)
    logprobs = answer.choices[0].logprobs
    expect(logprobs is not None and logprobs.token_logprobs[0] is None, "the first token has a log probability")


@SUITE.should
def answers_keep_to_a_schema(target: Target, sdk: Any) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": ONE_NUMBER, "strict": True}}
    answer = sdk.chat.completions.create(**asked(target, response_format=form, max_tokens=64))
    value = json.loads(answer.choices[0].message.content)
    expect(set(value) == {"a"} and isinstance(value["a"], int), f"the answer is {value!r}")


@SUITE.should
def a_required_tool_is_called(target: Target, sdk: Any) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
    answer = sdk.chat.completions.create(**asked(target, tools=tools, tool_choice="required", max_tokens=64))
    calls = answer.choices[0].message.tool_calls or []
    expect(calls and calls[0].function.name == "weather", "no call came")
    expect("city" in json.loads(calls[0].function.arguments), "the arguments lack what is required")


@SUITE.should
def a_response_is_made_and_its_events_are_numbered(target: Target, sdk: Any) -> None:
    made = sdk.responses.create(model=target.model, input="Say hello.", max_output_tokens=8)
    expect(made.output and made.usage.total_tokens, "the response has no output or no usage")
    events = list(sdk.responses.create(model=target.model, input="Say hello.", max_output_tokens=8, stream=True))
    numbers = [event.sequence_number for event in events]
    expect(numbers == list(range(len(numbers))), "events are not numbered from 0")
    expect(events[0].type == "response.created", f"the first event is {events[0].type}")
    expect(events[-1].type in ("response.completed", "response.incomplete"), f"the last event is {events[-1].type}")


@SUITE.should
def a_response_goes_on_from_the_last(target: Target, sdk: Any) -> None:
    first = sdk.responses.create(model=target.model, input="One.", max_output_tokens=4)
    more = sdk.responses.create(model=target.model, input="Two.", previous_response_id=first.id, max_output_tokens=4)
    expect(more.usage.input_tokens > first.usage.input_tokens, "nothing of the first is in the second's input")


@SUITE.should
def a_batch_is_answered(target: Target, sdk: Any) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": asked(target)}
    file = sdk.files.create(file=("in.jsonl", io.BytesIO(json.dumps(line).encode())), purpose="batch")
    batch = sdk.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    deadline_s = time.monotonic() + BATCH_S
    while batch.status in ("validating", "in_progress", "finalizing") and time.monotonic() < deadline_s:
        time.sleep(0.1)
        batch = sdk.batches.retrieve(batch.id)
    expect(batch.status == "completed", f"the batch is {batch.status}")
    answer = json.loads(sdk.files.content(batch.output_file_id).text)
    expect(answer["custom_id"] == "a" and answer["response"]["status_code"] == 200, f"the answer is {answer!r}")


@SUITE.should
def texts_become_vectors(target: Target, sdk: Any) -> None:
    answer = sdk.embeddings.create(model=target.model, input=["one", "two"])
    expect([entry.index for entry in answer.data] == [0, 1], "two texts do not give vectors 0 and 1")
