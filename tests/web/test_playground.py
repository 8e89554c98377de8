"""The playground on a real model: streaming, branches, keyboard, and answers that mean harm."""

import json
import time

import pytest
from playwright.sync_api import Page, Route, expect

from tests.web.conftest import Seen

pytestmark = pytest.mark.web


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_label("Message", exact=True).press("Enter")


def answer_with(page: Page, text: str) -> None:
    """Let the server's place be taken by one that says this, whatever it is asked."""

    def tell(route: Route) -> None:
        chunks = [{"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}]
        chunks += [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    page.route("**/v1/chat/completions", tell)


def test_a_chat_streams_and_a_token_alternative_branches(seen: Seen) -> None:
    page = seen.go("playground")
    page.get_by_label("Max tokens", exact=True).fill("12")
    page.get_by_label("Max tokens", exact=True).press("Tab")
    ask(page, "Name a river.")
    answer = page.get_by_role("article", name="Model")
    expect(answer.locator(".times")).to_contain_text("generated")
    first = answer.locator(".answer").inner_text()
    assert first.strip()
    answer.get_by_role("button", name="Tokens").click()
    answer.locator("button.token").nth(1).click()
    answer.locator(".rival:not(.chosen)").first.click()
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
