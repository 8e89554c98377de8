"""The playground on a real model: streaming, branches, keyboard, and answers that mean harm."""

import json
import time
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.web.conftest import Seen

pytestmark = pytest.mark.web


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_label("Message", exact=True).press("Enter")


def answer_with(page: Page, text: str) -> None:
    """Let the server's place be taken by one that says this, whatever it is asked."""

    tell_chunks(page, [{"content": text}])


def tell_chunks(page: Page, deltas: list[dict[str, Any]]) -> None:
    def tell(route: Route) -> None:
        chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        chunks += [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    page.route("**/v1/chat/completions", tell)


def test_a_chat_streams_and_a_token_alternative_branches(seen: Seen) -> None:
    page = seen.go("playground")
    settle(page, 12)
    ask(page, "Name a river.")
    answer = page.get_by_role("article", name="Model")
    expect(answer.locator(".times")).to_contain_text("generated")
    first = answer.locator(".answer").inner_text()
    assert first.strip()
    answer.get_by_role("button", name="Tokens").click()
    answer.locator("button.token").nth(1).click()
    rival = answer.locator(".rival:not(.chosen)").first
    number = int((rival.get_attribute("title") or "").removeprefix("token "))
    with page.expect_request("**/v1/chat/completions") as sent:
        rival.click()
    begun = json.loads(sent.value.post_data or "{}")["continue_token_ids"]
    assert (len(begun), begun[-1]) == (2, number), "the branch goes on from the very tokens"
    expect(page.get_by_role("article", name="Model").locator(".branches")).to_contain_text("2 / 2")
    expect(page.get_by_role("article", name="Model").locator(".times")).to_contain_text("generated")
    page.get_by_role("button", name="Earlier branch").click()
    expect(page.get_by_role("article", name="Model").locator(".branches")).to_contain_text("1 / 2")
    assert not seen.faults


def test_the_keyboard_alone_is_enough(seen: Seen) -> None:
    page = seen.go("playground")
    expect(page.get_by_label("Message", exact=True)).to_be_visible()
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement?.getAttribute('aria-label')") == "Message":
            break
    page.keyboard.type("Say one word.")
    page.keyboard.press("Enter")
    expect(page.get_by_role("article", name="Model")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    assert page.get_by_role("article", name="You").locator(".answer").inner_text() == "Say one word."


def test_an_answer_full_of_html_is_text(seen: Seen) -> None:
    page = seen.go("playground")
    script = "<script>window.broken=1</script>"
    hostile = f'<img src=x onerror="window.broken=1">{script}```\n</pre>{script}\n```'
    answer_with(page, hostile)
    ask(page, "x")
    expect(page.get_by_role("article", name="Model").locator(".answer")).to_contain_text(
        "<script>window.broken=1</script>"
    )
    assert page.evaluate("window.broken") is None
    assert page.locator("article img, article script").count() == 0


def test_an_answer_of_ten_megabytes_does_not_freeze_the_page(seen: Seen) -> None:
    page = seen.go("playground")
    answer_with(page, "water " * 1_700_000)
    ask(page, "x")
    expect(page.get_by_role("article", name="Model").locator(".answer")).to_contain_text("10,200,000 characters")
    start_s = time.monotonic()
    page.get_by_label("Message", exact=True).fill("still here")
    assert page.get_by_label("Message", exact=True).input_value() == "still here"
    assert time.monotonic() - start_s < 10.0, "the page took so long for a keystroke"
    assert page.evaluate("document.querySelector('article.assistant .answer').innerText.length") < 60_000


def settle(page: Page, tokens: int) -> None:
    """So many tokens at most, and the same ones at every run."""
    page.get_by_label("Max tokens", exact=True).fill(str(tokens))
    page.get_by_label("Max tokens", exact=True).press("Tab")
    page.get_by_label("Temperature", exact=True).fill("0")
    page.get_by_label("Temperature", exact=True).press("Tab")


def test_accepted_drafts_and_cached_prompt_tokens_are_marked(seen: Seen) -> None:
    page = seen.go("playground")
    settle(page, 60)
    text = "the water runs from the dam through the penstock to the turbine and on to the river below"
    ask(page, f"Repeat word for word: {text}. {text}. {text}.")
    answer = page.get_by_role("article", name="Model")
    expect(answer.locator(".times")).to_contain_text("generated")
    answer.get_by_role("button", name="Tokens").click()
    expect(answer.locator("button.token.draft").first).to_be_visible()
    expect(answer.locator(".times")).to_contain_text("drafts accepted")
    ask(page, "And once more.")
    expect(page.get_by_role("article", name="Model").nth(1).locator(".times")).to_contain_text("cached")
    page.get_by_role("button", name="Prompt tokens").click()
    cached = page.locator(".prompt-tokens .token.cached")
    expect(cached.first).to_be_visible()
    told = page.get_by_role("article", name="Model").nth(1).locator(".times .cached").inner_text()
    assert cached.count() == int("".join(letter for letter in told if letter.isdigit()))
    assert not seen.faults


def test_two_settings_and_k_copies_are_answered_side_by_side(seen: Seen) -> None:
    page = seen.go("playground")
    settle(page, 8)
    page.get_by_role("button", name="A / B").click()
    page.get_by_role("button", name="Ask both").click()
    for name in ("Answer A", "Answer B"):
        expect(page.get_by_role("article", name=name).locator(".times")).to_contain_text("generated 8")
    page.get_by_role("button", name="k copies").click()
    page.get_by_role("button", name="Send 4 at once").click()
    expect(page.get_by_role("button", name="Send 4 at once")).to_be_visible()
    expect(page.get_by_label("Gantt of 4 streams", exact=False)).to_be_visible()
    assert not seen.faults


def test_a_schema_holds_and_a_tool_is_called_and_answered(seen: Seen) -> None:
    page = seen.go("playground")
    page.get_by_text("JSON schema and tools").click()
    page.get_by_role("button", name="Fill in an example").first.click()
    settle(page, 60)
    ask(page, "Paris")
    answer = page.get_by_role("article", name="Model")
    expect(answer.locator(".times")).to_contain_text("generated")
    assert isinstance(json.loads(answer.locator(".answer").inner_text())["people"], int)
    for kind, word in (("curl", "curl http"), ("Python", "OpenAI("), ("JavaScript", "await fetch")):
        page.get_by_role("button", name=kind, exact=True).click()
        expect(page.get_by_label("The same as a command")).to_contain_text(word)
        expect(page.get_by_label("The same as a command")).to_contain_text("json_schema")
    page.get_by_role("button", name="Clear the conversation").click()
    page.get_by_role("button", name="Clear the schema").click()
    page.get_by_role("button", name="Fill in an example").last.click()
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    tell_chunks(page, [{"tool_calls": [call]}])
    ask(page, "What is the weather in Paris?")
    page.get_by_label("Result of get_weather").fill('{"temperature": 21}')
    page.unroute("**/v1/chat/completions")
    with page.expect_request("**/v1/chat/completions") as sent:
        page.get_by_role("button", name="Send the result").click()
    roles = [one["role"] for one in json.loads(sent.value.post_data or "{}")["messages"]]
    assert roles == ["user", "assistant", "tool"]
    expect(page.get_by_role("article", name="Model").last.locator(".times")).to_contain_text("generated")
    assert not seen.faults
