"""Money over HTTP, with a real engine behind: whatever is asked in whatever dialect, no more is made than was paid for."""

import asyncio
import json
import random
import re
import time
from contextlib import asynccontextmanager

import msgspec
import pytest

from penstock.service.gateway.accounts.budgets import budgets
from penstock.service.gateway.accounts.money import nanodollars
from penstock.service.gateway.accounts.usage import usage_sums
from penstock.service.gateway.gateway import Gateway
from penstock.service.gateway.keys import create_key
from penstock.service.gateway.schema import GATEWAY
from penstock.service.gateway.settings import GatewaySettings
from penstock.service.server.app import ROUTES
from penstock.service.server.reading import is_free, read_request
from penstock.service.store.database import SqliteDatabase
from tests.machine import PATIENCE_S
from tests.router.harness import ask, opened_router
from tests.router.test_relay import run
from tests.server.serving import Server, serving

PRICE = {"input": 1.0, "output": 1.0}
"""A nanodollar is a thousandth of a token: sums of money are sums of tokens."""
TOKEN = 1000


@pytest.fixture(scope="module")
def engine():
    with serving() as running:
        yield running


def made(engine: Server) -> int:
    """Tokens of prompts and answers, as the engine itself counts them."""
    text = engine.get("/metrics").text
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    return sum(int(float(re.search(rf"^{name}\{{[^}}]*\}} (\S+)$", text, re.MULTILINE)[1])) for name in names)


class Spender:
    def __init__(self, port: int, key: str, gateway: Gateway, model: str) -> None:
        self.port, self.key, self.gateway, self.model = port, key, gateway, model

    async def ask(self, path: str, body: dict | bytes, method: str = "POST", **headers: str):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await ask(self.port, data, path, method, authorization=f"Bearer {self.key}", **headers)

    async def settled(self) -> None:
        """Everything is written and every bill is here."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                await asyncio.to_thread(self.gateway.refresh, time.time())
                if not self.gateway.ledger.num_unwritten and not self.gateway.num_later:
                    return
                await asyncio.sleep(0.05)

    @property
    def spent(self) -> tuple[int, int]:
        (limit,) = budgets(self.gateway.database)
        return limit.spent, limit.reserved

    @property
    def charged(self) -> int:
        return sum(one.cost for one in usage_sums(self.gateway.database, ("model",)))


@asynccontextmanager
async def spending(tmp_path, engine: Server, budget_usd: float, **rules):
    database = SqliteDatabase(tmp_path / "gateway.db", [GATEWAY])
    key, _ = create_key(database, name="", tenant="acme", now=0.0)
    tenants = {"acme": {"budget_usd": budget_usd, "budget_period": "total"}}
    settings = msgspec.convert({"prices": {"*": PRICE}, "tenants": tenants, "max_wait_s": 1e9} | rules, GatewaySettings)
    gateway = Gateway(settings, database, time.time(), tmp_path / "journal")
    async with opened_router(engine.url, gateway=gateway) as router:
        await router.until(lambda: bool(router.app.fleet.models))
        yield Spender(router.port, key, gateway, router.app.fleet.models[0])
    gateway.ledger.close()
    database.close()


USER = [{"role": "user", "content": "hello there"}]
ODD = (
    {},
    {"session_id": 1},
    {"user": "u", "prompt_cache_key": "k"},
    {"max_tokens": 3, "max_completion_tokens": 40},
    {"max_completion_tokens": 3, "max_tokens": 40},
    {"max_output_tokens": 1, "num_predict": 1},
    {"n": 3, "max_tokens": 8},
    {"options": {"num_predict": 50}},
    {"messages": [{"role": "system", "content": "x" * 400}, *USER], "max_tokens": 2},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}], "max_tokens": 4},
    {"stream": True, "max_tokens": 6},
    {"metadata": {"max_tokens": "1"}, "max_tokens": 5},
)


def drawn_call(rng: random.Random, model: str) -> tuple[str, dict]:
    """A call of any dialect, with fields of others and odd values among its own."""
    odd = rng.choice(ODD)
    named = rng.choice(({}, {"model": model}, {"model": "default"}))
    asks = {
        "/v1/chat/completions": lambda: {"messages": USER, **named, **odd},
        "/v1/completions": lambda: {"prompt": rng.choice(["one", ["one", "two", "three"], [1, 2, 3]]), **named, **odd},
        "/v1/messages": lambda: {"messages": USER, "max_tokens": rng.choice((1, 30)), "model": model} | odd,
        "/v1/responses": lambda: {"input": "hello", "max_output_tokens": rng.choice((2, 20)), **named, **odd},
        "/api/chat": lambda: {"model": model, "messages": USER, "options": {"num_predict": rng.choice((4, 30))}} | odd,
        "/api/generate": lambda: {"model": model, "prompt": "hello", "options": {"num_predict": 9}} | odd,
    }
    path = rng.choice(list(asks))
    return path, asks[path]()


def test_mixed_calls_of_all_dialects_with_hostile_fields_spend_what_was_made_and_no_more_than_there_is(
    tmp_path, engine
):
    """Sixty-four at once, a thousand in all; the budget ends on the way."""

    async def law():
        rng = random.Random(7)
        before = await asyncio.to_thread(made, engine)
        async with spending(tmp_path, engine, 0.06, unbounded_tokens=64) as spender:
            calls = [drawn_call(rng, spender.model) for _ in range(1000)]
            gate = asyncio.Semaphore(64)

            async def one(path: str, body: dict) -> int:
                async with gate:
                    return (await spender.ask(path, body))[0]

            statuses = await asyncio.gather(*(one(*call) for call in calls))
            await spender.settled()
            spent, reserved = spender.spent
            tokens = await asyncio.to_thread(made, engine) - before
            assert {200, 429} <= set(statuses) <= {200, 400, 429}, sorted(set(statuses))
            assert reserved == 0
            assert spent == spender.charged == tokens * TOKEN, "what was made is what was paid"
            left = nanodollars(0.06) - spent
            assert left >= 0
            prompt = {"model": spender.model, "prompt": [1, 2, 3]}
            large = await spender.ask("/v1/completions", prompt | {"max_tokens": left // TOKEN})
            small = await spender.ask("/v1/completions", prompt | {"max_tokens": 1})
            assert large[0] == 429, "more than is left is refused"
            assert small[0] == 200 or left < 100 * TOKEN, "less is not"

    run(law)


def test_batches_and_background_responses_are_billed_where_tokens_are_made_once_and_looking_is_free(tmp_path, engine):
    async def law():
        before = await asyncio.to_thread(made, engine)
        prices = {"*": PRICE | {"batch": 0.5}}
        async with spending(tmp_path, engine, 1.0, prices=prices) as spender:
            body = {"input": "hello", "background": True, "max_output_tokens": 20}
            status, _, answer = await spender.ask("/v1/responses", body)
            assert status == 200, answer
            response = json.loads(answer)["id"]
            batch = await batch_of(spender, [{"messages": USER, "max_tokens": 12, "n": 2} for _ in range(5)])
            for path in (f"/v1/responses/{response}", f"/v1/batches/{batch}"):
                while json.loads((await spender.ask(path, b"", "GET"))[2])["status"] not in ("completed", "incomplete"):
                    await asyncio.sleep(0.02)
            await spender.settled()
            for _ in range(20):
                await spender.ask(f"/v1/responses/{response}", b"", "GET")
                await spender.ask("/v1/batches", b"", "GET")
            await spender.settled()
            (usage,) = usage_sums(spender.gateway.database, ("tenant",))
            tokens = await asyncio.to_thread(made, engine) - before
            assert usage.num_requests == 6
            assert usage.num_prompt + usage.num_output == tokens
            of_batch = json.loads((await spender.ask(f"/v1/batches/{batch}", b"", "GET"))[2])["usage"]["total_tokens"]
            assert spender.spent == (usage.cost, 0)
            assert usage.cost == (tokens - of_batch) * TOKEN + of_batch * TOKEN // 2

    run(law)


async def batch_of(spender: Spender, bodies: list[dict]) -> str:
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}
        for number, body in enumerate(bodies)
    ]
    text = "\n".join(map(json.dumps, lines))
    form = (
        '--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        '--b\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n' + text + "\r\n--b--\r\n"
    )
    _, _, file = await spender.ask("/v1/files", form.encode(), content_type="multipart/form-data; boundary=b")
    wanted = {"input_file_id": json.loads(file)["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    status, _, answer = await spender.ask("/v1/batches", wanted)
    assert status == 200, answer
    return json.loads(answer)["id"]


def test_what_may_cost_more_than_there_is_is_refused_before_a_token_is_made(tmp_path, engine):
    """Histories and batches say nothing of their size where they are asked for; the server that reads them does."""

    async def law():
        async with spending(tmp_path, engine, 0.002) as spender:
            status, _, answer = await spender.ask("/v1/responses", {"input": "x" * 1200, "max_output_tokens": 2})
            assert status == 200, answer
            await spender.settled()
            before = await asyncio.to_thread(made, engine)
            follow = {"previous_response_id": json.loads(answer)["id"], "input": "x", "max_output_tokens": 2}
            with pytest.raises(AssertionError, match="insufficient_quota"):
                await batch_of(spender, [{"messages": USER, "max_tokens": 400}] * 20)
            for path, body in (
                ("/v1/responses", follow),
                ("/v1/completions", {"prompt": ["a"] * 64, "max_tokens": 16}),
                (
                    "/v1/messages",
                    {"model": spender.model, "messages": USER, "max_tokens": 2000, "max_output_tokens": 1},
                ),
                ("/api/generate", {"model": spender.model, "prompt": "x", "options": {"num_predict": 2000}}),
            ):
                status, _, answer = await spender.ask(path, body)
                assert (status, b"budget" in answer) == (429, True), (path, answer)
            await spender.settled()
            assert await asyncio.to_thread(made, engine) == before
            assert spender.spent[1] == 0

    run(law)


def test_an_answer_nobody_waited_for_is_billed_for_what_was_made_of_it(tmp_path, engine):
    async def law():
        before = await asyncio.to_thread(made, engine)
        async with spending(tmp_path, engine, 1.0) as spender:
            body = json.dumps({"messages": USER, "max_tokens": 4000, "ignore_eos": True}).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {spender.key}\r\n"
            _, writer = await asyncio.open_connection("127.0.0.1", spender.port)
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            while await asyncio.to_thread(engine.metric, "vllm:num_requests_running") < 1:
                await asyncio.sleep(0.01)
            writer.close()
            while not spender.gateway.num_later:
                await asyncio.sleep(0.01)
            await spender.settled()
            tokens = await asyncio.to_thread(made, engine) - before
            assert spender.spent == (spender.charged, 0)
            assert 0 < spender.charged <= tokens * TOKEN + 8 * TOKEN

    run(law)


def test_a_model_without_a_price_is_refused_where_others_have_one_and_the_default_has_its_own(tmp_path, engine):
    async def law():
        async with spending(tmp_path, engine, 1.0, prices={"other": PRICE}) as spender:
            for body in ({}, {"model": "default"}, {"model": spender.model}):
                status, _, answer = await spender.ask(
                    "/v1/chat/completions", {"messages": USER, "max_tokens": 1} | body
                )
                assert (status, b"model_not_priced" in answer) == (403, True)
        name = engine.get("/v1/models").json()["data"][0]["id"]
        async with spending(tmp_path / "b", engine, 1.0, prices={name: PRICE}) as spender:
            for body in ({}, {"model": "default"}, {"model": spender.model}):
                assert (await spender.ask("/v1/chat/completions", {"messages": USER, "max_tokens": 1} | body))[0] == 200
            await spender.settled()
            assert spender.spent[0] == spender.charged > 0

    run(law)


OPERATORS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
"""No tenant's business: a gateway refuses them."""


def test_every_route_that_takes_a_body_is_read_or_makes_no_tokens_or_is_refused():
    for route in ROUTES:
        if route.path in OPERATORS:
            assert not is_free("POST", route.path)
            continue
        for path in (route.path, *route.aliases):
            if route.method != "POST" or not path.startswith(("/v1/", "/api/", "/app/")) or is_free("POST", path):
                continue
            body = {"model": "m", "max_tokens": 1, "messages": USER, "prompt": "x", "input": "x"}
            more = {"query": "x", "documents": ["y"], "input_file_id": "f", "endpoint": "e", "completion_window": "24h"}
            assert read_request(path, json.dumps(body | more).encode()) is not None, path
