"""A router serves the app too: its fleet page shows the replicas, and chats go to them."""

import re
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.machine import wait_until
from tests.router.service import routing, service, started_together
from tests.server.serving import serving
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


@pytest.mark.slow
def test_roles_and_tiers_are_shown_where_they_work(browser: Browser, tmp_path: Path) -> None:
    """The fleet page has each replica's role and what was handed over and why; the dashboard's memory map has the tiers."""
    key = "what-all-replicas-know"
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("PENSTOCK_REPLICA_KEY", key)
        roles = [serving("--role", role, model="oracle:step_ms=3", is_real=True) for role in ("prefill", "decode")]
        servers = started_together(stack, roles)
        urls = [word for server in servers for word in ("--replica", server.url)]
        flags = ("--policy", "prefix-reported", "--handover", "always", "slow-start-s=0")
        router = stack.enter_context(routing(*urls, *flags, servers=servers, PENSTOCK_REPLICA_KEY=key))
        with router.http() as http:
            wait_until(lambda: http.get("/router/replicas").text.count('"role":"') == 2)
            for number in range(3):
                http.post("/v1/completions", json={"prompt": f"{number} " * 200, "max_tokens": 3}).raise_for_status()
        context = browser.new_context()
        seen = Seen(context, router.url)
        page = seen.go("fleet")
        expect(page.get_by_role("region", name="Hand-overs")).to_contain_text("prefill")
        expect(page.locator(".cards .card").filter(has_text="prefill")).not_to_have_count(0)
        assert not seen.faults
        context.close()
    with serving("--kv-disk", str(tmp_path), model="default", is_real=True) as server:
        context = browser.new_context()
        seen = Seen(context, server.url)
        page = seen.go("dashboard")
        for tier in ("host", "disk", "loaded"):
            expect(page.locator(f"[data-stat=tier-{tier}] .value")).to_be_visible()
        assert not seen.faults
        context.close()
