"""Several models in one server: the page lists them with their state, shows a load while it lasts, and looks into each."""

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.server.serving import serving
from tests.web.conftest import Seen

pytestmark = pytest.mark.web

PICKER = "label.field:has(> span:text-is('Model')) select"
SLOW = "b=oracle:load_ms=2500"


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_label("Message", exact=True).press("Enter")


@pytest.mark.slow
def test_a_cold_model_is_chosen_shown_while_it_loads_and_then_answers(browser: Browser) -> None:
    with serving("--model", "a=oracle:", "--model", SLOW, model="default", is_real=True) as server:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        seen = Seen(context, server.url)
        page = seen.go("playground")
        picker = page.locator(PICKER)
        expect(picker.locator("option")).to_have_text(["a (unloaded)", "b (unloaded)"])
        picker.select_option("b")
        expect(page.get_by_text("b is cold")).to_be_visible()
        assert "model=b" in page.url, "an address shows what its sender saw"
        ask(page, "hello")
        expect(page.get_by_role("status").filter(has_text="the model is being loaded")).to_be_visible()
        expect(page.get_by_text("b is being loaded", exact=True)).to_be_visible()
        expect(page.locator(".times")).to_contain_text("generated")
        expect(picker.locator("option")).to_have_text(["a (unloaded)", "b (loaded)"])
        page.get_by_text("Where the time went").click()
        expect(page.get_by_role("img", name=re.compile(r"load \d"))).to_have_count(2)

        page = seen.go("dashboard?model=b")
        page.reload()
        expect(page.locator(".badge.live").first).to_be_visible()
        expect(page.locator(PICKER)).to_have_value("b")
        expect(page.locator("[data-stat=kv-free]")).to_be_visible()
        page.locator(PICKER).select_option("a")
        expect(page.get_by_text("a is cold")).to_be_visible()
        expect(page.get_by_text("The engine has not shown its cache yet.")).to_be_visible()
        assert not seen.faults
        context.close()
