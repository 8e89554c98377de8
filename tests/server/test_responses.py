"""OpenAI's own client gets from our Responses API what it gets from OpenAI's."""

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, cast

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from penstock.runtime.core.batch import Logprob
from penstock.runtime.text.stream.segments import ContentText
from penstock.runtime.text.tokenizer.tokenizer import Tokenizer
from penstock.service.server.calls.call import Call, Piece
from penstock.service.server.responses import encoder
from penstock.service.server.responses.protocol import REFUSED, ResponseBody
from tests.machine import PATIENCE_S
from tests.server.serving import Server, chat_text, oracle_text, render, serving, user

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ASKED: dict[str, Any] = {"model": "default", "temperature": 0, "max_output_tokens": 9}


@pytest.fixture(scope="module")
def sdk(server: Server) -> Iterator[openai.OpenAI]:
    with server.sdk() as client:
        yield client


class Letters:
    """A tokenizer whose tokens are letters."""

    def token(self, token_id: int) -> str:
        return chr(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        return bytes((token_id,))


def settled(sdk: openai.OpenAI, response_id: str) -> Response:
    """A background response, once it is over."""
    for _ in count():
        response = sdk.responses.retrieve(response_id)
        if response.status not in ("queued", "in_progress"):
            return response
        time.sleep(0.02)
    raise AssertionError


def test_a_response_is_made_and_kept(sdk: openai.OpenAI) -> None:
    response = sdk.responses.create(input="hello", **ASKED)
    assert response.output_text == chat_text("hello", 9)
    assert (response.status, response.error) == ("incomplete", None)
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (len(render(user("hello"))), 9)
    assert sdk.responses.retrieve(response.id).output == response.output
    (item,) = sdk.responses.input_items.list(response.id).data
    assert item.type == "message"
    sdk.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(response.id)


def test_events_are_numbered_typed_and_say_what_the_whole_does(server: Server) -> None:
    body = ASKED | {"input": "stream", "stream": True}
    texts, numbers, names = [], [], []
    for block in filter(None, server.post("/v1/responses", body).text.split("\n\n")):
        name, data = block.split("\n")
        event = EVENT.validate_python(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {event.type}"
        numbers.append(event.sequence_number)
        names.append(event.type.removeprefix("response."))
        texts.append(event.delta if event.type == "response.output_text.delta" else "")
    assert numbers == list(range(len(numbers)))
    assert "".join(texts) == chat_text("stream", 9)
    assert names[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert names[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]


def test_the_client_s_own_stream_ends_with_the_response(sdk: openai.OpenAI) -> None:
    with sdk.responses.stream(input="helper", **ASKED) as stream:
        *_, last = stream
    assert last.type == "response.incomplete"
    assert last.response.output_text == chat_text("helper", 9)


def test_a_token_without_text_has_its_log_probability_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """However tokens fall into pieces: half a character, and the token that ends the text, may come by themselves."""
    monkeypatch.setattr(encoder, "_usage", lambda call: None)

    def told(*pieces: Sequence[tuple[str, int]]) -> list[str]:
        one = encoder.ResponseEncoder({}, cast(Tokenizer, Letters()), num_top=0, on_end=lambda response: ())
        for piece in pieces:
            segments = tuple(ContentText(text) for text in ["".join(text for text, _ in piece)] if text)
            logprobs = tuple(Logprob(token, -1.0, ()) for _, token in piece)
            one.keep([Piece(0, segments, tuple(token for _, token in piece), logprobs, (), None, None)])
        (item,) = one.whole(cast(Call, None), None)["output"]
        return [entry["token"] for entry in item["content"][0]["logprobs"]]

    first, second, last = ("", 104), ("hi", 105), ("", 33)
    assert told((first,), (second,), (last,)) == told((first, second, last)) == ["h", "i", "!"]


def test_a_response_goes_on_from_the_last(sdk: openai.OpenAI) -> None:
    first = sdk.responses.create(input="one", instructions="Be brief.", **ASKED)
    second = sdk.responses.create(input="two", previous_response_id=first.id, **ASKED)
    turns = [*user("one"), {"role": "assistant", "content": first.output_text}, *user("two")]
    assert second.output_text == oracle_text(render(turns), 9)
    unkept = sdk.responses.create(input="one", store=False, **ASKED)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.create(input="two", previous_response_id=unkept.id, **ASKED)


def test_a_conversation_holds_what_was_said(sdk: openai.OpenAI) -> None:
    conversation = sdk.conversations.create(items=[{"type": "message", "role": "user", "content": "one"}])
    answer = sdk.responses.create(input="two", conversation=conversation.id, **ASKED)
    assert answer.output_text == oracle_text(render([*user("one"), *user("two")]), 9)
    items = sdk.conversations.items.list(conversation.id, order="asc").data
    assert [item.type for item in items] == ["message"] * 3
    assert sdk.conversations.update(conversation.id, metadata={"a": "b"}).metadata == {"a": "b"}
    sdk.conversations.items.delete(str(items[0].id), conversation_id=conversation.id)
    assert len(sdk.conversations.items.list(conversation.id).data) == 2
    assert sdk.conversations.delete(conversation.id).deleted
    with pytest.raises(openai.NotFoundError):
        sdk.conversations.retrieve(conversation.id)


def test_input_tokens_are_counted_as_they_are_used(sdk: openai.OpenAI) -> None:
    counted = sdk.responses.input_tokens.count(model="default", input="count me")
    usage = sdk.responses.create(input="count me", **ASKED).usage
    assert usage is not None
    assert counted.input_tokens == usage.input_tokens


def test_a_background_response_is_made_while_nobody_waits(sdk: openai.OpenAI) -> None:
    queued = sdk.responses.create(input="later", background=True, **ASKED)
    assert (queued.status, queued.output) == ("queued", [])
    assert settled(sdk, queued.id).output_text == chat_text("later", 9)


def test_a_background_stream_is_taken_up_where_it_was_left(sdk: openai.OpenAI, server: Server) -> None:
    events = list(sdk.responses.create(input="resume", background=True, stream=True, **ASKED))
    response_id = events[0].response.id  # type: ignore[union-attr]
    again = list(sdk.responses.retrieve(response_id, stream=True, starting_after=3))
    assert [event.sequence_number for event in again] == [event.sequence_number for event in events[4:]]
    assert again[-1] == events[-1]


def test_a_background_response_is_cancelled() -> None:
    with serving(model="oracle:step_ms=20") as slow, slow.sdk() as sdk:
        queued = sdk.responses.create(model="default", input="long", background=True, max_output_tokens=4000)
        assert sdk.responses.cancel(queued.id).status == "cancelled"
        assert sdk.responses.retrieve(queued.id).status == "cancelled"


def test_an_accepted_response_outlives_the_server(tmp_path: Path) -> None:
    flags = ("--data-dir", str(tmp_path))
    with serving(*flags, model="oracle:step_ms=20") as first, first.sdk() as sdk:
        queued = sdk.responses.create(input="survive", background=True, **ASKED)
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait()
    with serving(*flags) as second, second.sdk() as sdk:
        assert settled(sdk, queued.id).output_text == chat_text("survive", 9)


def test_a_response_is_forgotten_after_its_time(tmp_path: Path) -> None:
    flags = ("--data-dir", str(tmp_path))
    with serving(*flags) as first, first.sdk() as sdk:
        made = sdk.responses.create(input="remember", **ASKED)
        assert sdk.responses.retrieve(made.id).id == made.id
    with serving(*flags, "retention-days=1e-9") as second, second.sdk() as sdk:
        deadline_s = time.monotonic() + PATIENCE_S
        while made.id in _retrievable(sdk, made.id):
            assert time.monotonic() < deadline_s, "it is still there"


def _retrievable(sdk: openai.OpenAI, response_id: str) -> set[str]:
    try:
        return {sdk.responses.retrieve(response_id).id}
    except openai.NotFoundError:
        return set()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [{"type": "message", "role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
        ({"input": [{"type": "web_search_call"}]}, "input[0] of type web_search_call"),
        ({"background": True, "store": False}, "store"),
        ({"tools": [{"type": "web_search"}]}, "tools[0] of type web_search"),
        ({"input": []}, "input"),
        ({"max_output_tokens": 9000}, "input"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(sdk: openai.OpenAI, fields: Any, param: str) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            sdk.responses.create(**({"input": "x", "stream": stream} | ASKED | fields))
        assert str(caught.value.param).startswith(param)


def test_no_field_of_the_client_is_unknown() -> None:
    from openai.types.responses import response_create_params as params

    known = {*REFUSED, *ResponseBody.__struct_fields__}
    assert set(params.ResponseCreateParamsBase.__annotations__) <= known
