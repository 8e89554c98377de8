"""The dashboard tells what /metrics tells, cancels what it says it cancels, and finds a server again that went away."""

import socket
import threading
import time

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.server.serving import Server, serving
from tests.web.conftest import Seen

pytestmark = pytest.mark.web


def long_request(url: str) -> threading.Thread:
    def send() -> None:
        body = {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        try:
            with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as response:
                for _ in response.iter_bytes():
                    pass
        except httpx.HTTPError:
            return

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def until(condition: object, patience_s: float = 30.0) -> bool:
    end_s = time.monotonic() + patience_s
    while time.monotonic() < end_s:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.1)
    return False


def test_cancel_frees_the_request_and_the_map_agrees_with_the_metrics(seen: Seen, served: Server) -> None:
    page = seen.go("dashboard")
    expect(page.get_by_text("streaming", exact=True)).to_be_visible()
    client = long_request(served.url)
    row = page.get_by_role("region", name="Requests in progress").locator("tbody tr")
    expect(row).to_have_count(1)

    def agrees() -> bool:
        held = page.locator("[data-stat=kv-held] .value").inner_text().replace(",", "")
        share = served.metric("vllm:kv_cache_usage_perc")
        blocks = page.evaluate("fetch('/app/v1/about').then((r) => r.json()).then((a) => a.num_blocks)")
        return int(held) > 0 and abs(int(held) - share * blocks) <= 2

    assert until(agrees), "held blocks and the usage of /metrics never agreed"
    page.get_by_role("button", name="Cancel request").click()
    client.join(30)
    assert not client.is_alive()
    assert until(lambda: served.metric("vllm:num_requests_running") == 0)
    expect(page.locator("[data-stat=kv-held] .value")).to_have_text("0")
    page.get_by_role("button", name="Ended").click()
    page.get_by_role("region", name="Requests that ended").get_by_role("button").first.click()
    expect(page.get_by_role("heading", name="Request ", exact=False).last).to_be_visible()
    assert not seen.faults


def test_the_stream_survives_a_restart_of_the_server(browser: Browser) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    context = browser.new_context()
    with serving("--port", port) as first:
        seen = Seen(context, first.url)
        page = seen.go("dashboard")
        expect(page.get_by_text("streaming", exact=True)).to_be_visible()
    expect(page.get_by_text("connection lost, trying again")).to_be_visible()
    with serving("--port", port):
        expect(page.get_by_text("streaming", exact=True)).to_be_visible()
    context.close()
