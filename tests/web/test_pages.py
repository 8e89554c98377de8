"""Every page in a real browser: no complaint of the console, in both themes and at a phone's width, readable by everybody."""

import gzip
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, expect

from tests.server.serving import Server
from tests.web.conftest import ROOT, Seen

pytestmark = pytest.mark.web

PAGES = (
    "playground",
    "dashboard",
    "fleet",
    "cockpit",
    "planner",
    "bench",
    "profile",
    "calculators",
    "advise",
    "explore",
)
PAGES += ("quiz",)
CARDS = (
    *("lifecycle", "decode-loop", "phases", "kv-growth", "hierarchy", "latency", "throughput", "batching"),
    *("attention", "blocks", "speculation", "memory", "parallelism", "prefix", "split"),
)
ALL = (*PAGES, *(f"explore/{card}" for card in CARDS))
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
MAX_BYTES = 250_000


@pytest.mark.parametrize(("theme", "width"), [("dark", 1280), ("light", 1280), ("light", 390)])
def test_every_page_loads_without_a_complaint(
    browser: Browser, served: Server, theme: Literal["dark", "light"], width: int
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 860}, color_scheme=theme)
    seen = Seen(context, served.url)
    for path in ALL:
        page = seen.go(path)
        expect(page.locator("main h1")).to_be_visible()
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 1, f"{path} is {overflow} pixels wider than the screen"
        assert not seen.faults, f"{path}: {seen.faults}"
    assert seen.page.evaluate("document.documentElement.dataset.theme") == theme
    context.close()


@pytest.mark.slow
def test_axe_finds_nothing_serious(browser: Browser, served: Server) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: run `npm ci` in web/")
    found: dict[str, Any] = {}
    for theme in ("dark", "light"):
        context = browser.new_context(color_scheme=theme, bypass_csp=True)
        seen = Seen(context, served.url)
        for path in (*PAGES, "explore/phases", "explore/attention", "explore/memory"):
            page = seen.go(path)
            expect(page.locator("main h1")).to_be_visible()
            page.wait_for_timeout(300)  # transitions of colours
            page.add_script_tag(path=AXE)
            # A theme changes colours and nothing else.
            rules = "" if theme == "dark" else ", runOnly: ['color-contrast']"
            result = page.evaluate(f"axe.run(document, {{resultTypes: ['violations'], preload: false{rules}}})")
            for one in result["violations"]:
                if one["impact"] in ("serious", "critical"):
                    found[f"{theme} {path} {one['id']}"] = [node["html"][:160] for node in one["nodes"][:3]]
        context.close()
    assert not found


def test_the_first_load_is_small(built: Path) -> None:
    """Everything the app has, not only what its first page needs."""
    total = sum(len(gzip.compress(path.read_bytes())) for path in built.rglob("*") if path.is_file())
    assert total <= MAX_BYTES


def test_the_page_may_run_nothing_but_its_own_files(served: Server) -> None:
    response = served.get("/", headers={"accept": "text/html"})
    policy = response.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "<script>" not in response.text
    assert served.get("/assets/../../../../etc/passwd").status_code == 404
    assert served.get("/").headers["content-type"].startswith("text/plain")
