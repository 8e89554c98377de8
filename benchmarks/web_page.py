"""What the web app costs a browser: bytes and time of the first load, frames a second of the dashboard under load.

    python benchmarks/web_page.py http://127.0.0.1:8000 [STREAMS] [OUT.json]

Opens the page in the system's Chromium without a cache, then keeps STREAMS requests running (256 by default; the server must
take as many) and counts the dashboard's frames for ten seconds. The machine should do nothing else.
"""

import asyncio
import json
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import httpx
from playwright.async_api import Browser, async_playwright

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
LOADS = 5
WATCH_MS = 10_000
FIRST = """() => new Promise((done) => {
  const look = () => document.querySelector("textarea[aria-label=Message]")
    ? done(performance.now()) : requestAnimationFrame(look);
  look();
})"""
BYTES = """() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
  .filter((one) => !one.name.includes("/app/v1/") && !one.name.includes("/v1/"))
  .reduce((sum, one) => sum + one.encodedBodySize, 0)"""
FRAMES = """(span) => new Promise((done) => {
  const gaps = [];
  let [first, last] = [performance.now(), performance.now()];
  let long = 0;
  new PerformanceObserver((list) => { long += list.getEntries().length; }).observe({ entryTypes: ["longtask"] });
  requestAnimationFrame(function turn(now) {
    gaps.push(now - last);
    last = now;
    now - first < span ? requestAnimationFrame(turn) : done({ gaps: gaps.slice(1), long });
  });
})"""


async def first_load(browser: Browser, url: str) -> dict[str, float]:
    """A visit with nothing cached: until somebody can type."""
    context = await browser.new_context(viewport={"width": 1280, "height": 860})
    page = await context.new_page()
    await page.goto(f"{url}/")
    interactive_ms = await page.evaluate(FIRST)
    size = await page.evaluate(BYTES)
    await context.close()
    return {"interactive_ms": interactive_ms, "bytes": size}


async def stream(client: httpx.AsyncClient) -> None:
    body = {"prompt": "once upon a time", "max_tokens": 3000, "ignore_eos": True, "stream": True}
    async with client.stream("POST", "/v1/completions", json=body) as response:
        async for _ in response.aiter_raw():
            pass


async def frames(browser: Browser, url: str, num_streams: int) -> dict[str, Any]:
    context = await browser.new_context(viewport={"width": 1280, "height": 860})
    page = await context.new_page()
    await page.goto(f"{url}/#/dashboard")
    limits = httpx.Limits(max_connections=num_streams + 8)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        tasks = [asyncio.create_task(stream(client)) for _ in range(num_streams)]
        running = page.locator("[data-stat=running] .value")
        while int((await running.inner_text()).replace(",", "")) < num_streams:
            await asyncio.sleep(0.2)
        found = await page.evaluate(FRAMES, WATCH_MS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await context.close()
    gaps = sorted(found["gaps"])
    return {
        "running": num_streams,
        "frames_per_s": round(1000 * len(gaps) / sum(gaps), 1),
        "frame_p50_ms": round(statistics.median(gaps), 2),
        "frame_p99_ms": round(gaps[int(0.99 * len(gaps))], 2),
        "longest_ms": round(gaps[-1], 2),
        "tasks_over_50_ms": found["long"],
    }


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
            "dashboard": await frames(browser, url, num_streams),
        }
        await browser.close()
    text = json.dumps(report, indent=1)
    if len(sys.argv) > 3:
        Path(sys.argv[3]).write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    asyncio.run(main())
