"""What Anthropic's client, and agents built on it, expect of the Messages API."""

from typing import Any

from penstock.tools.conform.check import Suite, Target, Unmet, expect


def client(target: Target) -> Any:
    import anthropic

    return anthropic.Anthropic(base_url=target.url, api_key=target.key, max_retries=0, timeout=target.timeout_s)


SUITE = Suite("anthropic", client)


def asked(target: Target, **fields: Any) -> dict[str, Any]:
    common = {"model": target.model, "max_tokens": 8, "messages": [{"role": "user", "content": "Say hello."}]}
    return common | {"extra_body": {"temperature": 0}} | fields


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def refused(target: Target, sdk: Any, status: int, kind: str, **fields: Any) -> Any:
    import anthropic

    try:
        sdk.messages.create(**asked(target, **fields))
    except anthropic.APIStatusError as error:
        expect(error.status_code == status, f"status {error.status_code}, not {status}")
        body = error.body if isinstance(error.body, dict) else {}
        expect(body.get("type") == "error", "the body's type is not error")
        expect((body.get("error") or {}).get("type") == kind, f"the error's type is not {kind}: {body}")
        return error
    raise Unmet("it was not refused")


@SUITE.must
def a_message_is_answered_with_usage(target: Target, sdk: Any) -> None:
    message = sdk.messages.create(**asked(target))
    expect((message.type, message.role) == ("message", "assistant"), "it is no message of the assistant")
    expect(message.stop_reason in ("end_turn", "max_tokens"), f"stop_reason is {message.stop_reason!r}")
    expect(message.usage.output_tokens > 0, "no output tokens are counted")


@SUITE.must
def events_come_in_their_order(target: Target, sdk: Any) -> None:
    kinds = [event.type for event in sdk.messages.create(**asked(target, stream=True))]
    kinds = [kind for kind in kinds if kind != "ping"]
    expect(kinds[:2] == ["message_start", "content_block_start"], f"it begins with {kinds[:2]}")
    expect(kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"], f"it ends with {kinds[-3:]}")
    between = {"content_block_delta", "content_block_start", "content_block_stop"}
    expect(set(kinds[2:-3]) <= between, "something else between")


@SUITE.must
def a_stream_says_what_the_whole_does(target: Target, sdk: Any) -> None:
    whole = text_of(sdk.messages.create(**asked(target)))
    with sdk.messages.stream(**asked(target)) as stream:
        parts = "".join(stream.text_stream)
        final = stream.get_final_message()
    expect(parts == whole == text_of(final), f"streamed {parts!r}, whole {whole!r}")


@SUITE.must
def a_stop_sequence_is_named(target: Target, sdk: Any) -> None:
    whole = text_of(sdk.messages.create(**asked(target, max_tokens=16)))
    stop = whole[len(whole) // 2 :][:3]
    if not stop.strip():
        return
    message = sdk.messages.create(**asked(target, max_tokens=16, stop_sequences=[stop]))
    expect((message.stop_reason, message.stop_sequence) == ("stop_sequence", stop), f"{message.stop_reason!r}")


@SUITE.must
def a_system_prompt_may_be_text_or_blocks(target: Target, sdk: Any) -> None:
    one = sdk.messages.create(**asked(target, system="Be brief."))
    two = sdk.messages.create(**asked(target, system=[{"type": "text", "text": "Be brief."}]))
    expect(text_of(one) == text_of(two), "a text and a block of it give different answers")


@SUITE.must
def tokens_are_counted_as_they_are_used(target: Target, sdk: Any) -> None:
    messages = [{"role": "user", "content": "Count me."}]
    counted = sdk.messages.count_tokens(model=target.model, messages=messages).input_tokens
    usage = sdk.messages.create(**asked(target, messages=messages)).usage
    used = usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    expect(counted == used, f"counted {counted}, used {used}")


@SUITE.must
def models_have_this_dialect_s_shape(target: Target, sdk: Any) -> None:
    models = sdk.models.list().data
    expect(models and models[0].type == "model" and models[0].display_name, "the list is not of this shape")


@SUITE.must
def faults_have_types(target: Target, sdk: Any) -> None:
    refused(target, sdk, 400, "invalid_request_error", messages=[])
    refused(target, sdk, 400, "invalid_request_error", extra_body={"temperature": 9})
    refused(target, sdk, 404, "not_found_error", model="no-such-model")
    refused(target, sdk, 400, "invalid_request_error", messages=[{"role": "user", "content": "word " * 200_000}])


@SUITE.must
def errors_carry_a_request_id(target: Target, sdk: Any) -> None:
    error = refused(target, sdk, 400, "invalid_request_error", messages=[])
    expect(error.request_id, "the error has no request id")


@SUITE.should
def cache_control_is_taken_and_counted(target: Target, sdk: Any) -> None:
    system = [{"type": "text", "text": "A long preamble. " * 64, "cache_control": {"type": "ephemeral"}}]
    first = sdk.messages.create(**asked(target, system=system)).usage
    again = sdk.messages.create(**asked(target, system=system)).usage
    written = (first.cache_creation_input_tokens or 0) + (first.cache_read_input_tokens or 0)
    expect(written, "nothing is counted as written to the cache")
    expect(again.cache_read_input_tokens, "nothing is read from the cache the second time")


@SUITE.should
def a_nonce_in_the_billing_header_does_not_spoil_the_cache(target: Target, sdk: Any) -> None:
    usages = []
    for nonce in ("1", "2"):
        system = [
            {"type": "text", "text": f"x-anthropic-billing-header: cch={nonce}"},
            {"type": "text", "text": "Another long preamble. " * 64},
        ]
        usages.append(sdk.messages.create(**asked(target, system=system)).usage)
    expect((usages[1].cache_read_input_tokens or 0) > 32, "the second request finds nothing of the first")


@SUITE.should
def the_last_turn_of_the_assistant_is_gone_on_with(target: Target, sdk: Any) -> None:
    turns = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two,"}]
    message = sdk.messages.create(**asked(target, messages=turns))
    expect(not text_of(message).startswith("One, two,"), "the prefill is said again")


@SUITE.should
def a_tool_is_used_when_any_must_be(target: Target, sdk: Any) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [{"name": "weather", "input_schema": schema}]
    message = sdk.messages.create(**asked(target, tools=tools, tool_choice={"type": "any"}, max_tokens=64))
    uses = [block for block in message.content if block.type == "tool_use"]
    expect(uses and "city" in uses[0].input, "no tool is used")
    expect(message.stop_reason == "tool_use", f"stop_reason is {message.stop_reason!r}")
