"""Adapters through a router: model names like any other, for keys that are limited to them, on every replica."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from penstock.service.gateway.keys import create_key
from penstock.service.gateway.schema import GATEWAY
from penstock.service.store.database import SqliteDatabase
from tests.adapters.making import write_adapter
from tests.machine import PATIENCE_S
from tests.offline import write_chat_model
from tests.router.service import routing, started_together
from tests.server.serving import serving

ROUTER_KEY = "the-key-between-router-and-servers"
ASKED = {"prompt": "Water falls", "max_tokens": 8, "temperature": 0}


class Fleet:
    def __init__(self, url: str, keys: dict[str, str]) -> None:
        self.url = url
        self.keys = keys

    def ask(self, model: str, key: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.keys[key]}"}
        body = {"model": model, **ASKED}
        return httpx.post(f"{self.url}/v1/completions", json=body, headers=headers, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    write_chat_model(folder / "tiny.gguf")
    for number in range(2):
        write_adapter(folder / "adapters" / f"a{number}", number)
    database = SqliteDatabase(folder / "gateway.db", [GATEWAY])
    limits: dict[str, tuple[str, ...]] = {"any": (), "one": ("a0",)}
    keys = {
        name: create_key(database, name="", tenant="acme", now=0.0, models=models)[0] for name, models in limits.items()
    }
    database.close()
    settings = folder / "gateway.toml"
    settings.write_text(f'database = "{folder / "gateway.db"}"\n[tiers.default]\n[tenants.acme]\ntier = "default"\n')
    flags = ("--adapters-dir", str(folder / "adapters"), "--max-context", "256", "--router-key", ROUTER_KEY)
    with ExitStack() as stack:
        made = [serving(*flags, model=str(folder / "tiny.gguf"), is_real=True) for _ in range(2)]
        servers = started_together(stack, made)
        words = [word for server in servers for word in ("--replica", server.url)]
        words += ["--gateway", str(settings), "--policy", "round-robin"]
        fleet = Fleet(stack.enter_context(routing(*words, PENSTOCK_REPLICA_KEY=ROUTER_KEY)).url, keys)
        end_s = time.monotonic() + PATIENCE_S
        while fleet.ask("a0", "any").status_code != 200:
            assert time.monotonic() < end_s, fleet.ask("a0", "any").text
            time.sleep(0.1)
        yield fleet


@pytest.mark.slow
def test_a_router_serves_adapters_of_all_replicas_and_keys_are_held_to_theirs(fleet: Fleet) -> None:
    found = {
        name: {fleet.ask(name, "any").json()["choices"][0]["text"] for _ in range(4)} for name in ("tiny", "a0", "a1")
    }
    assert all(len(texts) == 1 for texts in found.values()), "replicas answer alike"
    assert len({text for texts in found.values() for text in texts}) == 3
    allowed = fleet.ask("a0", "one")
    assert allowed.status_code == 200
    assert {allowed.json()["choices"][0]["text"]} == found["a0"]
    for name in ("a1", "tiny", "a0*0.5", "a0+a1"):
        assert fleet.ask(name, "one").status_code == 403
    together = fleet.ask("a0*0.5+a1", "any")
    assert together.status_code == 200
    assert together.json()["choices"][0]["text"] not in set.union(*found.values())
    assert fleet.ask("a9", "any").status_code == 404
