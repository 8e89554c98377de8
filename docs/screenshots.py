"""Pictures of every page for the docs, from real runs: `python docs/screenshots.py http://127.0.0.1:8000 docs/screens`.

Needs a server with a model and Chromium. Every picture is of what the page showed: nothing is prepared but the clicks.
"""

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


def load(page: Page) -> None:
    """Some requests at once, seen while they run."""
    page.evaluate(
        """() => { for (let i = 0; i < 6; i++) fetch("/v1/chat/completions", {method: "POST",
        headers: {"content-type": "application/json"}, body: JSON.stringify({max_tokens: 100, messages: [
        {role: "system", content: "You answer at length, with care and in whole sentences. ".repeat(4)},
        {role: "user", content: "Tell me about river number " + i}]})}) }"""
    )
    page.wait_for_timeout(8000)


def press(name: str, wait_ms: int) -> Callable[[Page], None]:
    def act(page: Page) -> None:
        page.get_by_role("button", name=name).first.click()
        page.wait_for_timeout(wait_ms)

    return act


def wait(selector: str) -> Callable[[Page], None]:
    def act(page: Page) -> None:
        page.locator(selector).first.wait_for()
        page.wait_for_timeout(1500)

    return act


SHOTS: dict[str, tuple[str, str, Callable[[Page], None]]] = {
    "playground": ("playground", "dark", chat),
    "dashboard": ("dashboard", "dark", load),
    "cockpit": ("cockpit", "dark", wait("[data-figure='tokens/s A']")),
    "cockpit-light": ("cockpit", "light", wait("[data-figure='tokens/s A']")),
    "planner": ("planner", "light", wait("[aria-label=Candidates], .note-box")),
    "bench": ("bench", "dark", press("Run", 30_000)),
    "calculators": ("calculators", "light", wait("[data-figure=step_s]")),
    "advise": ("advise", "dark", wait(".tile")),
    "fleet": ("fleet", "light", wait(".stat")),
    "explore": ("explore", "dark", wait(".tile")),
    "quiz": ("quiz", "light", wait(".quiz")),
    "lifecycle": ("explore/lifecycle?tokens=24", "dark", press("Send it", 15_000)),
    "decode-loop": ("explore/decode-loop", "light", press("Run 10", 12_000)),
    "phases": ("explore/phases", "dark", wait("[data-stat=prefill]")),
    "kv-growth": ("explore/kv-growth", "light", wait("[data-stat=kv-total]")),
    "hierarchy": ("explore/hierarchy", "dark", wait("[data-figure=HBM]")),
    "latency": ("explore/latency?answer=16", "light", press("Send 4", 15_000)),
    "throughput": ("explore/throughput", "dark", wait("[aria-label='Simulated rates']")),
    "batching": ("explore/batching", "light", wait("[data-stat='continuous tokens']")),
    "attention": ("explore/attention", "dark", wait("[data-stat=tiled]")),
    "blocks": ("explore/blocks", "light", wait("[data-stat=paged-waste]")),
    "speculation": ("explore/speculation", "dark", wait("[aria-label='Plain beside speculated']")),
    "memory": ("explore/memory", "light", wait("[aria-label=Devices]")),
    "parallelism": ("explore/parallelism", "dark", wait("[aria-label=Layouts]")),
    "prefix": ("explore/prefix", "light", press("Send them", 15_000)),
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
                page.screenshot(path=folder / f"{name}{suffix}.jpg", type="jpeg", quality=80)
                context.close()
            print(name, flush=True)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
