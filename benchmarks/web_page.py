"""What the web app costs a browser: bytes and time of the first load, frames a second of the dashboard under load.

    penstock serve oracle:step_ms=20 --max-sequences 300 --num-blocks 60000 &
    python -m benchmarks.web_page http://127.0.0.1:8000 [STREAMS] [OUT.json]

Opens the page in the system's Chromium without a cache, then keeps STREAMS requests running (256 by default; the server must
take as many) and counts the dashboard's frames for ten seconds, at its top and with the table of requests in sight. Times of
a frame need a machine that does nothing else; milliseconds an update are processor time of the page's thread, which others
change little.
"""

import asyncio
import json
import shutil
import statistics
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, CDPSession, Page, async_playwright

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
LOADS = 5
WATCH_MS = 10_000
SETTLE_MS = 2_000
SIZE = {"width": 1280, "height": 860}
FIRST = """() => new Promise((done) => {
  const look = () => document.querySelector("textarea[aria-label=Message]")
    ? done(performance.now()) : requestAnimationFrame(look);
  look();
})"""
BYTES = """() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
  .filter((one) => !one.name.includes("/app/v1/") && !one.name.includes("/v1/"))
  .reduce((sum, one) => sum + one.encodedBodySize, 0)"""
COUNT_UPDATES = """(() => {
  const parse = JSON.parse;
  window.updates = 0;
  JSON.parse = (text, ...rest) => {
    if (typeof text === "string" && text.startsWith('{"time_s"')) window.updates += 1;
    return parse(text, ...rest);
  };
})()"""
FRAMES = """(span) => new Promise((done) => {
  const gaps = [];
  const [first, before] = [performance.now(), window.updates];
  let [last, long] = [first, 0];
  new PerformanceObserver((list) => { long += list.getEntries().length; }).observe({ entryTypes: ["longtask"] });
  requestAnimationFrame(function turn(now) {
    gaps.push(now - last);
    last = now;
    if (now - first < span) requestAnimationFrame(turn);
    else done({ gaps: gaps.slice(1), long, updates: window.updates - before });
  });
})"""
WORK = {
    "scripting_ms": "ScriptDuration",
    "style_ms": "RecalcStyleDuration",
    "layout_ms": "LayoutDuration",
    "thread_ms": "TaskDuration",
}
"""What a page's thread does, as the browser names it; the last is all of it, painting included."""


async def first_load(browser: Browser, url: str) -> dict[str, float]:
    """A visit with nothing cached: until somebody can type."""
    context = await browser.new_context(viewport=SIZE)  # type: ignore[arg-type]
    page = await context.new_page()
    await page.goto(f"{url}/")
    interactive_ms = await page.evaluate(FIRST)
    size = await page.evaluate(BYTES)
    await context.close()
    return {"interactive_ms": interactive_ms, "bytes": size}


class Stream(asyncio.Protocol):
    """A request whose answer is thrown away as it comes: a client that costs next to nothing beside what is measured."""

    def __init__(self, host: str) -> None:
        body = b'{"prompt": "once upon a time", "max_tokens": 8000, "ignore_eos": true, "stream": true}'
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        self._request = head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body
        self.answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if not self.answer:
            self.answer = data


@asynccontextmanager
async def load(url: str, num_streams: int) -> AsyncIterator[list[Stream]]:
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda: Stream(parts.netloc), parts.hostname, parts.port)
        for _ in range(num_streams)
    ]
    try:
        yield [one for _, one in made]
    finally:
        for transport, _ in made:
            transport.abort()


def check(streams: list[Stream]) -> None:
    refused = [one.answer for one in streams if one.answer and b" 200 " not in one.answer[:20]]
    if refused:
        raise RuntimeError(f"{len(refused)} of {len(streams)} requests were refused: {refused[0][:600]!r}")


async def metrics(session: CDPSession) -> dict[str, float]:
    found = await session.send("Performance.getMetrics")
    return {one["name"]: one["value"] for one in found["metrics"]}


async def processor_s(session: CDPSession) -> float:
    """Of all processes of the browser."""
    found = await session.send("SystemInfo.getProcessInfo")
    return sum(float(one["cpuTime"]) for one in found["processInfo"])


async def watch(page: Page, cdp: CDPSession, whole: CDPSession) -> dict[str, Any]:
    """Ten seconds of what is in sight."""
    await page.wait_for_timeout(SETTLE_MS)
    before, spent_s = await metrics(cdp), await processor_s(whole)
    found = await page.evaluate(FRAMES, WATCH_MS)
    after, all_s = await metrics(cdp), await processor_s(whole)
    gaps, updates = sorted(found["gaps"]), max(found["updates"], 1)
    return {
        "frames_per_s": round(1000 * len(gaps) / sum(gaps), 1),
        "frame_p50_ms": round(statistics.median(gaps), 2),
        "frame_p99_ms": round(gaps[int(0.99 * len(gaps))], 2),
        "longest_ms": round(gaps[-1], 2),
        "tasks_over_50_ms": found["long"],
        "updates": updates,
        "an_update": {name: round(1000 * (after[key] - before[key]) / updates, 2) for name, key in WORK.items()},
        "browser_cores": round((all_s - spent_s) / (sum(gaps) / 1000), 3),
    }


async def dashboard(browser: Browser, url: str, num_streams: int) -> dict[str, Any]:
    context = await browser.new_context(viewport=SIZE)  # type: ignore[arg-type]
    page = await context.new_page()
    await page.add_init_script(COUNT_UPDATES)
    cdp, whole = await context.new_cdp_session(page), await browser.new_browser_cdp_session()
    await cdp.send("Performance.enable", {"timeDomain": "threadTicks"})
    await page.goto(f"{url}/#/dashboard")
    async with load(url, num_streams) as streams:
        running = page.locator("[data-stat=running] .value")
        while int((await running.inner_text()).replace(",", "")) < num_streams:
            check(streams)
            await asyncio.sleep(0.2)
        top = await watch(page, cdp, whole)
        await page.get_by_role("region", name="Requests in progress").scroll_into_view_if_needed()
        requests = await watch(page, cdp, whole)
    await context.close()
    return {"running": num_streams, "top": top, "requests": requests}


async def main() -> None:
    url = sys.argv[1].rstrip("/")
    num_streams = int(sys.argv[2]) if len(sys.argv) > 2 else 256
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        loads = [await first_load(browser, url) for _ in range(LOADS)]
        report = {
            "first_load": {
                "bytes_gzipped": loads[0]["bytes"],
                "interactive_ms": round(statistics.median(one["interactive_ms"] for one in loads), 1),
                "interactive_worst_ms": round(max(one["interactive_ms"] for one in loads), 1),
            },
            "dashboard": await dashboard(browser, url, num_streams),
        }
        await browser.close()
    text = json.dumps(report, indent=1)
    if len(sys.argv) > 3:
        Path(sys.argv[3]).write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    asyncio.run(main())
