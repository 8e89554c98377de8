"""The operator's API: with its own key, on its own port, while requests run."""

import asyncio
import json
import time

import msgspec

from penstock.service.gateway.gateway import Gateway
from penstock.service.gateway.schema import GATEWAY
from penstock.service.gateway.settings import GatewaySettings
from penstock.service.kv_events import BlockOffer
from penstock.service.router.admin.api import AdminApi
from penstock.service.router.admin.desk import ROUTES
from penstock.service.router.proxy.client import InboundConnection
from penstock.service.store.database import SqliteDatabase
from tests.router.harness import ScriptedReplica, ask, routed
from tests.router.test_relay import BODY, run

KEY = "an-admin-key-of-some-length"


def test_replicas_come_and_go_by_the_admin_api_alone():
    async def law():
        first, second = ScriptedReplica("a"), ScriptedReplica("b")
        done = []
        async with routed(first) as router:
            await second.open()
            admin = AdminApi(router.app, KEY, lambda action, about: done.append((action, about)))
            server = await asyncio.get_running_loop().create_server(lambda: InboundConnection(admin), "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]

            async def do(method: str, path: str, body: dict | None = None, key: str = KEY) -> int:
                data = json.dumps(body).encode() if body is not None else b""
                return (await ask(port, data, path, method, authorization=f"Bearer {key}"))[0]

            new = {"name": "b", "url": f"http://127.0.0.1:{second.port}"}
            assert await do("POST", "/replicas", new, key="wrong") == 401
            assert await do("GET", "/replicas", key="") == 401
            assert (await ask(router.port, b"{}", "/replicas", "POST"))[0] == 404, "not on the clients' port"
            assert await do("POST", "/replicas", new) == 200
            assert await do("POST", "/replicas", new) == 400, "a name is taken once"
            assert await do("POST", "/replicas", {"name": "c", "url": "file:///etc/passwd"}) == 400
            assert await do("POST", "/replicas", {"name": "c", "url": "http://x", "extra": 1}) == 400
            await router.until(lambda: router.app.fleet.get("b").state.value == "ready")
            assert {json.loads((await router.post(BODY))[2])["by"] for _ in range(4)} == {"a", "b"}
            assert await do("POST", "/replicas/a/drain") == 200
            assert {json.loads((await router.post(BODY))[2])["by"] for _ in range(4)} == {"b"}
            assert await do("POST", "/replicas/a/undrain") == 200
            assert await do("POST", "/replicas/a/role/prefill") == 400, "it offers no blocks"
            first.offer = BlockOffer("both", 1, "0" * 32, 1, 1, "cpu")
            await router.until(lambda: router.app.fleet.get("a").offer == first.offer)
            assert await do("POST", "/replicas/a/role/prefill") == 200
            assert {json.loads((await router.post(BODY))[2])["by"] for _ in range(4)} == {"b"}
            assert await do("POST", "/replicas/a/role/anything") == 404
            assert await do("POST", "/replicas/a/role/both") == 200
            assert await do("DELETE", "/replicas/b") == 200
            assert {json.loads((await router.post(BODY))[2])["by"] for _ in range(4)} == {"a"}
            assert await do("DELETE", "/replicas/b") == 404
            assert [action for action, _ in done] == [
                *("add", "drain", "undrain", "role prefill", "role both", "remove")
            ]
            server.close()
            admin.close()
            await second.kill()

    run(law)


def test_keys_budgets_and_rules_are_set_while_the_gateway_runs_and_hold_at_once(tmp_path):
    async def law():
        database = SqliteDatabase(tmp_path / "g.db", [GATEWAY])
        rules = {"prices": {"tiny": {"input": 1.0, "output": 1.0}}}
        gateway = Gateway(msgspec.convert(rules, GatewaySettings), database, time.time())
        done = []
        async with routed(ScriptedReplica("a"), gateway=gateway) as router:
            admin = AdminApi(router.app, KEY, lambda action, about: done.append((action, about)))
            server = await asyncio.get_running_loop().create_server(lambda: InboundConnection(admin), "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]

            async def do(method: str, path: str, body: object = None, key: str = KEY):
                data = json.dumps(body).encode() if body is not None else b""
                status, _, answer = await ask(port, data, path, method, authorization=f"Bearer {key}")
                return status, json.loads(answer)

            assert (await ask(port, b"", "/", "GET"))[0] == 200, "the page is open, what it asks for is not"
            assert (await do("GET", "/keys", key="wrong"))[0] == 401
            status, made = await do("POST", "/keys", {"tenant": "acme", "budget_usd": 1.0})
            assert status == 200

            async def post(model: str) -> int:
                body = BODY | {"model": model, "max_tokens": 5}
                return (await router.post(body, authorization=f"Bearer {made['key']}"))[0]

            assert await post("tiny") == 200
            assert await post("alias") == 403, "it has no price"
            assert (await do("PUT", "/rules/models/alias", {"split": {"tiny": 1}}))[0] == 200
            assert await post("alias") == 200
            assert (await do("PUT", "/rules/prices/tiny", {"input": -1}))[0] == 400
            assert (await do("PUT", "/rules/tenants/acme", {"tier": "none"}))[0] == 400, (
                "rules go together or not at all"
            )
            assert (await do("PUT", "/rules/tiers/one", {"requests_per_day": 1}))[0] == 200
            assert (await do("PUT", "/rules/tenants/acme", {"tier": "one"}))[0] == 200
            assert [await post("tiny"), await post("tiny")] == [200, 429]
            assert (await do("DELETE", "/rules/tiers/one"))[0] == 400, "a tenant needs it"
            assert (await do("DELETE", "/rules/tenants/acme"))[0] == 200
            assert (await do("PUT", f"/budgets/key:{made['id']}", {"amount_usd": 0.0}))[0] == 200
            assert await post("tiny") == 429
            assert (await do("DELETE", f"/budgets/key:{made['id']}"))[0] == 200
            assert await post("tiny") == 200
            await router.until(lambda: not gateway.ledger.num_unwritten)
            status, sums = await do("GET", "/usage?by=tenant")
            assert (status, sums[0]["tenant"], sums[0]["num_requests"]) == (200, "acme", 4)
            assert (await do("DELETE", f"/keys/{made['id']}"))[0] == 200
            assert await post("tiny") == 401
            assert [one["is_valid"] for one in (await do("GET", "/keys"))[1]] == [False]
            status, page = await do("GET", "/openapi.json")
            assert {route.path for route in ROUTES} <= set(page["paths"])
            status, _, shown = await ask(port, b"", "/docs", "GET")
            assert status == 200, "the list of routes is no secret"
            assert all(f"{route.method} {route.path}".encode() in shown for route in ROUTES)
            assert len(done) == 8, "what was refused is not written down"
            server.close()
            admin.close()
        gateway.ledger.close()
        database.close()

    run(law)
