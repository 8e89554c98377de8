"""What is counted is what happened, and what waits is told how far it is."""

import asyncio
import json
import subprocess
import sys
from itertools import pairwise

from prometheus_client import parser

from tests.machine import PATIENCE_S, wait_until
from tests.server.ledger import Ledger, mixed_load
from tests.server.serving import Server, render, serving, user

NAMES = {
    *("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:prompt_tokens"),
    *("vllm:generation_tokens", "vllm:prompt_tokens_cached", "vllm:time_to_first_token_seconds"),
    *("vllm:inter_token_latency_seconds", "vllm:request_time_per_output_token_seconds"),
    *("vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds", "vllm:request_prefill_time_seconds"),
    *("vllm:request_decode_time_seconds", "vllm:request_prompt_tokens", "vllm:request_generation_tokens"),
    *("vllm:request_success", "vllm:num_preemptions", "vllm:prefix_cache_queries", "vllm:prefix_cache_hits"),
    *("vllm:cache_config_info", "penstock_engine_restarts", "penstock_requests_refused", "penstock_http_responses"),
}


def test_known_dashboards_find_their_names(server: Server) -> None:
    families = {family.name for family in parser.text_string_to_metric_families(server.get("/metrics").text)}
    assert families >= NAMES


def test_tokens_and_requests_are_counted_once() -> None:
    with serving() as running:
        running.post("/v1/chat/completions", {"messages": user("count"), "max_tokens": 7, "n": 2})
        running.post("/v1/completions", {"prompt": ["ab", "cde"], "max_tokens": 5})
        assert running.metric("vllm:prompt_tokens_total") == len(render(user("count"))) + 5
        assert running.metric("vllm:generation_tokens_total") == 24
        assert running.metric("vllm:request_success_total", 'finished_reason="length"') == 3
        assert running.metric("vllm:time_to_first_token_seconds_count") == 3
        assert running.metric("vllm:e2e_request_latency_seconds_count") == 3
        assert running.metric("penstock_http_responses_total", 'route="/v1/completions",status="200"') == 1


def test_a_call_that_waits_is_told_its_place_and_its_prompt_s_progress() -> None:
    flags = ["--max-sequences", "1", "--max-batch-tokens", "64", "--max-context", "8192"]

    async def session(running: Server) -> list[dict[str, object]]:
        ledger = Ledger()
        load = asyncio.create_task(mixed_load(running, ledger, 2, in_flight=2, seed=1, tokens=25))
        await asyncio.to_thread(wait_until, lambda: running.metric("vllm:num_requests_waiting") == 1)
        body = {
            "messages": user("long " * 400),
            "max_tokens": 1,
            "stream": True,
            "stream_options": {"include_progress": True},
        }
        events = []
        answer = await asyncio.to_thread(running.post, "/v1/chat/completions", body)
        lines = answer.text.splitlines()
        for name, data in pairwise(lines):
            if name == "event: progress":
                events.append(json.loads(data.removeprefix("data: ")))
        await load
        assert ledger.complete == 2
        return events

    with serving(*flags, model="oracle:step_ms=40") as running:
        stages = {str(event["stage"]): event for event in asyncio.run(session(running))}
    assert stages["queued"]["position"] in (1, 2)
    assert 0 < int(str(stages["prefill"]["percent"])) <= 100


def test_top_tells_the_same_numbers(server: Server) -> None:
    command = [sys.executable, "-m", "penstock", "top", server.url, "--once", "--json", "--every-s", "0.5"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    while process.poll() is None:
        server.post("/v1/completions", {"prompt": "top", "max_tokens": 20})
    out, _ = process.communicate()
    figures = json.loads(out)
    assert process.returncode == 0
    assert figures["output_tokens_per_s"] > 0
    assert figures["ttft_p50_ms"] > 0
    plain = subprocess.run([*command[:6], "--once"], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert "output tokens per s" in plain.stdout


def test_top_says_when_nobody_answers() -> None:
    command = [sys.executable, "-m", "penstock", "top", "http://127.0.0.1:9", "--once"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert "is the server running?" in done.stderr


def test_the_page_of_routes_stands_alone(server: Server) -> None:
    page = server.get("/docs").text
    assert "/v1/chat/completions" in page
    assert "http" not in page.replace("/openapi.json", "").replace("http-", "")
    document = server.get("/openapi.json").json()
    assert document["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    assert server.get("/version").json()["version"]


def test_the_signals_that_operators_expect_are_there_and_add_up() -> None:
    with serving("price-per-hour=3.6") as server:
        for _ in range(3):
            server.post("/v1/completions", {"prompt": "x", "max_tokens": 10, "ignore_eos": True}).raise_for_status()
        text = server.get("/metrics").text
        for name in (
            *("llm_requests_total", "llm_tokens_generated_total", "llm_ttft_seconds_count", "llm_active_requests"),
            *("llm_request_latency_seconds_count", "llm_queue_depth", "llm_kv_cache_utilization"),
            *("llm_gpu_memory_used_bytes", "penstock_kv_waste_fraction", "penstock_cost_dollars_total"),
        ):
            assert f"\n{name}{{" in text, name
        assert server.metric("llm_tokens_generated_total") == 30
        assert server.metric("penstock_good_requests_total") == server.metric("llm_request_latency_seconds_count") == 3
        assert server.metric("penstock_step_sequences_count") >= 10
        dollars, each = (server.metric(f"penstock_{name}") for name in ("cost_dollars_total", "dollars_per_1k_tokens"))
        assert dollars > 0.0
        assert each >= dollars / 30 * 1000 * 0.5
