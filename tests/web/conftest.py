"""A real server with a real model, and the system's Chromium. What cannot be had skips these tests and says how to get it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from penstock.service.webfiles import STATIC
from tests.real import DEFAULT, model_path
from tests.server.serving import Server, serving

ROOT = Path(__file__).parents[2]
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="session")
def built() -> Path:
    if not (STATIC / "index.html").exists():
        pytest.skip("the web app is not built: run `make web` (it takes npm)")
    return STATIC


@pytest.fixture(scope="module")
def browser(built: Path) -> Iterator[Browser]:
    """One a file: while it is open, its event loop runs in this thread, and no test could run one of its own."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium is installed: apt-get install -y chromium")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield found
        found.close()


@pytest.fixture(scope="session")
def served(built: Path) -> Iterator[Server]:
    model_path(DEFAULT)
    with serving("--speculate", "ngram", "--draft-tokens", "4", model="default", is_real=True) as running:
        yield running


class Seen:
    """A page, and what its console complained of."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.faults: list[str] = []
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.url = url

    def go(self, path: str) -> Page:
        self.page.goto(f"{self.url}/#/{path}")
        return self.page

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.faults.append(message.text)


@pytest.fixture
def seen(browser: Browser, served: Server) -> Iterator[Seen]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield Seen(context, served.url)
    context.close()
