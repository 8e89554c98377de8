"""The JSON behind the web app: tools within bounds, calculators, and nobody sees another's requests."""

import json
from typing import Any

import httpx
import pytest

from tests.server.serving import KEY, Server, user


def events(server: Server, body: dict[str, Any]) -> list[tuple[str, Any]]:
    found = []
    with server.http() as http, http.stream("POST", "/app/v1/simulate", json=body, timeout=120) as response:
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


def test_a_key_sees_its_own_requests_only(locked: Server) -> None:
    other = {"Authorization": "Bearer another-key-of-some-length"}
    with httpx.stream("GET", f"{locked.url}/app/v1/events", headers=other, timeout=30) as watching:
        lines = watching.iter_lines()
        next(lines)
        mine = locked.post("/v1/chat/completions", {"messages": user("x"), "max_tokens": 2})
        assert mine.status_code == 200
        name = mine.headers["x-request-id"]
        assert locked.get(f"/app/v1/requests/{name}").json()["num_tokens"] == 2
        assert httpx.get(f"{locked.url}/app/v1/requests/{name}", headers=other).status_code == 404
        seen = httpx.get(f"{locked.url}/app/v1/requests", headers=other).json()["requests"]
        assert name not in {one["call_id"] for one in seen}
        assert len(locked.get("/app/v1/requests").json()["requests"]) == 1
    assert httpx.get(f"{locked.url}/app/v1/about").status_code == 401
    assert KEY not in locked.get("/app/v1/requests").text
