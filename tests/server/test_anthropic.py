"""Anthropic's own client gets from us what it gets from Anthropic."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

from penstock.service.server.anthropic.protocol import REFUSED, MessagesBody
from tests.server.serving import KEY, Server, chat_text, oracle_text, render, user

GREEDY: dict[str, Any] = {"extra_body": {"temperature": 0}}
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


OPENED: list[anthropic.Anthropic] = []


@pytest.fixture(autouse=True, scope="module")
def _closed() -> Iterator[None]:
    yield
    for client in OPENED:
        client.close()


def sdk(server: Server, key: str = "none") -> anthropic.Anthropic:
    client = anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0)
    OPENED.append(client)
    return client


def create(server: Server, **fields: Any) -> anthropic.types.Message:
    body = {"model": "default", "max_tokens": 9, "messages": user("hello")} | GREEDY | fields
    return sdk(server).messages.create(**body)


def events(server: Server, **fields: Any) -> list[Any]:
    body = {"model": "default", "max_tokens": 9, "messages": user("hello"), "temperature": 0, "stream": True} | fields
    lines = server.post("/v1/messages", body).text.split("\n\n")
    found = []
    for block in filter(None, lines):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(EVENT.validate_python(event) if event["type"] != "ping" else event)
    return found


def test_a_message_is_answered(server: Server) -> None:
    message = create(server)
    assert [block.text for block in message.content if block.type == "text"] == [chat_text("hello", 9)]
    assert (message.role, message.stop_reason, message.stop_sequence) == ("assistant", "max_tokens", None)
    usage = message.usage
    assert usage.output_tokens == 9
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == len(render(user("hello")))
    assert message._request_id


def test_a_stream_has_every_event_in_its_place(server: Server) -> None:
    kinds = [event.type for event in events(server)]
    first, *middle, stop, delta, last = kinds
    assert (first, stop, delta, last) == ("message_start", "content_block_stop", "message_delta", "message_stop")
    assert middle[0] == "content_block_start"
    assert set(middle[1:]) == {"content_block_delta"}


def test_a_stream_says_what_the_whole_does(server: Server) -> None:
    body: dict[str, Any] = {"model": "default", "max_tokens": 9, "messages": user("both ways")}
    with sdk(server).messages.stream(**body, **GREEDY) as stream:
        texts = "".join(stream.text_stream)
        final = stream.get_final_message()
    whole = create(server, messages=user("both ways"))
    assert texts == "".join(block.text for block in whole.content if block.type == "text")
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_stop_sequence_is_named(server: Server) -> None:
    stop = chat_text("hello", 9)[3:5]
    message = create(server, stop_sequences=[stop, "never"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert message.content[0].type == "text"
    assert message.content[0].text == chat_text("hello", 9)[:3]
    assert events(server, stop_sequences=[stop])[-2].delta.stop_sequence == stop


def test_system_blocks_stand_first_and_billing_nonces_are_left_out(server: Server) -> None:
    blocks = [{"type": "text", "text": "x-anthropic-billing-header: cch=1"}, {"type": "text", "text": "Be brief."}]
    plain = create(server, system="Be brief.")
    assert create(server, system=blocks).content == plain.content
    prompt = render([{"role": "system", "content": "Be brief."}, *user("hello")])
    assert plain.content[0].type == "text"
    assert plain.content[0].text == oracle_text(prompt, 9)


def test_the_last_turn_of_the_assistant_is_gone_on_with(server: Server) -> None:
    turns = [*user("hello"), {"role": "assistant", "content": "I was"}]
    message = create(server, messages=turns)
    assert message.content[0].type == "text"
    assert message.content[0].text == oracle_text("user: hello\nassistant: I was", 9)


def test_tokens_are_counted_as_they_are_used(server: Server) -> None:
    counted = sdk(server).messages.count_tokens(model="default", messages=user("count me"))
    usage = create(server, messages=user("count me")).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_models_have_the_shape_that_the_version_header_asks_for(server: Server) -> None:
    (model,) = sdk(server).models.list().data
    assert (model.id, model.type, model.lifecycle) == ("oracle:", "model", "active")
    assert sdk(server).models.retrieve("oracle:").id == "oracle:"
    assert server.sdk().models.list().data[0].object == "model"


@pytest.mark.parametrize(
    ("fields", "error", "status"),
    [
        ({"model": "other"}, anthropic.NotFoundError, 404),
        ({"messages": []}, anthropic.BadRequestError, 400),
        ({"max_tokens": 9000}, anthropic.BadRequestError, 400),
        ({"extra_body": {"temperature": 3}}, anthropic.BadRequestError, 400),
        ({"extra_body": {"container": "x"}}, anthropic.BadRequestError, 400),
    ],
)
def test_errors_have_types_and_ids(
    server: Server, fields: Any, error: type[anthropic.APIStatusError], status: int
) -> None:
    for stream in (False, True):
        with pytest.raises(error) as caught:
            create(server, stream=stream, **fields)
        assert caught.value.status_code == status
        assert caught.value.request_id == caught.value.response.headers["x-request-id"]
        assert isinstance(caught.value.body, dict)
        assert caught.value.body["request_id"] == caught.value.request_id


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"cache_control": {"ttl": "300s"}}, "cache_control.ttl"),
        ({"system": [{"type": "text", "text": "x", "cache_control": {"ttl": "300s"}}]}, "system[0].cache_control.ttl"),
        ({"tools": [{"name": "f", "cache_control": {"ttl": "300s"}}]}, "tools[0].cache_control.ttl"),
    ],
)
def test_a_value_that_is_none_of_a_field_s_is_refused_with_those_it_has(
    server: Server, fields: dict[str, Any], where: str
) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        create(server, extra_body=fields)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["error"]["message"] == f"{where}: invalid enum value '300s'; send one of '5m', '1h'"


def test_a_prompt_too_long_is_told_in_the_words_that_agents_look_for(server: Server) -> None:
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: 9[0-9]+ tokens > 8192 maximum"):
        create(server, messages=user("x" * 9000))
    with pytest.raises(anthropic.BadRequestError, match="exceed context limit"):
        create(server, max_tokens=8190)


def test_a_wrong_key_and_a_missing_path_are_errors_of_this_dialect_too(locked: Server, server: Server) -> None:
    with pytest.raises(anthropic.AuthenticationError):
        sdk(locked, "wrong").messages.create(model="default", max_tokens=1, messages=user("x"))
    assert sdk(locked, KEY).models.list().data
    answer = httpx.get(server.url + "/v1/messages/none")
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")


def test_no_field_of_the_client_is_unknown() -> None:
    from anthropic.types import message_create_params as params

    known = {"betas", "user_profile_id", *REFUSED, *MessagesBody.__struct_fields__}
    assert set(params.MessageCreateParamsBase.__annotations__) <= known
