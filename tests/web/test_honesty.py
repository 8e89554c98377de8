"""Pages never show what is not so: batches that cannot be, figures of another run, a dead engine as a live one."""

import re

import httpx
from playwright.sync_api import Browser, expect

from tests.server.serving import KEY, serving
from tests.web.conftest import PATIENCE_MS, Seen


def test_a_batch_that_does_not_fit_is_refused_and_the_largest_that_does_is_named(seen: Seen) -> None:
    page = seen.go("explore/throughput?context=8000")
    expect(page.locator("[data-stat='best batch'] .value")).to_have_text("65")
    expect(page.get_by_text("the largest that fits is 65")).to_be_visible()
    row = page.get_by_label("Gain of each doubling").get_by_role("row").filter(has_text="256")
    expect(row).to_contain_text("does not fit")


def test_an_experiment_greys_what_is_of_the_run_before_and_its_gain_reads_forwards(seen: Seen) -> None:
    page = seen.go("cockpit?num-requests=40&model=llama-3.1-8b")
    figure = page.locator("[data-figure='tokens/s A']")
    expect(figure).to_be_visible()
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    page.get_by_role("button", name="Continuous batching").click()
    expect(page.locator("[aria-busy=true] .stale [data-figure='tokens/s A']")).to_be_visible()
    expect(page.get_by_text("it holds")).to_be_visible(timeout=2 * PATIENCE_MS)
    expect(page.locator(".stale")).to_have_count(0)
    before, after = (
        float(page.locator(f"[data-figure='tokens/s {side}']").get_attribute("data-value") or "nan") for side in "AB"
    )
    assert after > before
    gain = page.get_by_role("row").filter(has=page.locator("[data-figure='tokens/s A']")).locator(".badge")
    expect(gain).to_have_class(re.compile("good"))
    expect(gain).to_contain_text("+")


def test_results_of_other_settings_are_grey_until_theirs_are_there(seen: Seen) -> None:
    page = seen.go("explore/batching")
    use = page.locator("[data-stat='static use'] .value")
    expect(use).to_be_visible()
    expect(page.locator(".stale")).to_have_count(0)
    slots = page.get_by_role("spinbutton", name="Slots")
    slots.fill("3")
    slots.press("Enter")
    expect(page.locator("[aria-busy=true].stale").filter(has=use)).to_be_visible()
    expect(page.locator(".stale")).to_have_count(0)
    expect(use).to_be_visible()


def test_slots_in_use_are_a_share_of_all_slots(seen: Seen) -> None:
    page = seen.go("explore/batching")
    shares = {}
    for way in ("static", "continuous"):
        used = page.locator(f"[data-stat='{way} use'] .value")
        expect(used).to_be_visible()
        lost = page.locator(f"[data-stat='{way} lost'] .value").inner_text()
        shares[way] = float(used.inner_text().split()[0]), float(lost.split()[0])
    assert sum(shares["static"]) <= 100.0
    assert shares["static"][1] > 20.0
    assert shares["continuous"][1] == 0.0
    assert shares["continuous"][0] < 100.0


def test_parallel_layouts_show_links_experts_and_what_is_best_for_what(seen: Seen) -> None:
    page = seen.go("explore/parallelism?model=qwen3-30b-a3b&way=EP")
    expect(page.locator("[data-stat=near] .note")).to_have_text("nvlink")
    expect(page.locator("[data-stat=far] .note")).to_contain_text("network")
    expect(page.get_by_label("8 devices under EP")).to_be_visible()
    expect(page.locator("[data-stat=quickest] .value")).to_have_text(re.compile("TP|EP"))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_split_has_a_mode_a_ratio_and_a_link(seen: Seen) -> None:
    page = seen.go("explore/split?mode=split&prefill=1&decode=2&link=1&requests=100&rate=1")
    expect(page.get_by_role("heading", name="split, 1 prefill : 2 decode")).to_be_visible()
    expect(page.locator("[data-stat='KV handed over in'] .value")).to_be_visible()
    expect(page.get_by_label("The same as a command")).to_contain_text("--prefill-replicas 1 transfer-gb-s=1")


def test_advice_names_the_address_the_page_came_from(seen: Seen) -> None:
    page = seen.go("advise")
    page.get_by_role("button", name="only under load").or_(page.locator(".quiz-option").nth(1)).first.click()
    command = page.get_by_label("The same as a command").first
    expect(command).to_contain_text(seen.url)


def test_requests_that_ended_unseen_and_an_engine_that_is_gone_are_told_as_they_are(browser: Browser) -> None:
    with serving() as server:
        for number in range(2):
            body = {"prompt": "x", "max_tokens": 6 + number, "ignore_eos": True}
            httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).raise_for_status()
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        seen = Seen(context, server.url)
        page = seen.go("dashboard")
        page.get_by_text("Ended (2)").click()
        rows = page.get_by_role("region", name="Requests that ended").get_by_role("row")
        expect(rows.nth(1)).to_contain_text("length")
        expect(rows.filter(has_text="cancelled")).to_have_count(0)
        head = page.locator(".page-head")
        expect(head.locator(".badge.live")).to_be_visible()
        expect(page.get_by_text("It is idle.")).to_be_visible()
        server.process.kill()
        expect(page.get_by_text("The server does not answer")).to_be_visible()
        expect(head.locator(".badge.live")).to_have_count(0)
        expect(page.get_by_text("It is idle.")).to_have_count(0)
        context.close()


def test_a_wrong_key_says_so_and_health_asks_for_none(browser: Browser) -> None:
    with serving(key=KEY) as server:
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert httpx.get(f"{server.url}/metrics").status_code == 401
        context = browser.new_context(viewport={"width": 390, "height": 844})
        page = Seen(context, server.url).go("dashboard")
        dialog = page.get_by_role("dialog")
        expect(dialog).to_be_visible()
        expect(dialog.get_by_text("does not accept")).to_have_count(0)
        dialog.get_by_label("API key").fill("a-wrong-key")
        dialog.get_by_role("button", name="Use it").click()
        expect(page.get_by_text("The server does not accept the key that was given")).to_be_visible()
        page.get_by_role("dialog").get_by_label("API key").fill(KEY)
        page.get_by_role("dialog").get_by_role("button", name="Use it").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        context.close()
