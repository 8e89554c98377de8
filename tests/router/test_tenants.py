"""What one key keeps, no other key finds: at a server, behind a router, behind replicas of one command, behind a gateway."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from penstock.service.edge.stamp import RelayStamp, read_stamp
from penstock.service.gateway.keys import create_key
from penstock.service.gateway.schema import GATEWAY
from penstock.service.store.database import SqliteDatabase
from tests.machine import PATIENCE_S, wait_until
from tests.router.service import routing, started_together
from tests.server.serving import ROOT, serving, user

KEYS = ("first-key-of-some-length", "second-key-of-some-length")
ROUTER_KEY = "router-key-of-some-length"
LINE = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a", "max_tokens": 1}}
FORGED = [
    {},
    {"x-penstock-relay": "0123456789abcdef 1700000000 key-0 9"},
    {"x-penstock-relay": "0123456789abcdef 1700000000 acme 9", "x-penstock-resume": "0"},
    {"x-penstock-relay": f"k 1 {KEYS[0]} 0", "x-penstock-blocks": "1"},
    {"x-penstock-tenant": "key-0", "x-forwarded-user": "key-0", "x-request-id": "same"},
]
"""What a client may say of itself, and nobody listens to."""


@dataclass
class Shared:
    """A service that two keys share."""

    url: str
    keys: tuple[str, str]

    def http(self, number: int, **headers: str) -> httpx.Client:
        authorization = {"authorization": f"Bearer {self.keys[number]}", "x-request-id": "same"}
        return httpx.Client(
            base_url=self.url, headers=authorization | headers, timeout=PATIENCE_S, verify=False, trust_env=False
        )

    def wait_for(self, num_ready: int) -> None:
        with self.http(0) as http:
            wait_until(lambda: http.get("/router/replicas").text.count('"ready"') == num_ready)


@contextmanager
def one_server(folder: Path) -> Iterator[Shared]:
    with serving("--api-key", KEYS[0], "--api-key", KEYS[1]) as server:
        yield Shared(server.url, KEYS)


@contextmanager
def independent_servers(folder: Path, *flags: str, keys: tuple[str, str] = KEYS) -> Iterator[Shared]:
    with ExitStack() as stack:
        servers = started_together(stack, [serving("--router-key", ROUTER_KEY) for _ in range(2)])
        words = [word for server in servers for word in ("--replica", server.url)]
        made = stack.enter_context(routing(*words, *flags, PENSTOCK_REPLICA_KEY=ROUTER_KEY))
        shared = Shared(made.url, keys)
        shared.wait_for(2)
        yield shared


def routed_servers(folder: Path) -> "contextmanager[Shared]":
    return independent_servers(folder, "--api-key", KEYS[0], "--api-key", KEYS[1], "--policy", "round-robin")


def gateway(folder: Path) -> "contextmanager[Shared]":
    database = SqliteDatabase(folder / "gateway.db", [GATEWAY])
    keys = tuple(create_key(database, name="", tenant=name, now=0.0)[0] for name in ("acme", "other"))
    database.close()
    settings = folder / "gateway.toml"
    settings.write_text(
        f'database = "{folder / "gateway.db"}"\n[tiers.default]\n[tenants.acme]\ntier = "default"\n'
        '[tenants.other]\ntier = "default"\n'
    )
    return independent_servers(folder, "--gateway", str(settings), "--policy", "round-robin", keys=keys)


@contextmanager
def replicas(folder: Path) -> Iterator[Shared]:
    words = ["-m", "penstock", "serve", "oracle:", "--replicas", "2", "--port", "0"]
    words += ["--api-key", KEYS[0], "--api-key", KEYS[1]]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ}
        )
    try:
        assert process.stdout is not None
        found = re.search(r"http://[^,\s]+", process.stdout.readline())
        assert found, (folder / "log").read_text()
        shared = Shared(found.group(), KEYS)
        shared.wait_for(2)
        yield shared
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture(scope="module", params=[one_server, routed_servers, gateway, replicas], ids=lambda make: make.__name__)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    with request.param(tmp_path_factory.mktemp("shared")) as made:
        yield made


def keep_things(http: httpx.Client) -> dict[str, str]:
    """One of everything that is stored, by kind."""

    def made(path: str, **fields: object) -> str:
        answer = http.post(path, **fields)
        assert answer.status_code == 200, answer.text
        return answer.json()["id"]

    items = [{"type": "message", "role": "user", "content": "a secret"}]
    upload = made("/v1/files", files={"file": ("f", json.dumps(LINE).encode())}, data={"purpose": "batch"})
    batch = {"input_file_id": upload, "endpoint": "/v1/completions", "completion_window": "24h"}
    return {
        "responses": made("/v1/responses", json={"model": "oracle:", "input": "a secret", "max_output_tokens": 4}),
        "conversations": made("/v1/conversations", json={"items": items}),
        "files": upload,
        "batches": made("/v1/batches", json=batch),
    }


def probes(ids: dict[str, str]) -> Iterator[Callable[[httpx.Client], httpx.Response]]:
    """Every way to reach what is stored, by its id."""
    for kind, id_ in ids.items():
        yield lambda http, kind=kind, id_=id_: http.get(f"/v1/{kind}/{id_}")
        yield lambda http, kind=kind, id_=id_: http.delete(f"/v1/{kind}/{id_}")
        yield lambda http, kind=kind, id_=id_: http.post(f"/v1/{kind}/{id_}/cancel")
        yield lambda http, kind=kind, id_=id_: http.get(f"/v1/{kind}//{id_}")
        yield lambda http, kind=kind, id_=id_: http.get(f"/v1/%66iles/../{kind}/{id_}")
    yield lambda http: http.get(f"/v1/responses/{ids['responses']}/input_items")
    yield lambda http: http.get(f"/v1/conversations/{ids['conversations']}/items")
    yield lambda http: http.post(f"/v1/conversations/{ids['conversations']}/items", json={"items": user("x")})
    yield lambda http: http.get(f"/v1/files/{ids['files']}/content")
    follow = {"model": "oracle:", "input": "x", "max_output_tokens": 2}
    yield lambda http: http.post("/v1/responses", json=follow | {"previous_response_id": ids["responses"]})
    yield lambda http: http.post("/v1/responses", json=follow | {"conversation": ids["conversations"]})
    batch = {"input_file_id": ids["files"], "endpoint": "/v1/completions", "completion_window": "24h"}
    yield lambda http: http.post("/v1/batches", json=batch)


def test_nothing_that_is_stored_is_found_with_another_key(shared: Shared) -> None:
    num_probes = 0
    with shared.http(0) as owner:
        ids = keep_things(owner)
        for forged in FORGED:
            with shared.http(1, **forged) as stranger:
                for probe in probes(ids):
                    answer = probe(stranger)
                    assert answer.status_code in (400, 404, 405), (answer.request.url, answer.text)
                    assert "a secret" not in answer.text
                    num_probes += 1
                for kind in ("files", "batches"):
                    assert not stranger.get(f"/v1/{kind}").json()["data"]
        for kind, id_ in ids.items():
            assert owner.get(f"/v1/{kind}/{id_}").status_code == 200, "it is still there for its owner"
        assert ids["files"] in owner.get("/v1/files").text
    assert num_probes >= 125


def test_no_prefix_is_shared_and_no_id_follows_from_a_request_id(shared: Shared) -> None:
    body = {"model": "oracle:", "prompt": "a secret that is long enough to fill several blocks of the cache " * 3}
    seen = set()
    for number in (0, 0, 0, 1, 1):
        with shared.http(number) as http:
            answer = http.post("/v1/completions", json=body | {"max_tokens": 1}).json()
        seen.add(answer["id"])
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        if number == 1:
            break
    assert cached == 0
    assert len(seen) == 4


def test_a_forged_stamp_changes_nothing(shared: Shared) -> None:
    """Two answers asked for with one stamp have two ids, and no stream shows marks."""
    body = {"model": "oracle:", "prompt": "x", "max_tokens": 2}
    with shared.http(1, **FORGED[1]) as http:
        ids = {http.post("/v1/completions", json=body).json()["id"] for _ in range(3)}
        assert len(ids) == 3
        assert ":t " not in http.post("/v1/completions", json=body | {"stream": True}).text
        resumed = http.post("/v1/completions", json=body | {"stream": True}, headers={"x-penstock-resume": "3"})
        assert resumed.status_code == 200


def test_stamps_keep_tenants_apart() -> None:
    names = ["a b", "a_b", "é", "è", "-", "", "a/b", "x" * 200, "x" * 201, "key-0"]
    read = [read_stamp(RelayStamp(b"k", 1, name, 3).encode()) for name in names]
    assert all(stamp is not None and stamp.priority == 3 for stamp in read)
    assert len({stamp.tenant for stamp in read if stamp}) == len(names)


def test_a_forged_answer_to_go_on_with_is_the_clients_fault() -> None:
    """A server without keys believes whoever stamps a request, and still fails for nobody."""
    body = {"prompt": "x", "max_tokens": 4, "stream": True}
    forged = [
        b"0=999999999",
        b"9=1",
        b"0=-3",
        b"0=-1,5",
        b"-1=1",
        b"a=b",
        b"0=",
        b"=",
        b"0=1,,2",
        b"0=" + b"1," * 9000 + b"1",
        b"\xff",
    ]
    with serving() as server, server.http() as http:
        for prefix in forged:
            headers = {"x-penstock-relay": "k 1 - 0", "x-penstock-resume": str(len(prefix))}
            answer = http.post("/v1/completions", content=prefix + json.dumps(body).encode(), headers=headers)
            assert answer.status_code == 400, (prefix[:20], answer.text)
        too_long = {"x-penstock-relay": "k 1 - 0", "x-penstock-resume": "9" * 30}
        assert http.post("/v1/completions", json=body, headers=too_long).status_code == 400
        assert "Traceback" not in server.errors.read_text()


@pytest.mark.parametrize(
    "words", [("serve", "oracle:"), ("route", "--replica", "http://127.0.0.1:9")], ids=lambda w: w[0]
)
def test_no_traceback_where_sockets_run_out(words: tuple[str, ...], tmp_path: Path) -> None:
    limit = "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96)); "
    start = limit + "from penstock.cli.main import main; sys.argv[0] = 'penstock'; sys.exit(main())"
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", start, *words, "--port", "0"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    clients = []
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        found = next(match for line in lines if (match := re.search(r"http://([\d.]+):(\d+)", line)))
        for _ in range(160):
            clients.append(socket.create_connection((found[1], int(found[2])), timeout=PATIENCE_S))
        for client in clients:
            client.close()
        url = f"http://{found[1]}:{found[2]}/livez"

        def lives() -> bool:
            try:
                return httpx.get(url, timeout=1.0, trust_env=False).status_code == 200
            except httpx.HTTPError:
                return False

        wait_until(lives)
        assert "Traceback" not in (tmp_path / "log").read_text()
    finally:
        for client in clients:
            client.close()
        process.terminate()
        process.wait(PATIENCE_S)
        if process.stdout is not None:
            process.stdout.close()
