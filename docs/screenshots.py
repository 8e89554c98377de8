"""Pictures of every page for the docs, from real runs.

    python docs/screenshots.py http://127.0.0.1:8000 docs/screens [NAME ...]

Needs a server with a model (`penstock serve --speculate auto`) and Chromium; `fleet` is best taken of a router, `models` of a
server with several. Every picture is of what the page showed: nothing is prepared but the clicks.
"""

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
SIZE = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 844}
PATIENCE_MS = 120_000


def chat(page: Page) -> None:
    page.get_by_label("Message", exact=True).fill("What is a penstock? Answer in two sentences.")
    page.keyboard.press("Enter")
    page.locator(".times .phases").wait_for()
    page.locator("article.assistant").get_by_role("button", name="Tokens").click()
    page.locator("button.token").nth(5).hover()


def send(page: Page, number: int, tokens: int) -> None:
    """Some requests at once, one of them refused; nobody waits for them."""
    page.evaluate(
        """([number, tokens]) => {
        const ask = (path, body) => void fetch(path, {method: "POST", headers: {"content-type": "application/json"},
          body: JSON.stringify(body)});
        const body = (i) => ({max_tokens: tokens, ignore_eos: true, messages: [
          {role: "system", content: "You answer at length, with care and in whole sentences. ".repeat(4)},
          {role: "user", content: "Tell me about river number " + i}]});
        ask("/app/v1/streams", {bodies: Array.from({length: number}, (_, i) => body(i))});
        ask("/v1/chat/completions", {...body(0), max_tokens: -1}) }""",
        [number, tokens],
    )


def load(page: Page) -> None:
    """The machine is measured, a few requests have ended, more are running."""
    page.locator("[data-stat=running]").wait_for()
    measure = page.get_by_role("button", name="Measure this machine")
    measure.or_(page.get_by_text("Ceilings: ")).wait_for()
    if measure.is_visible():
        measure.click()
        page.get_by_text("Ceilings: ").wait_for()
    send(page, 4, 40)
    page.get_by_role("button", name=re.compile(r"Ended \([1-9]")).wait_for()
    send(page, 8, 300)
    page.get_by_role("region", name="Requests in progress").locator("tbody tr").nth(6).wait_for()
    page.wait_for_timeout(3000)


def frontier(page: Page) -> None:
    page.locator("[data-figure='tokens/s A']").wait_for()
    page.get_by_role("button", name="Draw the frontier").click()
    page.locator("[data-frontier='tensor 4']").wait_for()
    page.get_by_role("button", name="Draw the frontier").and_(page.locator(":enabled")).wait_for()


def models(page: Page) -> None:
    """The last of several models is asked while it is cold; of a server with one, that one."""
    picker = page.locator("label.field:has(> span:text-is('Model')) select")
    page.wait_for_timeout(1000)
    if picker.count():
        picker.select_option(index=picker.locator("option").count() - 1)
    page.get_by_label("Message", exact=True).fill("What is a penstock?")
    page.keyboard.press("Enter")
    page.wait_for_timeout(1200)


def split_view(page: Page) -> None:
    page.get_by_role("button", name="A / B").click()
    page.get_by_role("button", name="Ask both").click()
    page.get_by_role("button", name="Ask both").wait_for()


def copies(page: Page) -> None:
    page.get_by_role("button", name="k copies").click()
    page.get_by_role("button", name="Send 4 at once").click()
    page.get_by_role("button", name="Send 4 at once").wait_for()


def bench(page: Page) -> None:
    """Two loads, the second seen as it goes."""
    for number in range(2):
        page.get_by_role("button", name="Run", exact=True).click()
        if number == 0:
            page.locator("[data-figure='bench tokens']").wait_for()
    page.get_by_label("Pieces a second and requests under way").wait_for()
    page.wait_for_timeout(4000)


def press(name: str, selector: str) -> Callable[[Page], None]:
    """Press a button and wait for what comes of it."""

    def act(page: Page) -> None:
        page.get_by_role("button", name=name).first.click()
        page.locator(selector).last.wait_for()
        page.wait_for_timeout(1500)

    return act


def wait(selector: str) -> Callable[[Page], None]:
    def act(page: Page) -> None:
        page.locator(selector).first.wait_for()
        page.wait_for_timeout(1500)

    return act


SHOTS: dict[str, tuple[str, str, Callable[[Page], None]]] = {
    "playground": ("playground", "dark", chat),
    "playground-ab": ("playground", "light", split_view),
    "playground-copies": ("playground", "dark", copies),
    "dashboard": ("dashboard", "dark", load),
    "dashboard-light": ("dashboard", "light", load),
    "cockpit": ("cockpit", "dark", frontier),
    "cockpit-light": ("cockpit", "light", wait("[data-figure='tokens/s A']")),
    "planner": ("planner", "light", wait("[aria-label=Candidates], .note-box")),
    "bench": ("bench", "dark", bench),
    "calculators": ("calculators", "light", wait("[data-figure=step_s]")),
    "advise": ("advise", "dark", wait(".tile")),
    "fleet": ("fleet", "light", wait(".stat")),
    "explore": ("explore", "dark", wait(".tile")),
    "quiz": ("quiz", "light", wait(".quiz")),
    "lifecycle": ("explore/lifecycle?tokens=24", "dark", press("Send it", "[data-stat=passes]")),
    "decode-loop": ("explore/decode-loop", "light", press("Run 10", ".tokens button.token:nth-of-type(10)")),
    "phases": ("explore/phases", "dark", wait("[data-stat=prefill]")),
    "kv-growth": ("explore/kv-growth", "light", wait("[data-stat=kv-total]")),
    "hierarchy": ("explore/hierarchy", "dark", wait("[data-figure=HBM]")),
    "latency": ("explore/latency?answer=16", "light", press("Send 4", ".streams .badge.good")),
    "throughput": ("explore/throughput", "dark", wait("[aria-label='Simulated rates']")),
    "models": ("playground", "light", models),
    "batching": ("explore/batching", "light", wait("[data-stat='continuous tokens']")),
    "attention": ("explore/attention", "dark", wait("[data-stat=tiled]")),
    "blocks": ("explore/blocks", "light", press("Send 4 real", "[aria-label^='Block tables'] tbody tr")),
    "speculation": ("explore/speculation", "dark", press("Try it live", "[data-stat=live-acceptance]")),
    "memory": ("explore/memory", "light", wait("[aria-label=Devices]")),
    "parallelism": ("explore/parallelism", "dark", wait("[aria-label=Layouts]")),
    "prefix": ("explore/prefix", "light", press("Send them", "[aria-label=Misses] tbody tr:nth-child(6)")),
    "split": ("explore/split?requests=200", "dark", wait("[data-stat='together itl']")),
}


def main() -> int:
    url, folder = sys.argv[1].rstrip("/"), Path(sys.argv[2])
    wanted = sys.argv[3:] or list(SHOTS)
    folder.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        for name in wanted:
            path, theme, act = SHOTS[name]
            for suffix, size in (("", SIZE), ("-phone", PHONE)):
                if suffix and name not in ("playground", "dashboard", "cockpit"):
                    continue
                context = browser.new_context(viewport=size, color_scheme=theme)  # type: ignore[arg-type]
                page = context.new_page()
                page.set_default_timeout(PATIENCE_MS)
                page.goto(f"{url}/#/{path}")
                act(page)
                page.evaluate("scrollTo(0, 0)")
                page.screenshot(path=folder / f"{name}{suffix}.jpg", type="jpeg", quality=70, full_page=not suffix)
                context.close()
            print(name, flush=True)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
