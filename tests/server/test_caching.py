"""Explicit prompt caching: what a client asks to be kept is kept, counted, bounded, and the same through every dialect."""

from typing import Any

import pytest

from penstock.service.server.pins import PinLedger
from tests.server.serving import Server, serving, user

LONG = "a long preamble that many questions share, " * 8
EPHEMERAL: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}


def ask_anthropic(server: Server, question: str, control: dict[str, Any], **fields: Any) -> dict[str, Any]:
    system = [{"type": "text", "text": LONG} | control]
    body = {"model": "default", "max_tokens": 1, "system": system, "messages": user(question)} | fields
    usage: dict[str, Any] = server.post("/v1/messages", body).json()["usage"]
    return usage


def flood(server: Server, count: int = 40) -> None:
    """Prompts enough to push everything out of the cache that is not pinned."""
    for number in range(count):
        server.post("/v1/completions", {"prompt": f"{number} " + "x" * 400, "max_tokens": 1})


@pytest.fixture(scope="module")
def small() -> Any:
    with serving("--num-blocks", "128", "--max-context", "1024") as running:
        yield running


def test_a_pinned_prefix_outlives_a_flood_and_an_unpinned_one_does_not(small: Server) -> None:
    first = ask_anthropic(small, "one", EPHEMERAL)
    written = first["cache_creation_input_tokens"]
    assert written == first["cache_creation"]["ephemeral_5m_input_tokens"] == (len(LONG) + len("system: ")) // 16 * 16
    total = first["input_tokens"] + written + first["cache_read_input_tokens"]
    flood(small)
    again = ask_anthropic(small, "two", EPHEMERAL)
    assert (again["cache_read_input_tokens"], again["cache_creation_input_tokens"]) == (written, 0)
    assert sum(again[name] for name in ("input_tokens", "cache_read_input_tokens")) == total
    other = LONG.upper()
    body = {"model": "default", "max_tokens": 1, "system": other, "messages": user("one")}
    assert small.post("/v1/messages", body).json()["usage"]["cache_creation_input_tokens"] == 0
    flood(small)
    assert small.post("/v1/messages", body).json()["usage"]["cache_read_input_tokens"] == 0


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"max_tokens": 1, "prompt_cache_retention": "24h"}),
        ("/v1/chat/completions", {"max_tokens": 1, "prompt_cache_options": {"mode": "explicit", "ttl": "30m"}}),
        ("/api/chat", {"model": "default", "options": {"num_predict": 1}, "keep_alive": "10m", "stream": False}),
    ],
)
def test_every_dialect_can_keep_a_prompt(path: str, fields: dict[str, Any]) -> None:
    with serving("--num-blocks", "128", "--max-context", "1024") as server:
        body = fields | {"messages": user(LONG)}
        server.post(path, body)
        flood(server)
        answer = server.post(path, body).json()
        cached = answer.get("prompt_cached_count") or answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == (len(f"user: {LONG}\nassistant: ") - 1) // 16 * 16


def test_why_nothing_was_found_is_told_to_those_who_ask(small: Server) -> None:
    body = {"model": "default", "max_tokens": 1, "messages": user("never asked before, at all, by anyone")}
    told = small.post("/v1/messages", body | {"diagnostics": {}}).json()
    assert told["diagnostics"]["cache_miss_reason"] == "nothing cached begins alike"
    assert "diagnostics" not in small.post("/v1/messages", body).json()
    body = {"messages": user("of another kind altogether, long enough for a block"), "max_tokens": 1}
    plain, asked = (
        small.post("/v1/chat/completions", body | fields).json()["usage"]["prompt_tokens_details"]
        for fields in ({"cache_salt": "a"}, {"cache_salt": "b", "return_timings": True})
    )
    assert "cache_miss_reason" not in plain
    assert asked["cache_miss_reason"] == "nothing cached begins alike"


def test_five_breakpoints_are_too_many(small: Server) -> None:
    blocks = [{"type": "text", "text": "x"} | EPHEMERAL for _ in range(5)]
    body = {"model": "default", "max_tokens": 1, "messages": [{"role": "user", "content": blocks}]}
    assert small.post("/v1/messages", body).status_code == 400


def grant(ledger: PinLedger, tenant: str, num_tokens: int, ttl_s: float, now: float, salt: str = "") -> int:
    prompt = tuple(range(10_000))
    granted = ledger.grant(tenant, salt, prompt, ((num_tokens, ttl_s),), num_blocks=100, block_size=16, now=now)
    return granted[0][0] if granted else 0


def test_a_tenant_pins_no_more_than_its_share_and_the_same_prefix_once() -> None:
    ledger = PinLedger(num_tenants=2)
    assert grant(ledger, "a", 20 * 16, 60.0, 0.0) == 20 * 16
    assert grant(ledger, "a", 20 * 16 + 3, 60.0, 1.0) == 20 * 16
    assert len(ledger._pins["a"]) == 20
    assert grant(ledger, "a", 10 * 16, 60.0, 1.0, salt="other") == 0
    assert grant(ledger, "b", 25 * 16, 60.0, 1.0) == 25 * 16
    assert grant(ledger, "a", 10 * 16, 60.0, 62.0, salt="other") == 10 * 16, "what has ended counts no more"
    assert len(ledger._pins["a"]) == 10


def test_a_pin_is_granted_for_the_seconds_asked_for_whatever_the_clock_says() -> None:
    """To the bit: usage is told by them."""
    for now in (0.1 * 3**power for power in range(12)):
        ledger = PinLedger(num_tenants=1)
        room = {"num_blocks": 8, "block_size": 16}
        assert ledger.grant("a", "", (1,) * 33, ((32, 300.0), (32, 3600.0)), **room, now=now) == (
            (32, 300.0),
            (32, 3600.0),
        )
