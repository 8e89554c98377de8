"""The JSON behind the web app: tools within bounds, calculators, and nobody sees another's requests."""

import json
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.metrics.exposition import Counter
from penstock.runtime.engine.client import StepView
from penstock.service.server.ui.ledger import RequestLedger, RequestRecord
from penstock.service.server.ui.pages import PowerMeter
from penstock.service.server.ui.utilisation import (
    RequestMix,
    StepTimes,
    capacity_per_s,
    frontier,
    full_batch,
    queue_of,
    step_times,
)
from tests.machine import PATIENCE_S, wait_until
from tests.server.serving import KEY, Server, serving, user

ADMIN_KEY = "an-admin-key-of-some-length"


def events(server: Server, body: dict[str, Any], path: str = "/app/v1/simulate") -> list[tuple[str, Any]]:
    found = []
    with server.http() as http, http.stream("POST", path, json=body, timeout=120) as response:
        if response.status_code != 200:
            return [("fault", json.loads(response.read()))]
        name = ""
        for line in response.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                found.append((name, json.loads(line.removeprefix("data: "))))
    return found


def test_a_run_ends_in_one_result(server: Server) -> None:
    found = events(server, {"flags": {"num-requests": 20, "rate": 50}, "frames": True})
    assert [name for name, _ in found].count("result") == 1
    name, result = found[-1]
    assert name == "result"
    assert result["report"]["workload"]["num_requests"] == 20
    frames = result["frames"]["continuous"]
    assert len(frames["requests"]) == 20
    assert sum(row[2] for row in frames["replicas"][0]["steps"]) > 0


@pytest.mark.parametrize(
    "flags",
    [
        {"trace": "/etc/passwd"},
        {"profile": "/etc/passwd"},
        {"chrome-trace": "/tmp/x"},
        {"prompts": "file:/etc/passwd"},
        {"model": "/etc/passwd"},
        {"hardware": "this-machine"},
        {"num-requests": 1_000_000},
        {"num-requests": True},
        {"nonsense": 1},
    ],
)
def test_a_page_names_no_file_and_asks_for_nothing_endless(server: Server, flags: dict[str, Any]) -> None:
    response = server.post("/app/v1/simulate", {"flags": flags})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "flags"


def test_what_the_command_refuses_is_told(server: Server) -> None:
    found = events(server, {"flags": {"model": "llama-3.1-405b", "hardware": "l4"}})
    name, fault = found[-1]
    assert name == "fault"
    assert fault["error"]["message"]


def test_calculators_and_advice_are_data(server: Server) -> None:
    answer = server.post("/app/v1/calculators/kv", {"inputs": {"model": "llama-3-70b", "context": 4096}}).json()
    assert answer["values"]["sequence_bytes"] == 1_342_177_280
    assert server.post("/app/v1/calculators/kv", {"inputs": {"nonsense": 1}}).status_code == 400
    assert {"trees", "checklists", "cheatsheet", "rules"} <= server.get("/app/v1/advice").json().keys()
    found = server.post("/app/v1/lint", {"settings": {"memory_fraction": 0.97}}).json()["findings"]
    assert [one["setting"] for one in found] == ["memory_fraction"]
    areas = server.get("/app/v1/quizzes").json()["areas"]
    one, two = (server.get(f"/app/v1/quizzes/{areas[0]}?seed=3").json() for _ in range(2))
    assert one == two


def test_a_pool_laid_out_wastes_less_than_reservations(server: Server) -> None:
    body = {"sequences": 4, "reserve": 2048, "block": 16, "share": True, "finish": 1}
    laid = server.post("/app/v1/blocks", body).json()
    assert laid["paged_waste"] < 0.1 < 0.6 < laid["contiguous_waste"]
    assert laid["num_shared_tokens"] == 2 * 256
    lengths = [one["length"] for one in laid["sequences"]]
    assert laid["padded"] == [max(lengths)] * 3
    assert laid["padded_waste"] == pytest.approx(1 - sum(lengths) / (3 * max(lengths)))


def test_a_key_sees_its_own_requests_only(locked: Server) -> None:
    other = {"Authorization": "Bearer another-key-of-some-length"}
    with httpx.stream("GET", f"{locked.url}/app/v1/events", headers=other, timeout=PATIENCE_S) as watching:
        lines = watching.iter_lines()
        next(lines)
        mine = locked.post("/v1/chat/completions", {"messages": user("x"), "max_tokens": 2})
        assert mine.status_code == 200
        name = mine.headers["x-request-id"]
        assert locked.get(f"/app/v1/requests/{name}").json()["num_tokens"] == 2
        assert httpx.get(f"{locked.url}/app/v1/requests/{name}", headers=other).status_code == 404
        seen = httpx.get(f"{locked.url}/app/v1/requests", headers=other).json()["requests"]
        assert name not in {one["call_id"] for one in seen}
        own = locked.get("/app/v1/requests").json()["requests"]
        assert name in {one["call_id"] for one in own}
        assert len({one["tenant"] for one in own}) == 1
    assert httpx.get(f"{locked.url}/app/v1/about").status_code == 401
    assert KEY not in locked.get("/app/v1/requests").text


def test_an_admin_key_sees_the_requests_of_all(locked: Server) -> None:
    with serving("--admin-key", ADMIN_KEY, key=KEY) as server:
        admin = {"Authorization": f"Bearer {ADMIN_KEY}"}
        with httpx.stream("GET", f"{server.url}/app/v1/events", headers=admin, timeout=PATIENCE_S) as watching:
            next(watching.iter_lines())
            mine = server.post("/v1/chat/completions", {"messages": user("x"), "max_tokens": 2})
            name = mine.headers["x-request-id"]
            assert httpx.get(f"{server.url}/app/v1/requests/{name}", headers=admin).json()["num_tokens"] == 2
        assert httpx.get(f"{server.url}/app/v1/about", headers=admin).json()["is_admin"]
        assert not server.get("/app/v1/about").json()["is_admin"]


def refusals_seen(url: str, headers: dict[str, str]) -> list[dict[str, Any]]:
    with httpx.stream("GET", f"{url}/app/v1/events", headers=headers, timeout=PATIENCE_S) as watching:
        for line in watching.iter_lines():
            if line.startswith("data: "):
                rows: list[dict[str, Any]] = json.loads(line.removeprefix("data: "))["refusals"]
                return rows
    return []


def test_refusals_are_told_with_their_reason_and_to_their_own_key(locked: Server) -> None:
    refused = locked.post("/v1/chat/completions", {"messages": user("x"), "max_tokens": -1})
    assert refused.status_code == 400
    found = refusals_seen(locked.url, locked.headers)[-1]
    assert (found["status"], found["call_id"]) == (400, refused.headers["x-request-id"])
    assert found["message"] == refused.json()["error"]["message"]
    others = refusals_seen(locked.url, {"Authorization": "Bearer another-key-of-some-length"})
    assert found["call_id"] not in {one["call_id"] for one in others}


def test_a_later_question_of_a_lane_replaces_the_one_before(server: Server) -> None:
    long = {"flags": {"num-requests": 10_000, "rate": 40, "prompts": "2000", "answers": "400"}, "lane": "x"}
    first: list[list[tuple[str, Any]]] = []
    running = threading.Thread(target=lambda: first.append(events(server, long | {"frames": True})))
    running.start()
    while not first:  # whichever of the two comes first, one of ours comes after it
        name, told = events(server, {"flags": {"num-requests": 20, "rate": 50}, "lane": "x"})[-1]
        assert name == "result" or told["error"]["code"] == "superseded"
        running.join(0.5)
    name, told = first[0][-1]
    assert (name, told["error"]["code"]) == ("fault", "superseded")


def test_a_benchmark_of_this_server_tells_how_it_comes_along(server: Server) -> None:
    flags = {"concurrency": 2, "num-requests": 8, "prompts": "20", "answers": "8"}
    found = events(server, {"flags": flags}, "/app/v1/bench")
    name, report = found[-1]
    assert name == "result"
    assert report["runs"]
    steps = [news for name, news in found if name == "progress" and "num_total" in news]
    assert all(one["num_ended"] <= one["num_total"] for one in steps)


def test_a_page_may_load_only_servers_that_the_operator_named(server: Server) -> None:
    body = {"flags": {"num-requests": 1}, "target": "http://169.254.169.254"}
    refused = server.post("/app/v1/bench", body)
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "target_not_allowed"
    with serving(f"bench-target={server.url}") as other:
        assert other.get("/app/v1/about").json()["bench_targets"] == [server.url]
        flags = {"concurrency": 1, "num-requests": 4, "prompts": "20", "answers": "4"}
        name, report = events(other, {"flags": flags, "target": server.url}, "/app/v1/bench")[-1]
        assert (name, report["target"]["url"]) == ("result", server.url)


def test_an_answer_goes_on_from_the_very_tokens(server: Server) -> None:
    body = {"messages": user("x"), "max_tokens": 8, "temperature": 0, "return_token_ids": True, "logprobs": True}
    whole = server.post("/v1/chat/completions", body).json()["choices"][0]
    ids = whole["token_ids"]
    assert [one["token_id"] for one in whole["logprobs"]["content"]] == ids
    rest = server.post("/v1/chat/completions", body | {"max_tokens": 5, "continue_token_ids": ids[:3]}).json()
    assert rest["choices"][0]["token_ids"] == ids[3:]
    beyond = server.post("/v1/chat/completions", body | {"continue_token_ids": [10**6]})
    assert beyond.json()["error"]["param"] == "continue_token_ids"


def step(duration_s: float, num_prompt: int, num_decoding: int) -> StepView:
    return StepView(0.0, duration_s, num_prompt, num_decoding, 0, 0, 0, ())


def test_capacity_is_what_full_steps_would_carry() -> None:
    steps = [step(0.010 + 0.001 * size, 0, size) for size in (1, 2, 4, 8) for _ in range(4)]
    steps += [step(0.010 + 0.001 * 2 + 0.0005 * 100, 100, 2)]
    times = step_times(steps)
    assert times is not None
    assert times == pytest.approx(StepTimes(0.010, 0.001, 0.0005))
    mix = RequestMix(num_computed=100, num_tokens=50, num_context=150)
    full = full_batch(mix, max_sequences=16, num_kv_tokens=10**6)
    assert capacity_per_s(times, mix, full) == pytest.approx(1 / (50 * (0.010 + 0.016) / 16 + 100 * 0.0005))
    tight = full_batch(mix, max_sequences=16, num_kv_tokens=600)
    assert capacity_per_s(times, mix, tight) == pytest.approx(1 / (50 * (0.010 + 0.004) / 4 + 100 * 0.0005))
    assert step_times(steps[:3]) is None
    points = frontier(times, mix, full)
    assert [point.num_sequences for point in points] == [1, 2, 4, 8, 16]
    assert points[-1].tokens_per_s == pytest.approx(50 * capacity_per_s(times, mix, full)), "its end is the capacity"
    for fewer, more in pairwise(points):
        assert more.tokens_per_s > fewer.tokens_per_s
        assert more.tpot_s > fewer.tpot_s, "what all gain each one pays for"


def test_a_machine_is_not_measured_while_answers_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with serving(model="oracle:step_ms=20") as server, server.http() as http:
        body = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        with http.stream("POST", "/v1/completions", json=body) as answer:
            parts = answer.iter_bytes()
            next(parts)
            refused = server.post("/app/v1/machine", {})
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "server_busy")
            assert server.post("/app/v1/machine", {"measures": False}).json() is None
            refused = server.post("/app/v1/profile", {"flags": {"batch": 2}})
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "server_busy")
            assert server.post("/app/v1/profile", {"flags": {"model": "x"}}).status_code == 400


def test_several_chats_travel_over_one_connection(server: Server) -> None:
    body = {"messages": user("x"), "max_tokens": 6, "temperature": 0, "stream_options": {"include_usage": True}}
    alone = server.post("/v1/chat/completions", body | {"stream_options": None}).json()["choices"][0]["message"]
    bodies = [body] * 12 + [body | {"max_tokens": -1}]
    assert server.post("/app/v1/streams", {"bodies": bodies}).status_code == 400
    found = events(server, {"bodies": [*bodies[:12], body | {"model": "no such model"}]}, "/app/v1/streams")
    texts = dict.fromkeys(range(13), "")
    for name, news in found:
        if name == "chunk":
            for line in news["data"].split("\n\n"):
                chunk = json.loads(line.removeprefix("data: ")) if line.startswith("data: {") else {"choices": []}
                texts[news["index"]] += "".join(one["delta"].get("content") or "" for one in chunk["choices"])
    assert [texts[index] for index in range(12)] == [alone["content"]] * 12
    ends = {news["index"]: news.get("error") for name, news in found if name == "end"}
    assert len(ends) == 13
    assert ends[12]["code"] == "model_not_found"
    assert not any(ends[index] for index in range(12))


def first_view(url: str, headers: dict[str, str]) -> dict[str, Any]:
    with (
        httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_S) as http,
        http.stream("GET", "/app/v1/events") as page,
    ):
        return next(json.loads(line.removeprefix("data: ")) for line in page.iter_lines() if line.startswith("data: "))


def test_requests_that_ended_before_anybody_looked_keep_their_outcome_and_their_counts() -> None:
    with serving() as server:
        for number in range(3):
            body = {"prompt": f"say {number}", "max_tokens": 5 + number, "ignore_eos": True}
            assert server.post("/v1/completions", body).status_code == 200
        server.post("/v1/completions", {"prompt": "one", "max_tokens": 400, "stop": list("aeiou")})
        seen = first_view(server.url, server.headers)
    stopped, *rest = seen["ended"]
    assert [(one["outcome"], one["num_tokens"]) for one in rest] == [("length", 7), ("length", 6), ("length", 5)]
    assert stopped["outcome"] == "stop"
    assert all(one["ttft_s"] > 0.0 and one["tpot_s"] > 0.0 for one in rest)
    queue = seen["queue"]
    assert queue["ended_per_s"] * queue["window_s"] == pytest.approx(4)
    assert queue["arrivals_per_s"] == pytest.approx(queue["ended_per_s"])
    assert queue["mean_inside"] == pytest.approx(queue["arrivals_per_s"] * queue["mean_time_s"])


def test_littles_law_holds_in_the_one_window_that_all_figures_are_of() -> None:
    """Four requests inside at all times, each for two seconds; more have ended than the ledger keeps."""
    ledger, now = RequestLedger(), 1000.0
    for number in range(1000):
        end_s = now - 0.5 * (999 - number)
        ledger.ended.append(record(number, end_s - 2.0, end_s))
    for number in range(4):
        ledger.open[2000 + number] = record(2000 + number, now - 0.5 * number, None)
    for start_s in (now - 60.0, now - 1000.0):
        found = queue_of(ledger, start_s, now)
        assert found.window_s == pytest.approx(min(60.0 if start_s > 900 else 200.0, now - start_s), abs=1.0)
        assert found.arrivals_per_s == pytest.approx(2.0, rel=0.05)
        assert found.mean_time_s == pytest.approx(2.0)
        assert found.mean_inside == pytest.approx(4.0, rel=0.05)


def record(number: int, arrival_s: float, end_s: float | None) -> RequestRecord:
    return RequestRecord(number, "", "", 10, 1, arrival_s, arrival_s, arrival_s, arrival_s, None, end_s, end_s, 8)


def test_watts_are_the_change_of_energy() -> None:
    joules = iter([100.0, 130.0, 160.0])

    def metrics() -> list[Counter]:
        counter = Counter("penstock_gpu_energy_joules", "Energy")
        counter.add(next(joules))
        return [counter]

    meter = PowerMeter(metrics, 2.5)
    assert meter.view(0.0) == {"watts": None, "dollars_per_hour": 2.5}
    meter.view(1.0)  # too soon for another reading
    assert meter.view(3.0)["watts"] == 10.0
    assert meter.view(6.0)["watts"] == 10.0
    assert PowerMeter(list, None).view(0.0) == {"watts": None, "dollars_per_hour": None}


@pytest.mark.slow
def test_a_page_is_told_where_the_time_of_a_step_goes() -> None:
    with serving(model="default", is_real=True) as server:
        wait_until(lambda: server.get("/readyz").status_code == 200)
        found = server.post("/app/v1/profile", {"flags": {"batch": 2, "context": 64}}, timeout=PATIENCE_S).json()
    assert found["shape"] == {"batch": 2, "context": 64, "prompt": 0}
    assert found["floor_s"] > 0.0
    assert found["step_s"] > 0.0
    assert {"attention"} < {part["kind"] for part in found["parts"]}
    starts = [start_s for _, _, start_s, _, _ in found["timeline"]]
    assert starts == sorted(starts)
    assert starts[0] == 0.0


def test_a_run_under_way_ends_with_the_server() -> None:
    """Its page is told, nothing is waited for, and nothing is logged as a fault."""
    body = {"flags": {"num-requests": 10_000, "rate": 40, "prompts": "2000", "answers": "400"}}
    with serving() as server, server.http() as http, http.stream("POST", "/app/v1/simulate", json=body) as answer:
        lines = answer.iter_lines()
        told = [next(lines)]
        assert server.stop() == 0
        told += lines
        assert any("shutting_down" in line for line in told)
        assert "Traceback" not in server.errors.read_text()
