"""A router serves the app too: its fleet page shows the replicas, and chats go to them."""

import re

import pytest
from playwright.sync_api import Browser, expect

from tests.router.service import service
from tests.web.conftest import Seen

pytestmark = pytest.mark.web


@pytest.mark.slow
def test_a_router_shows_its_replicas_and_why_they_were_chosen(browser: Browser) -> None:
    with service("--policy", "round-robin") as routed:
        context = browser.new_context()
        seen = Seen(context, routed.url)
        page = seen.go("playground")
        page.get_by_label("Message", exact=True).fill("x")
        page.get_by_label("Message", exact=True).press("Enter")
        expect(page.get_by_role("article", name="Model").locator(".times")).to_contain_text("generated")
        page.get_by_text("Where the time went").click()
        parts = page.get_by_role("img", name=re.compile("^client .*router .*network .*queue .*prefill .*decode "))
        expect(parts).to_have_count(2)
        page = seen.go("explore/lifecycle?tokens=8&copies=2")
        page.get_by_role("button", name="Send it").click()
        expect(page.locator("[data-stat=passes] .value")).to_have_text("8")
        expect(parts).to_have_count(1)
        page = seen.go("fleet")
        expect(page.locator(".cards .card")).to_have_count(2)
        expect(page.get_by_role("region", name="Routing reasons")).to_contain_text("next in turn")
        expect(page.get_by_role("link", name="Dashboard")).to_have_count(0)
        page = seen.go("explore/kv-growth?model=llama-3-70b&context=4096&sequences=1")
        expect(page.locator("[data-stat=kv-token] .value")).to_contain_text("327,680 B")
        with routed.http() as http:
            assert http.get("/app/v1/events").status_code == 404, "nobody looks into an engine through a router"
            assert http.get("/assets/../../../etc/passwd").status_code in (400, 404)
        assert not seen.faults
        context.close()
