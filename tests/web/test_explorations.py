"""Explorations that say they are live ask the served model."""

import pytest
from playwright.sync_api import expect

from tests.server.serving import Server
from tests.web.conftest import PATIENCE_MS, Seen

pytestmark = pytest.mark.web


def test_the_decode_loop_goes_on_from_the_very_token(seen: Seen) -> None:
    page = seen.go("explore/decode-loop?temperature=0")
    page.get_by_role("button", name="Ask the model").click()
    rows = page.locator(".bar-row")
    expect(rows).to_have_count(20)
    forced = rows.nth(3).locator(".mono").first.inner_text()
    rows.nth(3).click()
    expect(page.locator(".tokens button.token")).to_have_count(1)
    assert page.locator(".tokens button.token").inner_text() == forced
    page.get_by_role("button", name="Draw a token").click()
    expect(page.locator(".tokens button.token")).to_have_count(2)
    assert not seen.faults


def test_the_speculation_card_shows_the_served_models_drafts(seen: Seen) -> None:
    page = seen.go("explore/speculation")
    page.get_by_role("button", name="Try it live").click()
    expect(page.locator("[data-stat=live-acceptance] .value")).to_contain_text("%")
    expect(page.locator(".token.draft").first).to_be_visible()
    assert not seen.faults


def test_real_sequences_show_their_block_tables(seen: Seen, served: Server) -> None:
    page = seen.go("explore/blocks?sequences=2")
    expect(page.locator("[data-stat=padded-waste] .value")).to_contain_text("%")
    page.get_by_role("button", name="Send 2 real sequences").click()
    tables = page.get_by_role("region", name="Block tables of running sequences").locator("tbody tr")
    expect(tables).to_have_count(2)
    expect(tables.first.locator("td").nth(2)).not_to_have_text("0")
    page.get_by_role("button", name="Stop them").click()
    expect(page.locator("[data-stat=kv-held] .value")).to_have_text("0")
    assert not seen.faults


def test_a_request_is_replayed_from_its_recorded_times(seen: Seen) -> None:
    page = seen.go("explore/lifecycle?tokens=8")
    page.get_by_role("button", name="Send it").click()
    expect(page.locator("[data-stat=passes] .value")).to_have_text("8")
    assert not seen.faults


def test_a_shared_beginning_is_found_and_a_moved_one_is_not(seen: Seen) -> None:
    page = seen.go("explore/prefix?prefix=128&own=20&requests=3")
    page.get_by_role("button", name="Send them").click()
    expect(page.locator("[data-stat=cached] .value")).to_have_text("128")
    page.get_by_label("The part that varies comes").select_option("first")
    page.get_by_role("button", name="Send them").click()
    expect(page.locator("[data-stat=cached] .value")).to_have_text("0")
    assert not seen.faults


@pytest.mark.slow
def test_a_long_prompt_beside_streams_is_timed_here(seen: Seen) -> None:
    page = seen.go("explore/split?mode=split&requests=100&rate=1&long=200")
    page.get_by_role("button", name="Try it on this server").click()
    expect(page.locator("[data-stat=long-ttft] .value")).to_contain_text("s", timeout=4 * PATIENCE_MS)
    expect(page.locator("[data-stat=gap-before] .value")).to_contain_text("s")
    expect(page.locator("[data-stat=gap-beside] .value")).to_contain_text("s", timeout=4 * PATIENCE_MS)
    assert not seen.faults
