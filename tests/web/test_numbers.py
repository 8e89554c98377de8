"""What pages show is what the commands say: the cockpit equals `penstock simulate`, explorations equal the reference values."""

import json
import subprocess
import sys

import pytest
from playwright.sync_api import Request, expect

from tests.web.conftest import Seen

pytestmark = pytest.mark.web

FLAGS = {
    "model": "llama-3.1-8b",
    "hardware": "h100",
    "rate": 10,
    "num-requests": 120,
    "shared-prefix": 2000,
    "prompts": 80,
}


def test_the_cockpit_shows_what_simulate_prints(seen: Seen) -> None:
    page = seen.go("cockpit?" + "&".join(f"{name}={value}" for name, value in FLAGS.items()))
    words = [word for name, value in FLAGS.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "penstock", "simulate", *words, "--json"]
    printed = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    summary = printed["results"]["continuous"]["summary"]
    expected = {
        "tokens/s": summary["output_tokens_per_s"],
        "TTFT p50": summary["ttft"]["p50"],
        "TPOT p99": summary["tpot"]["p99"],
        "ITL p99": summary["itl"]["p99"],
        "E2E p50": summary["e2e"]["p50"],
        "goodput": summary["good_fraction"],
    }
    for name, value in expected.items():
        shown = page.locator(f"[data-figure='{name} A']")
        expect(shown).to_be_visible()
        assert float(shown.get_attribute("data-value") or "nan") == pytest.approx(value, rel=1e-9), name
    expect(page.get_by_label("The same as a command")).to_contain_text("penstock simulate --model llama-3.1-8b")
    assert not seen.faults


def test_only_the_newest_of_two_runs_is_shown(seen: Seen) -> None:
    """A knob is turned while a long run is under way: its result never comes up, and the newest one does."""
    asked: list[int] = []
    page = seen.page

    def listen(request: Request) -> None:
        if request.url.endswith("/app/v1/simulate"):
            asked.append(json.loads(request.post_data or "{}")["flags"]["num-requests"])

    page.on("request", listen)
    long = FLAGS | {"num-requests": 9000, "rate": 60, "answers": 300}
    seen.go("cockpit?" + "&".join(f"{name}={value}" for name, value in long.items()))
    page.get_by_text("Load", exact=True).click()
    page.wait_for_function("() => document.querySelector('[role=status]')?.textContent?.includes('simulated')")
    with page.expect_request("**/app/v1/simulate"):
        page.get_by_label("Requests in the run", exact=True).fill("60")
        page.get_by_label("Requests in the run", exact=True).press("Tab")
    assert asked == [9000, 60]
    words = [word for name, value in (long | {"num-requests": 60}).items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "penstock", "simulate", *words, "--json"]
    printed = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    expected = printed["results"]["continuous"]["summary"]["output_tokens_per_s"]
    page.wait_for_function(
        "expected => Math.abs(document.querySelector(`[data-figure='tokens/s A']`)?.dataset.value / expected - 1) < 1e-9",
        arg=expected,
    )
    expect(page.locator(".note-box.bad")).to_have_count(0)


def stat(seen: Seen, name: str, text: str) -> None:
    expect(seen.page.locator(f"[data-stat='{name}'] .value")).to_contain_text(text)


def test_explorations_show_the_reference_values(seen: Seen) -> None:
    seen.go("explore/kv-growth?model=llama-3-70b&context=4096&sequences=1")
    stat(seen, "kv-token", "327,680 B")
    stat(seen, "kv-total", "1.34 GB")
    stat(seen, "kv-mha", "10.7 GB")
    seen.go("explore/speculation?drafts=5&acceptance=0.8&cost=0.05714")
    stat(seen, "tau", "3.69")
    stat(seen, "gain", "2.87")
    seen.go("explore/attention?tokens=2048&tile=256&dim=128")
    stat(seen, "plain", "35.7 MB")
    stat(seen, "tiled", "9.44 MB")
    page = seen.go("explore/hierarchy?device=h100-sxm&megabytes=1000")
    times = {"shared memory": "30.3 µs", "L2": "83.3 µs", "HBM": "299 µs", "host": "15.6 ms", "NVMe": "143 ms"}
    for level, time in times.items():
        expect(page.locator(f"[data-figure='{level}']")).to_have_text(time)
    seen.go("explore/memory?model=llama-3-8b&weights=bf16&context=4096")
    stat(seen, "memory-total", "16.")
    assert not seen.faults


def test_a_wrong_answer_of_a_quiz_is_told_why(seen: Seen) -> None:
    page = seen.go("explore/hierarchy")
    question = page.locator("fieldset.quiz").first
    expect(question).to_be_visible()
    for number in range(question.locator("button.quiz-option").count()):
        question.locator("button.quiz-option").nth(number).click()
        expect(question.locator(".why")).not_to_be_empty()
        if "Right." in question.locator(".why").inner_text():
            break
    expect(question.locator(".quiz-option.right")).to_have_count(1)
