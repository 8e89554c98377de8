"""The operator's API: with its own key, on its own port, while requests run."""

import asyncio
import json

from penstock.service.router.admin import AdminApi
from penstock.service.router.proxy.client import InboundConnection
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
            assert await do("DELETE", "/replicas/b") == 200
            assert {json.loads((await router.post(BODY))[2])["by"] for _ in range(4)} == {"a"}
            assert await do("DELETE", "/replicas/b") == 404
            assert [action for action, _ in done] == ["add", "drain", "undrain", "remove"]
            server.close()
            admin.close()
            await second.kill()

    run(law)
